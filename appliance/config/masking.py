"""What may hide a secret in text for people: the password in a URL, the value of a header that names one."""

from __future__ import annotations

import re
from typing import Any

_TELLING_HEADER = re.compile("authori[sz]ation|cookie|key|token|secret|password|credential|signature", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^/@\s]*@")


def mask_passwords(text: str) -> str:
    """``http://me:secret@host`` -> ``http://me:***@host``, wherever it stands in the text."""
    return _PASSWORD.sub(r"\1***@", text)


def mask_headers(plain: Any) -> Any:
    """A copy of plain data; in every table of headers or of a query, what a telling name has for a value is ``***``."""
    if isinstance(plain, list):
        return [mask_headers(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    masked = {key: mask_headers(value) for key, value in plain.items()}
    for key in ("set", "headers", "query"):
        if isinstance(fields := masked.get(key), dict):
            masked[key] = {name: "***" if _TELLING_HEADER.search(name) else value for name, value in fields.items()}
    return masked
