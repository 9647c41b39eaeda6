"""What tests of several parts share: the default models, pulled once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("smollm2-135m-instruct", "all-minilm-l6-v2")


@pytest.fixture(scope="session")
def models() -> Path:
    """The directory with the folders of both default models; what is missing is pulled into the checkout first."""
    directory = ROOT / ".headrace" / "models"
    for name in MODELS:
        if not (directory / name / "model.yaml").exists():
            command = [sys.executable, "-P", "-m", "appliance.cli", "model", "pull", name, "--dir", str(directory)]
            subprocess.run(command, check=True, cwd=ROOT)
    return directory
