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
