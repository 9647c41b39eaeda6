"""Where in a request's messages or prompt text stands that may be shortened, and how it is put in its place. Pure.

That is what was said in messages, but not by the system; names, calls of tools and their arguments are left as they
are. Nothing is changed in place: others hold the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

#: Whose messages are not touched.
SYSTEM: Final = frozenset({"system", "developer"})


class Place(NamedTuple):
    """message: which one, or which of several prompts, -1: the prompt itself. part: of its content, -1: all of it."""

    message: int
    part: int


def places(value: Any) -> Iterator[tuple[Place, str]]:
    """Every text of messages or of a prompt that may be shortened."""
    if isinstance(value, str):
        yield Place(-1, -1), value
    for i, each in enumerate(value if isinstance(value, list) else ()):
        content = each.get("content") if isinstance(each, dict) and each.get("role") not in SYSTEM else each
        if isinstance(content, str):
            yield Place(i, -1), content
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
                yield Place(i, j), part["text"]


def replaced(value: Any, place: Place, text: str) -> Any:
    """The messages or the prompt with another text there."""
    if place.message < 0:
        return text
    rows = list(value)
    row = rows[place.message]
    if isinstance(row, str):
        rows[place.message] = text
    elif place.part < 0:
        rows[place.message] = {**row, "content": text}
    else:
        parts = list(row["content"])
        parts[place.part] = {**parts[place.part], "text": text}
        rows[place.message] = {**row, "content": parts}
    return rows
