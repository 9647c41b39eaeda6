"""Paths with placeholders: how they read, what they match, and what stands where they are in the path that is sent."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.paths import BadPath, normalise
from proxy.patterns import after_segments, parse_pattern


@pytest.mark.parametrize("text", ["/", "/*", "/a", "/a/", "/a/*", "/users/{id}/posts", "/v{n}.json", "/{a}/{rest*}"])
def test_a_path_reads_back(text: str) -> None:
    assert parse_pattern(text).text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", "is not a path; write /exact, /prefix/* or /users/{id}"),
        ("/a*", "placeholders like {id}, one in a segment"),
        ("/*/b", "only at the end"),
        ("/{a*}/b", "only at the end"),
        ("/{a}{b}", "one in a segment"),
        ("/{a", "is not a path"),
        ("/{}", "is not a path"),
        ("/{a}/{a}", "two placeholders of one name"),
        ("/{path}", "{path} is the request's own"),
        ("/a//b", "paths are compared in the form '/a/b'"),
        ("/a/../b", "paths are compared in the form '/b'"),
        ("/%61", "paths are compared in the form '/a'"),
        ("/%c3%a9", "paths are compared in the form '/%C3%A9'"),
        ("/a%2Fb", "cannot match: the path contains an escaped slash"),
        ("/%4{a}", "cannot match: the path contains a %"),
        ("/a b", "cannot match"),
        ("/\u00e9", "is matched as it comes, in ASCII"),
        ("/" + "a/" * 64, "more than 64 segments"),
    ],
)
def test_a_path_that_could_never_match_as_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_pattern(text)


@pytest.mark.parametrize(
    ("pattern", "path", "values"),
    [
        ("/users/{id}", "/users/7", {"id": "7"}),
        ("/users/{id}", "/users/%C3%a9;v=1", {"id": "%C3%a9;v=1"}),
        ("/users/{id}", "/users/", None),
        ("/users/{id}", "/users/7/", None),
        ("/users/{id}/", "/users/7/", {"id": "7"}),
        ("/users/{id}", "//users//7", {"id": "7"}),
        ("/users/{id}", "/users/;x", None),
        ("/v{n}.json", "/v1.json", {"n": "1"}),
        ("/v{n}.json", "/v.json", None),
        ("/v{n}.json", "/%76%31.%6ason", {"n": "%31"}),
        ("/v{n}.json", "/v...json", None),
        ("/v{n}.json", "/v..;a.json", None),
        ("/{n}A", "/%2A", None),  # half an escape is no value
        ("/{n}A", "/b%2AA", {"n": "b%2A"}),
        ("/f/{rest*}", "/f", {"rest": ""}),
        ("/f/{rest*}", "/f/", {"rest": ""}),
        ("/f/{rest*}", "/f/a//%62/", {"rest": "a//%62/"}),
        ("/f/{rest*}", "/%66//a", {"rest": "/a"}),
        ("/f/{rest*}", "/ff", None),
        ("/{a}/{rest*}", "/x/y", {"a": "x", "rest": "y"}),
        ("/{a}/{rest*}", "/", None),
    ],
)
def test_what_matches_and_what_the_placeholders_stand_for(
    pattern: str, path: str, values: dict[str, str] | None
) -> None:
    match, send = normalise(path)
    parsed = parse_pattern(pattern)
    assert parsed.matches(match) is (values is not None)
    if values is not None:
        assert parsed.values(send) == values


PIECES = st.lists(st.sampled_from(["a", "b", ".", "%2e", "%61", "%2A", "%", "2A", ";", "A", "v"]), max_size=4).map(
    "".join
)
PATHS = st.lists(PIECES, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))


@given(PATHS, st.sampled_from(["/{x}", "/a{x}", "/{x}A", "/{x}2A", "/v{x}b/{y}", "/{x}/{rest*}", "/%2A{x}/*"]))
def test_B11_values_are_what_was_matched_and_never_dots(path: str, text: str) -> None:
    try:
        match, send = normalise(path)
    except BadPath:
        return
    pattern = parse_pattern(text)
    if not pattern.matches(match):
        return
    values = pattern.values(send)
    assert set(values) == pattern.names
    rest = values.pop(pattern.tail_name, "")
    for value in values.values():
        plain, same = normalise(f"/{value}")  # a whole segment by itself: no dots, no half escape
        assert same == f"/{value}"
        assert "/" not in plain[1:]
    filled = "/".join(f"{each.before}{values.get(each.name, '')}{each.after}" for each in pattern.segments)
    tail = f"/{rest}" if pattern.tail_name else after_segments(send, len(pattern.segments))
    assert normalise(f"/{filled}{tail}")[0].rstrip("/") == match.rstrip("/")
