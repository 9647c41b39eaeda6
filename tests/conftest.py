"""What tests of several parts share: the default models, pulled once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("smollm2-135m-instruct", "all-minilm-l6-v2")

settings.register_profile("loaded", deadline=None)  # no timed assertion: a busy box is no failure
settings.load_profile("loaded")


@pytest.fixture(scope="session")
def pulled() -> Callable[[str], Path]:
    """The folder of a model of the catalogue; what is missing is pulled into the checkout first."""

    def pull(name: str) -> Path:
        directory = ROOT / ".headrace" / "models"
        if not (directory / name / "model.yaml").exists():
            command = [sys.executable, "-P", "-m", "appliance.cli", "model", "pull", name, "--dir", str(directory)]
            subprocess.run(command, check=True, cwd=ROOT)
        return directory / name

    return pull


@pytest.fixture(scope="session")
def models(pulled: Callable[[str], Path]) -> Path:
    """The directory with the folders of both default models."""
    for name in MODELS:
        folder = pulled(name)
    return folder.parent
