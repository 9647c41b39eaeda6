"""What may hide a secret in text for people: the password in a URL."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^/@\s]*@")


def mask_passwords(text: str) -> str:
    """``http://me:secret@host`` -> ``http://me:***@host``, wherever it stands in the text."""
    return _PASSWORD.sub(r"\1***@", text)
