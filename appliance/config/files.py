"""The configuration's files as one document: the main file, then what ``include`` names, merged in name order.

A top-level table (``models``, ``limits``, ``log``) gathers its keys from every file, a top-level list (``listeners``,
``routes``) is the files' lists one after the other, and anything else stands in one file only: a key set twice is an
error that names both places. Knows nothing of what the keys mean, but for ``include``.
"""

from __future__ import annotations

import glob
from pathlib import Path

from appliance.config.document import MAX_BYTES, Document, parse
from appliance.config.problems import ConfigurationError, Loc, Place, Problem, problem_at

MAX_FILES = 256


def read(path: Path) -> tuple[Document, tuple[Path, ...]]:
    """The merged document of ``path`` and its includes, and the files it came from. Raises ConfigurationError.

    A relative pattern starts at the directory of ``path``. A file that two patterns match is read once.
    """
    document = parse(read_bytes(path, MAX_BYTES), str(path))
    problems: list[Problem] = []
    included = _included(path, document, problems)
    for each in included:
        try:
            _merge(document, parse(read_bytes(each, MAX_BYTES), str(each)), problems)
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(problems)
    return document, (path, *included)


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """The file's bytes. Raises ConfigurationError if it cannot be read or is longer than ``limit_bytes``."""
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise ConfigurationError([problem_at(Place(str(path)), (), why_unreadable(error))]) from None
    if len(content) > limit_bytes:
        message = f"is longer than the limit of {limit_bytes} bytes"
        raise ConfigurationError([problem_at(Place(str(path)), (), message)])
    return content


def why_unreadable(error: OSError) -> str:
    """One clause for a file that could not be read, with what to do about it."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "cannot be read: permission denied; give the user that runs headrace read access"
    if isinstance(error, IsADirectoryError):
        return "is a directory, expected a file"
    return f"cannot be read: {error.strerror or error}"


def _included(main: Path, document: Document, problems: list[Problem]) -> list[Path]:
    patterns = document.data.get("include")
    if not isinstance(patterns, list):
        return []  # absent, or the tables' validation says what is wrong with it
    found: set[Path] = set()
    for index, pattern in enumerate(patterns):
        if not isinstance(pattern, str):
            continue
        matches = glob.glob(str(main.parent / pattern))
        if not matches and not glob.has_magic(pattern):
            loc: Loc = ("include", index)
            problems.append(problem_at(document.values[loc], loc, f"{pattern!r}: there is no such file"))
        found.update(Path(match) for match in matches)
    unique = {each.resolve(): each for each in sorted(found, reverse=True) if each.resolve() != main.resolve()}
    if len(unique) > MAX_FILES:
        loc = ("include",)
        message = f"matches {len(unique)} files, more than the limit of {MAX_FILES}"
        problems.append(problem_at(document.values[loc], loc, message))
        return []
    return sorted(unique.values(), key=lambda each: (each.name, str(each)))


def _merge(into: Document, other: Document, problems: list[Problem]) -> None:
    shifts: dict[str | int, int] = {}  # by top-level list: how many items stand before those of ``other``
    for key, value in other.data.items():
        mine = into.data.get(key)
        if key == "include":
            message = "belongs in the main file; an included file includes none"
            problems.append(problem_at(other.keys[key,], (key,), message))
        elif key not in into.data:
            into.data[key] = value
        elif isinstance(mine, dict) and isinstance(value, dict):
            problems += [_set_twice(into, other, (key, name)) for name in value if name in mine]
            mine.update(value)
        elif isinstance(mine, list) and isinstance(value, list):
            shifts[key] = len(mine)
            mine += value
        else:
            problems.append(_set_twice(into, other, (key,)))
    for places, others in ((into.values, other.values), (into.keys, other.keys)):
        for loc, place in others.items():
            places.setdefault(_shifted(loc, shifts), place)


def _set_twice(into: Document, other: Document, loc: Loc) -> Problem:
    return problem_at(other.keys[loc], loc, f"is set twice; it is set at {into.keys[loc]} too; keep one of them")


def _shifted(loc: Loc, shifts: dict[str | int, int]) -> Loc:
    if len(loc) > 1 and loc[0] in shifts and isinstance(loc[1], int):
        return (loc[0], loc[1] + shifts[loc[0]], *loc[2:])
    return loc
