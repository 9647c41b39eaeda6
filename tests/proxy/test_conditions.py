"""What a route asks of method, header fields and query."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.conditions import Conditions, conditions_of, decoded
from proxy.config_match import Match
from tests.proxy.make import exchange


def conditions(**match: Any) -> Conditions:
    found = conditions_of(Match.model_validate_json(json.dumps(match)))
    assert found is not None
    return found


def test_without_conditions_there_is_nothing_to_ask() -> None:
    assert conditions_of(Match.model_validate_json('{"host": "a.example", "path": "/x"}')) is None


@pytest.mark.parametrize(
    ("condition", "lines", "holds"),
    [
        ("2", ["2"], True),
        ("2", ["2 "], False),
        ("2", ["3"], False),
        ("2", [], False),
        ("2", ["2", "2"], False),  # one field of value "2, 2"
        ("2, 3", ["2", "3"], True),
        ("", [""], True),
        ("", [], False),
        ({"present": True}, [""], True),
        ({"present": True}, [], False),
        ({"present": False}, [], True),
        ({"present": False}, ["x"], False),
        ({"like": "curl/*"}, ["curl/8.1"], True),
        ({"like": "curl/*"}, ["xcurl/8.1"], False),
        ({"like": "*"}, [""], True),
        ({"like": "*"}, [], False),
        ({"like": "a"}, ["a"], True),
        ({"like": "a"}, ["ab"], False),
        ({"like": "ab*ba"}, ["aba"], False),
        ({"like": "ab*ba"}, ["abba"], True),
        ({"like": "*b*b*"}, ["abcb"], True),
        ({"like": "*b*b*"}, ["abc"], False),
        ({"like": "a**c"}, ["abc"], True),
    ],
)
def test_a_header(condition: Any, lines: list[str], holds: bool) -> None:
    asked = conditions(headers={"X-Version": condition})
    x = exchange("/", [("x-VERSION", value) for value in lines])
    assert asked.hold(x) is holds
    assert (asked.first_failing(x) is None) is holds


@pytest.mark.parametrize(
    ("condition", "query", "holds"),
    [
        ("2", "v=2", True),
        ("2", "a=1&v=2&b", True),
        ("2", "v=3", False),
        ("2", "", False),
        ("2", "V=2", False),
        ("2", "v=2&v=2", True),
        ("2", "v=2&v=3", False),  # whichever a server reads, it is 2, or the route is not taken
        ("2", "v=3&v=2", False),
        ("2", "%76=%32", True),
        ("a b", "v=a+b", True),
        ("a+b", "v=a%2Bb", True),
        ("", "v", True),
        ("", "v=", True),
        ({"present": True}, "v", True),
        ({"present": True}, "w", False),
        ({"present": False}, "w=v", True),
        ({"present": False}, "%76=", False),
        ({"like": "llama-*"}, "v=llama-3", True),
        ({"like": "llama-*"}, "v=llama-3&v=x", False),
    ],
)
def test_a_query_parameter(condition: Any, query: str, holds: bool) -> None:
    asked = conditions(query={"v": condition})
    x = exchange(f"/?{query}")
    assert asked.hold(x) is holds
    assert (asked.first_failing(x) is None) is holds


@pytest.mark.parametrize(
    ("methods", "method", "asks", "holds"),
    [
        (["GET"], "GET", None, True),
        (["GET"], "HEAD", None, True),
        (["POST"], "HEAD", None, False),
        (["POST"], "GET", None, False),
        (["POST"], "OPTIONS", None, False),
        (["POST"], "OPTIONS", "POST", True),
        (["POST"], "OPTIONS", "DELETE", False),
        (["POST"], "GET", "POST", False),
        (["OPTIONS"], "OPTIONS", "POST", True),
    ],
)
def test_a_method(methods: list[str], method: str, asks: str | None, holds: bool) -> None:
    headers = [("Access-Control-Request-Method", asks)] if asks else []
    assert conditions(methods=methods).hold(exchange("/", headers, method=method)) is holds


@pytest.mark.parametrize(
    ("one", "other", "excludes"),
    [
        ({"methods": ["GET"]}, {"methods": ["POST"]}, True),
        ({"methods": ["GET"]}, {"methods": ["HEAD"]}, False),
        ({"methods": ["GET"]}, {"headers": {"A": "1"}}, False),
        ({"headers": {"A": "1"}}, {"headers": {"a": "2"}}, True),
        ({"headers": {"A": "1"}}, {"headers": {"B": "2"}}, False),
        ({"headers": {"A": {"present": True}}}, {"headers": {"A": {"present": False}}}, True),
        ({"headers": {"A": "1"}}, {"headers": {"A": {"present": False}}}, True),
        ({"headers": {"A": "1"}}, {"headers": {"A": {"present": True}}}, False),
        ({"headers": {"A": "ab"}}, {"headers": {"A": {"like": "a*"}}}, False),
        ({"headers": {"A": "ab"}}, {"headers": {"A": {"like": "b*"}}}, True),
        ({"headers": {"A": {"like": "a*"}}}, {"headers": {"A": {"like": "b*"}}}, False),  # not told apart
        ({"query": {"a": "1"}}, {"query": {"a": "2"}}, True),
        ({"query": {"a": "1"}}, {"query": {"A": "2"}}, False),
    ],
)
def test_what_cannot_hold_together(one: dict[str, Any], other: dict[str, Any], excludes: bool) -> None:
    assert conditions(**one).excludes(conditions(**other)) is excludes
    assert conditions(**other).excludes(conditions(**one)) is excludes


def test_what_fails_is_named_but_not_a_secret() -> None:
    failing = conditions(headers={"X-Version": "2"}).first_failing(exchange())
    assert failing == "the header x-version is not '2'"
    failing = conditions(headers={"X-Api-Key": "sk-1"}).first_failing(exchange())
    assert failing == "the header x-api-key is not '***'"
    assert conditions(methods=["GET"]).first_failing(exchange(method="PUT")) == "the method is not GET or HEAD"
    failing = conditions(query={"v": {"like": "a*"}}).first_failing(exchange())
    assert failing == "the query parameter v is not like 'a*'"


def test_names_and_values_are_decoded_as_forms_are() -> None:
    assert decoded("a+b%2Bc%zz") == b"a b+c%zz"


@pytest.mark.parametrize(
    "match",
    [
        {"methods": ["get"]},
        {"methods": "GET"},
        {"headers": {"X A": "1"}},
        {"headers": {"Host": "a"}},
        {"headers": {"A": "1", "a": "2"}},
        {"headers": {"A": 2}},
        {"headers": {"A": {}}},
        {"headers": {"A": {"present": True, "like": "x"}}},
        {"host": "a.example:80"},
        {"host": "a.*.example"},
        {"host": "*"},
        {"host": ""},
        {"priority": 5000},
        {"path": "/{a}{b}"},
    ],
)
def test_a_match_that_makes_no_sense_is_refused(match: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Match.model_validate_json(json.dumps(match))
