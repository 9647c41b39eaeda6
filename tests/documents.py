"""The code blocks of the project's documents."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str, language: str) -> list[str]:
    """The contents of the document's fenced blocks that are marked with ``language``, in order."""
    return [text for marked, text in _BLOCK.findall((ROOT / document).read_text()) if marked == language]


def commands(document: str) -> list[str]:
    """Every command of the document's ``sh`` blocks, one each, continued lines joined."""
    lines = "\n".join(blocks(document, "sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip()]
