"""Walks over the tables themselves: which keys a table knows, and where in a configuration values of a kind stand.

Knows the shapes that pydantic and typing make (Annotated, unions, tuples, dictionaries, tables), nothing of what a key
means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from appliance.config.problems import Loc


def fields_of(table: type[BaseModel]) -> dict[str, tuple[str, Any]]:
    """By the key a file uses: the field's name and its annotation, metadata included."""
    return {
        field.alias or name: (name, Annotated[field.annotation, field]) for name, field in table.model_fields.items()
    }


def entries_of(table: type[BaseModel]) -> Any:
    """The annotation of entries under free names beside the table's keys; None if it has none."""
    extra = get_type_hints(table, include_extras=True).get("__pydantic_extra__")
    return get_args(extra)[1] if get_origin(extra) is dict else None


def keys_at(annotation: Any, loc: Loc) -> list[str]:
    """The keys that may stand in the table at ``loc`` inside a value of ``annotation``."""
    found = [annotation]
    for part in loc:
        found = [inner for each in found for inner in _step(each, part)]
    return sorted({key for each in found for table in tables_in(each) for key in fields_of(table)})


def _step(annotation: Any, part: str | int) -> Iterator[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _step(arguments[0], part)
    elif origin in (Union, UnionType):
        for arm in arguments:
            yield from _step(arm, part)
    elif origin in (tuple, list) and isinstance(part, int):
        yield arguments[0]
    elif origin is dict:
        yield arguments[1]
    elif _is_table(annotation):
        known = fields_of(annotation)
        yield known[part][1] if part in known else entries_of(annotation)


def tables_in(annotation: Any) -> list[type[BaseModel]]:
    """The tables that a value of ``annotation`` itself may be."""
    if _is_table(annotation):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return tables_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [table for arm in get_args(annotation) for table in tables_in(arm)]
    return []


def find(value: Any, annotation: Any, wanted: Callable[[Any, Any], bool], loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Every (location, value) inside ``value`` for which ``wanted(value, annotation)`` holds."""
    if wanted(value, annotation):
        yield loc, value
    if isinstance(value, BaseModel):
        table = type(value)
        for key, (name, inner) in fields_of(table).items():
            yield from find(getattr(value, name), inner, wanted, (*loc, key))
        for key, entry in (value.model_extra or {}).items():
            yield from find(entry, entries_of(table), wanted, (*loc, key))
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from find(entry, next(_step(annotation, key), Any), wanted, (*loc, key))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from find(item, next(_step(annotation, index), Any), wanted, (*loc, index))


def has_mark(annotation: Any, mark: str) -> bool:
    """Whether the annotation, or an arm of its union, carries ``json_schema_extra={"headrace": mark}``."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return any(_mark_of(each) == mark for each in metadata) or has_mark(inner, mark)
    if get_origin(annotation) in (Union, UnionType):
        return any(has_mark(arm, mark) for arm in get_args(annotation))
    return False


def _mark_of(metadata: Any) -> Any:
    extra = metadata.json_schema_extra if isinstance(metadata, FieldInfo) else None
    return extra.get("headrace") if isinstance(extra, dict) else None


def _is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
