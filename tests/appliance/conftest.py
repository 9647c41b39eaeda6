"""Fixtures of the appliance's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.appliance.config_files import ConfigFiles


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigFiles:
    """A directory for a configuration and what it names."""
    return ConfigFiles(tmp_path, monkeypatch.setenv)
