"""A document by summaries of its parts: what is asked, what it may cost, and what is put together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.places import places, replaced
from proxy.llm.summaries import Plan, Summaries, merged, plan, request_for, text_in
from proxy.llm.truncate import tokens_of
from tests.proxy.llm.test_segments import words

HOW = Summaries(prompt="Sum up.", tokens=32, most=8)
DOCUMENT = "".join(f"This is line {i}.\n" for i in range(100))
TALK = [{"role": "system", "content": "be brief"}, {"role": "user", "content": DOCUMENT}]


def planned(room: int = 400, context: int = 400, how: Summaries = HOW) -> Plan | None:
    return plan(TALK, room, context, 80, 60, how, words)


def test_the_parts_cover_the_document_and_leave_room() -> None:
    made = planned()
    assert made is not None
    assert 5 <= len(made.parts) <= 8
    assert all(words(part) <= 80 for part in made.parts)
    assert all(line in "".join(made.parts) for line in DOCUMENT.splitlines())
    assert made.tokens == 32
    cut = merged(made, ["summary " * 32] * len(made.parts), words)
    assert cut.tokens == tokens_of(cut.value, words) <= 400
    assert cut.value[0] == TALK[0]
    assert made.cost >= sum(words(part) + made.tokens for part in made.parts) + cut.tokens


def test_summaries_are_shorter_where_there_is_less_room() -> None:
    made = planned(room=250)
    assert made is not None
    assert 16 <= made.tokens < 32
    cut = merged(made, ["A sentence of five words. " * 20] * len(made.parts), words)
    assert tokens_of(cut.value, words) <= 250


@pytest.mark.parametrize(
    ("room", "context", "how"),
    [
        (150, 400, HOW),  # none of them could have sixteen tokens
        (400, 100, HOW),  # a part with its summary is longer than the context
        (400, 400, HOW.model_copy(update={"most": 4})),
    ],
)
def test_what_cannot_be_is_not_begun(room: int, context: int, how: Summaries) -> None:
    assert planned(room, context, how) is None


@pytest.mark.parametrize("value", [None, [], [{"role": "system", "content": DOCUMENT}], "short"])
def test_without_a_long_document_there_is_nothing_to_sum_up(value: Any) -> None:
    assert plan(value, 400, 400, 80, 60, HOW, words) is None


def test_what_is_asked_of_a_part() -> None:
    chat = {"model": "m", "user": "u", "messages": [], "stream": True, "tools": [], "temperature": 2}
    said = [{"role": "system", "content": "Sum up."}, {"role": "user", "content": "part"}]
    assert request_for("part", chat, HOW, 20) == {"model": "m", "user": "u", "messages": said, "max_tokens": 20}
    newer = request_for("part", {**chat, "max_completion_tokens": 7}, HOW, 20)
    assert newer == {"model": "m", "user": "u", "messages": said, "max_completion_tokens": 20}
    asked = request_for("part", {"model": "m", "prompt": "x"}, HOW, 20)
    assert asked == {"model": "m", "prompt": "Sum up.\n\npart\n\n", "max_tokens": 20}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"choices": [{"message": {"content": " short \n"}}]}, "short"),
        ({"choices": [{"text": "short"}]}, "short"),
        ({"choices": [{"message": {"content": "  "}}]}, None),
        ({"choices": [{"message": {"content": None}}]}, None),
        ({"choices": [7]}, None),
        ({"choices": {}}, None),
        ({"error": {"message": "no"}}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_text_of_a_summary(answer: Any, text: str | None) -> None:
    assert text_in(answer) == text


texts = st.text(max_size=5)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=3)
messages = st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": parts | texts})
values = texts | st.lists(texts | messages)


@given(values)
def test_every_text_is_found_in_its_place_and_can_be_replaced(value: Any) -> None:
    known = list(places(value))
    for place, text in known:
        changed = dict(places(replaced(value, place, "another")))
        assert changed[place] == "another"
        assert {**changed, place: text} == dict(known)
    assert dict(places(value)) == dict(known)
