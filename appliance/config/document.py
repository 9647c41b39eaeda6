"""One YAML text as JSON-typed data, with the place of every key and value.

Built on the parser's events rather than on its loader, so that duplicate keys, tags, nesting and the growth of aliases
are seen and bounded here, and nothing is ever constructed but text, numbers, booleans, null, lists and tables. Knows
nothing of what the keys mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from appliance.config.problems import ConfigurationError, Loc, Place, Problem, problem_at
from appliance.config.scalars import resolve

MAX_BYTES = 1 << 20  # of one file
MAX_DEPTH = 32  # of nested tables and lists
MAX_NODES = 100_000  # values after aliases were expanded

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where the wheel has it: 20 times faster
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STR_TAG = "tag:yaml.org,2002:str"


@dataclass
class Document:
    """The data of one text or of several merged. ``values`` and ``keys`` tell where a value and its key stand."""

    data: dict[str, Any]
    values: dict[Loc, Place] = field(default_factory=dict)
    keys: dict[Loc, Place] = field(default_factory=dict)


@dataclass(slots=True)
class _Node:
    """A value not yet copied out: items of a list, or of a table as (key, place of the key, value)."""

    place: Place
    scalar: Any = None
    items: list[_Node] | None = None
    entries: list[tuple[str, Place, _Node]] | None = None


def parse(content: bytes, file: str) -> Document:
    """The Document of the YAML in ``content``; ``file`` names it in places. Raises ConfigurationError."""
    reader = _Reader(_decode(content, file), file)
    root = reader.read()
    if reader.problems:
        raise ConfigurationError(reader.problems)
    if root.entries is None:
        raise _error(root.place, "expected a table of keys, like `listeners:`")
    document = Document({})
    document.data = _copy(root, (), document, [0])
    return document


def _error(place: Place, message: str, loc: Loc = ()) -> ConfigurationError:
    return ConfigurationError([problem_at(place, loc, message)])


def _decode(content: bytes, file: str) -> str:
    if len(content) > MAX_BYTES:
        raise _error(Place(file), f"is {len(content)} bytes long, more than the limit of {MAX_BYTES}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        raise _error(_place_after(before, file), "is not UTF-8 text; save the file as UTF-8") from None
    if found := _UNPRINTABLE.search(text):
        place = _place_after(text[: found.start()], file)
        raise _error(place, f"the control character U+{ord(found[0]):04X} is not allowed in YAML")
    return text


def _place_after(before: str, file: str) -> Place:
    return Place(file, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


class _Reader:
    """Turns the parser's events into nodes. Notes in ``problems`` what is wrong with one value, and reads on."""

    def __init__(self, text: str, file: str) -> None:
        self._lines = text.splitlines()
        self._file = file
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, _Node] = {}
        self.problems: list[Problem] = []

    def read(self) -> _Node:
        try:
            return self._read_document()
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except yaml.YAMLError as error:
            raise _error(Place(self._file), f"is not YAML: {error}") from None

    def _read_document(self) -> _Node:
        next(self._events)  # stream start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise _error(Place(self._file), "is empty; a configuration has at least `listeners:`")
        root = self._node(next(self._events), 0)
        next(self._events)  # document end
        if not isinstance(extra := next(self._events), yaml.StreamEndEvent):
            raise _error(self._place(extra), "a second YAML document begins here; a file holds one")
        return root

    def _place(self, event: Any) -> Place:
        return Place(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, depth: int) -> _Node:
        place = self._place(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _error(place, f"the alias *{event.anchor} has no anchor &{event.anchor} before it")
            return self._anchors[event.anchor]
        if depth >= MAX_DEPTH:
            raise _error(place, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(place, self._scalar(event, place))
        elif isinstance(event, yaml.SequenceStartEvent):
            node = _Node(place, items=list(self._items(depth)))
        else:
            node = _Node(place, entries=list(self._entries(depth)))
        if event.tag and not isinstance(event, yaml.ScalarEvent):
            self._note(place, f"the tag {event.tag} is not supported; remove it")
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _items(self, depth: int) -> Iterator[_Node]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _entries(self, depth: int) -> Iterator[tuple[str, Place, _Node]]:
        seen: dict[str, Place] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            place = self._place(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise _error(place, "a key must be plain text, not a list, a table or an alias")
            key = event.value
            if key in seen:
                self._note(place, f"{key} is set twice; first in line {seen[key].line}, column {seen[key].column}")
            seen[key] = place
            yield key, place, self._node(next(self._events), depth + 1)

    def _scalar(self, event: Any, place: Place) -> Any:
        if event.tag == _STR_TAG or (event.tag in (None, "!") and not event.implicit[0]):
            return event.value
        if event.tag:
            self._note(place, f"the tag {event.tag} is not supported; remove it, and quote the value if it is text")
            return event.value
        try:
            return resolve(event.value)
        except ValueError as error:
            self._note(place, str(error))
            return event.value

    def _note(self, place: Place, message: str) -> None:
        self.problems.append(problem_at(place, (), message))

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> ConfigurationError:
        mark = error.problem_mark or error.context_mark
        if mark is None:
            return _error(Place(self._file), f"is not YAML: {error}")
        line = self._lines[mark.line] if mark.line < len(self._lines) else ""
        message = f"is not YAML: {error.problem or error.context}"
        if "\t" in line[: len(line) - len(line.lstrip())]:
            message = "a tab cannot indent YAML; use spaces"
        elif error.context and error.context_mark:
            message += f" {error.context} that began in line {error.context_mark.line + 1}"
        return _error(Place(self._file, mark.line + 1, mark.column + 1), message)


def _copy(node: _Node, loc: Loc, document: Document, count: list[int]) -> Any:
    """The node's data, aliases expanded; notes the places of everything in it."""
    count[0] += 1
    if count[0] > MAX_NODES:
        raise _error(node.place, f"holds more than {MAX_NODES} values once its aliases are expanded", loc)
    document.values[loc] = node.place
    if node.items is not None:
        return [_copy(item, (*loc, index), document, count) for index, item in enumerate(node.items)]
    if node.entries is not None:
        table: dict[str, Any] = {}
        for key, place, value in node.entries:
            document.keys[(*loc, key)] = place
            table[key] = _copy(value, (*loc, key), document, count)
        return table
    return node.scalar
