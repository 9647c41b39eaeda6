"""Paths, by vectors; and what must hold for every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy.paths import BadPath, normalise

VECTORS = yaml.safe_load((Path(__file__).parents[1] / "vectors/proxy/paths.yaml").read_text())
PIECES = ["a", "b.", "..", ".", "%2e", "%2E", "%61", "%2f", "%41", "%25", ";", "", "...", "~", "%zz"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["path"] or "empty")
def test_B10_B11_paths(vector: dict[str, Any]) -> None:
    if "refused" in vector:
        with pytest.raises(BadPath, match=vector["refused"]):
            normalise(vector["path"])
    else:
        assert normalise(vector["path"]) == (vector["match"], vector["send"])


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=3).map("".join), max_size=6))
def test_what_is_sent_is_matched_as_itself_and_no_dot_segment_is_left(segments: list[str]) -> None:
    try:
        match, send = normalise("/" + "/".join(segments))
    except BadPath:
        return
    assert normalise(send) == (match, send)
    for path in (match, send):
        dots = path.replace("%2e", ".").replace("%2E", ".").split("/")
        assert not {".", ".."} & set(dots)
    assert "//" not in match


def test_a_refusal_does_not_echo_the_path() -> None:
    with pytest.raises(BadPath) as caught:
        normalise("/<script>%zz")
    assert "script" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("/p/a%2fb", "/p/a%2Fb"),
        ("/p/a%2F.b%2f..c", "/p/a%2F.b%2F..c"),
        ("/x/../a%2fb", "/a%2Fb"),
        ("/p/a%2f..%2fadmin", None),
        ("/p/..%2fadmin", None),
        ("/p/%2e%2e%2fadmin", None),
        ("/p/a%2f..;x", None),
        ("/p/a%2f.", None),
        ("/p/a%2f%2Fb", None),
        ("/p/%2fa", None),
        ("/p/a%2f", None),
        ("/p/a%5cb", None),
        ("/p/a%00", None),
    ],
)
def test_B11_an_escaped_slash_where_a_route_allows_it(path: str, match: str | None) -> None:
    if match is None:
        with pytest.raises(BadPath):
            normalise(path, encoded_slash=True)
    else:
        assert normalise(path, encoded_slash=True)[0] == match


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=3).map("".join), max_size=6))
def test_an_escaped_slash_hides_no_dot_segment(segments: list[str]) -> None:
    try:
        match, send = normalise("/" + "/".join(segments), encoded_slash=True)
    except BadPath:
        return
    assert normalise(send, encoded_slash=True) == (match, send)
    decoded = send.replace("%2f", "/").replace("%2F", "/")
    assert normalise(decoded) == (match.replace("%2F", "/"), decoded)  # decoded or not, nothing more to resolve
