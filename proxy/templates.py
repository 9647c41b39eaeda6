"""Text with placeholders in braces, filled with a request's own parts. Pure.

What is filled in comes from the request line, where it was visible ASCII without backslash, fragment or (in a path) a
question mark; what goes into a query is escaped so that it stays one value there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_VISIBLE: Final = re.compile(r"[!-\[\]-~]*")
_SAFE: Final = "/:@!$'()*,;~-._"


class Template:
    """A text, and in it the names of values. Raises ValueError on a name that is not known."""

    __slots__ = ("_parts", "names", "text")

    def __init__(self, text: str, known: Iterable[str]) -> None:
        self.text = text
        pieces = _PLACE.split(text)
        # Text and name by turns, the last name empty. A name may be written as in the path, with its star.
        self._parts = [
            (piece, (pieces[i + 1] if i + 1 < len(pieces) else "").removesuffix("*"))
            for i, piece in enumerate(pieces)
            if i % 2 == 0
        ]
        self.names = frozenset(name for _, name in self._parts[:-1])
        if any("{" in piece or "}" in piece for piece, _ in self._parts):
            raise ValueError(f"{text!r} has a brace that is not part of a placeholder like {{id}}")
        known = sorted(known)
        if unknown := sorted(self.names - set(known)):
            there = ", ".join(f"{{{name}}}" for name in known) or "none"
            raise ValueError(f"{text!r} names {{{unknown[0]}}}, which is not there; known: {there}")

    def render(self, values: Mapping[str, str]) -> str:
        """The text with all names filled in."""
        return "".join([piece + (values[name] if name else "") for piece, name in self._parts])

    def render_query(self, values: Mapping[str, str]) -> str:
        """The same behind a question mark. ``{query}`` is the query as it came; where it is empty, one of the marks
        beside it goes, too."""
        out = ""
        skip = ""
        for piece, name in self._parts:
            if skip and not piece:
                out, skip = out.removesuffix(skip), ""
            elif skip:
                out, piece, skip = (
                    (out, piece[1:], "") if piece.startswith("&") else (out.removesuffix(skip), piece, "")
                )
            out += piece
            if name == "query":
                out += values[name]
                skip = out[-1:] if not values[name] and out.endswith(("?", "&")) else ""
            elif name:
                out += in_query(values[name], escaped=name != "path")
        return out


def in_query(value: str, *, escaped: bool = False) -> str:
    """A value as a query carries it. escaped: it is percent-encoded already, and stays so."""
    return quote(value, safe=_SAFE + "%" if escaped else _SAFE, errors="surrogateescape")


def visible(text: str) -> str:
    """The text with everything escaped that may not stand in a header line, or that browsers read as a slash."""
    if _VISIBLE.fullmatch(text):
        return text
    data = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if 0x21 <= byte <= 0x7E and byte != 0x5C else f"%{byte:02X}" for byte in data)
