"""Data against the tables: every error of pydantic as a problem with its place, its key and what was expected.

Owns the wording. Pydantic's locations name union members and dictionary keys too; here they are walked along the data,
so that what remains is the path the operator wrote.
"""

from __future__ import annotations

import difflib
import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from appliance.config.document import Document
from appliance.config.masking import mask_passwords
from appliance.config.problems import ConfigurationError, Loc, Place, Problem, problem_at
from appliance.config.schema import keys_at
from proxy.units import spell_like

M = TypeVar("M", bound=BaseModel)

_EXPECTED = {
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}

#: What a value may be told to be by arms of a union that it was not meant for.
_OF_SHAPE = {*_EXPECTED, "literal_error", "too_short"}
_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("greater than or equal to", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("less than or equal to", "le"),
}


def validate(model: type[M], document: Document) -> M:
    """The document's data as ``model``. Raises ConfigurationError with every problem that pydantic found."""
    try:
        return model.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        raise ConfigurationError(_problems(model, document, error.errors(include_url=False))) from None


def place_of(document: Document, loc: Loc) -> Place:
    """Where the value at ``loc`` stands, or the nearest table around it that is written in a file."""
    while loc not in document.values:
        loc = loc[:-1]
    return document.values[loc]


def nearest(word: str, known: list[str]) -> str:
    """``, did you mean X?`` when one of ``known`` is close to ``word``, else the list of them."""
    if close := difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f"; did you mean `{close[0]}`?"
    return f"; known are {', '.join(sorted(known))}" if known else ""


def _problems(model: type[BaseModel], document: Document, errors: list[ErrorDetails]) -> list[Problem]:
    """One problem for each value: several errors of one value come from the arms of a union, any of which would do."""
    by_loc: dict[Loc, list[ErrorDetails]] = {}
    for error in errors:
        by_loc.setdefault(_written_loc(document.data, error), []).append(error)
    problems = []
    for loc, group in by_loc.items():
        kind = group[0]["type"]
        of_shape = all(error["type"] in _OF_SHAPE for error in group)
        if of_shape and any(len(other) > len(loc) and other[: len(loc)] == loc for other in by_loc):
            continue  # it is of the right shape and not empty, its entries are wrong
        if kind == "extra_forbidden":
            message = f"unknown key{nearest(str(loc[-1]), keys_at(model, loc[:-1]))}"
            problems.append(problem_at(document.keys[loc], loc, message))
        else:
            problems.append(problem_at(place_of(document, loc), loc, _message(loc, group)))
    return sorted(problems)


def _written_loc(data: Any, error: ErrorDetails) -> Loc:
    """The error's location along the data, without names of union members; a missing key ends it."""
    loc: Loc = ()
    for index, part in enumerate(error["loc"]):
        inside = isinstance(data, dict) and part in data
        if inside or (isinstance(data, list) and isinstance(part, int) and part < len(data)):
            data = data[part]
            loc = (*loc, part)
        elif error["type"] == "missing" and index == len(error["loc"]) - 1:
            loc = (*loc, part)
    return loc


def _message(loc: Loc, group: list[ErrorDetails]) -> str:
    own = [str(error["ctx"]["error"]) for error in group if error["type"] == "value_error"]
    if own:
        return mask_passwords(own[0])
    first = group[0]
    if first["type"] == "missing":
        return "is missing; it is required"
    if first["type"] == "too_short" and first["ctx"]["actual_length"] == 0:
        return "is empty; expected at least one entry"
    expected = dict.fromkeys(_expected(error) for error in group)
    return f"expected {' or '.join(expected)}, found {_spell(loc, first['input'])}"


def _expected(error: ErrorDetails) -> str:
    if bound := _BOUNDS.get(error["type"]):
        words, name = bound
        return f"{words} {spell_like(error['input'], error['ctx'][name])}"
    said = error["msg"].removeprefix("Input should be ").replace("String should ", "text to ")
    return _EXPECTED.get(error["type"]) or said.replace("'", "`")


def _spell(loc: Loc, value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if loc[0] == "secrets" or (loc[0] == "upstreams" and loc[2:3] == ("key",)):
        return "a value that is not shown here"
    text = mask_passwords(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 60 else text[:59] + "…"
