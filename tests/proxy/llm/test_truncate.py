"""What goes of a prompt that is too long, and what never does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.context import ANSWER_TOKENS, MESSAGE_TOKENS
from proxy.llm.shorten import MARK
from proxy.llm.truncate import last_window, tokens_of, truncated
from tests.proxy.llm.test_segments import texts, words


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TALK = [
    said("system", "be brief"),
    said("user", "one two three"),
    said("assistant", None, tool_calls=[CALL]),
    said("tool", "four five", tool_call_id="c"),
    said("assistant", "six"),
    said("developer", "be polite"),
    said("user", "seven eight"),
    said("assistant", "nine"),
    said("user", "ten"),
]


def test_tokens_of_messages_and_prompts() -> None:
    assert tokens_of("a b c", words) == tokens_of(["a b c"], words) == 3
    assert tokens_of([1, 2, 3, 4], words) == tokens_of([[1, 2, 3, 4]], words) == 4
    assert tokens_of([said("user", "a b")], words) == MESSAGE_TOKENS + 2 + ANSWER_TOKENS
    assert tokens_of(None, words) == 0


def test_the_oldest_turns_go_whole_and_the_system_stays() -> None:
    all_of_it = tokens_of(TALK, words)
    whole = truncated(TALK, all_of_it, None, words)
    assert whole is not None
    assert whole.value == TALK
    cut = truncated(TALK, all_of_it - 1, None, words)
    assert cut is not None
    assert cut.value == [TALK[0], *TALK[5:]]
    assert cut.tokens == tokens_of(cut.value, words) < all_of_it
    least = [TALK[0], TALK[5], TALK[8]]
    last = truncated(TALK, tokens_of(least, words), None, words)
    assert last is not None
    assert last.value == least
    assert truncated(TALK, tokens_of(least, words) - 1, None, words) is None


def test_a_message_loses_sentences_when_it_is_too_long_by_itself() -> None:
    story = " ".join(f"This is sentence {i}." for i in range(100))
    talk = [said("system", "be brief"), said("user", [{"type": "text", "text": story}, {"type": "image_url"}])]
    cut = truncated(talk, 120, "middle", words)
    assert cut is not None
    assert cut.tokens == tokens_of(cut.value, words) <= 120
    assert cut.value[0] == talk[0]
    text = cut.value[1]["content"][0]["text"]
    before, mark, after = text.partition(f" {MARK} ")
    assert mark
    assert before.startswith("This is sentence 0. ")
    assert before.endswith(".")
    assert after.startswith("This is")
    assert after.endswith("sentence 99.")
    assert talk[1]["content"][0]["text"] == story
    assert truncated(talk, 120, None, words) is None


def test_the_longest_texts_go_first() -> None:
    talk = [said("user", "w " * 200), said("tool", "v " * 50, tool_call_id="c")]
    cut = truncated(talk, 150, "start", words)
    assert cut is not None
    assert cut.value[1] == talk[1]
    assert cut.value[0]["content"].startswith(MARK)


@pytest.mark.parametrize("prompt", ["w " * 100, ["w " * 100]])
def test_prompts_lose_text(prompt: Any) -> None:
    cut = truncated(prompt, 50, "end", words)
    assert cut is not None
    assert type(cut.value) is type(prompt)
    assert 40 <= cut.tokens <= 50
    assert truncated(prompt, 50, None, words) is None


def test_several_prompts_have_room_each() -> None:
    cut = truncated(["w " * 100, "v v", [1] * 60], 50, "end", words)
    assert cut is not None
    assert cut.value[1:] == ["v v", [1] * 50]
    assert tokens_of(cut.value, words) == cut.tokens
    assert 40 <= words(cut.value[0]) <= 50
    assert truncated(["v v", "w " * 100], 50, None, words) is None


def test_prompts_of_tokens_lose_the_oldest() -> None:
    ids = list(range(100))
    assert truncated(ids, 30, None, words) == (ids[70:], 30)
    assert truncated([ids], 30, None, words) == ([ids[70:]], 30)
    assert truncated(ids, 0, "middle", words) is None


@pytest.mark.parametrize("value", [None, 7, {}, [], [{}], [{"role": 3, "content": {"a": 1}}], [None, "x"], [[["x"]]]])
def test_what_is_no_prompt_is_left_as_it_is(value: Any) -> None:
    cut = truncated(value, 100, "middle", words)
    assert cut is None or cut.value == value
    assert last_window(value, 100, 20, 10, words) is None


messages = st.lists(
    st.builds(said, st.sampled_from(["system", "user", "assistant", "tool", "developer"]), texts | st.none()),
    max_size=8,
)


@given(messages, st.integers(0, 200), st.sampled_from([None, "start", "middle", "end"]))
def test_what_is_left_fits_keeps_its_order_and_the_system(talk: list[dict[str, Any]], room: int, inside: Any) -> None:
    cut = truncated(talk, room, inside, words)
    if cut is None:
        return
    assert cut.tokens == tokens_of(cut.value, words) <= room
    system = [each for each in talk if each["role"] in ("system", "developer")]
    assert [each for each in cut.value if each["role"] in ("system", "developer")] == system
    roles = iter(each["role"] for each in talk)
    assert all(each["role"] in roles for each in cut.value)
    if tokens_of(talk, words) <= room:
        assert cut.value == talk


def test_of_a_long_document_the_last_window_is_sent() -> None:
    document = "".join(f"line {i}\n" for i in range(100))
    talk = [said("user", "what is in it?"), said("user", document)]
    cut = last_window(talk, 100, 40, 20, words)
    assert cut is not None
    assert cut.value[0] == talk[0]
    assert cut.value[1]["content"] == "".join(f"line {i}\n" for i in range(80, 100))
    longer = last_window([talk[0], said("user", document + "line 100\n")], 100, 40, 20, words)
    assert longer is not None
    assert longer.value[1]["content"].startswith("line 90\n")
    assert last_window(talk, 30, 40, 20, words) is None
    assert last_window([said("user", "short")], 100, 40, 20, words) is None
