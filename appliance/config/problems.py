"""What can be wrong with a configuration, and where: places, problems and the one error that carries them all.

Knows nothing of YAML or of the tables: a location is a path of keys and indexes into plain data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A path into the data: ("routes", 0, "match", "host").
Loc = tuple[str | int, ...]
#: What is wrong with the value at a location.
Finding = tuple[Loc, str]


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """A position in a file; line and column count from 1. Line 0 means the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """One thing that is wrong: at which place, with which key, and what was expected instead."""

    file: str
    line: int
    column: int
    key: str
    message: str

    def __str__(self) -> str:
        place = str(Place(self.file, self.line, self.column))
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ConfigurationError(Exception):
    """The configuration cannot be used. ``problems`` holds everything that was found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, self.problems)))


def spell_loc(loc: Loc) -> str:
    """("routes", 0, "match") -> ``routes[0].match``."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def problem_at(place: Place, loc: Loc, message: str) -> Problem:
    """The problem ``message`` with the key at ``loc``, which stands at ``place``."""
    return Problem(place.file, place.line, place.column, spell_loc(loc), message)
