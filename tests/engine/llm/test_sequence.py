"""What a sequence says of each token: text, why it ended, and the log probabilities that belong to the text."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from hypothesis import given
from hypothesis import strategies as st

from engine.llm.detokenize import TextStream
from engine.llm.sampler import Sampler
from engine.llm.sampling import Choice, Sampling
from engine.llm.sequence import Progress, Sequence

END = 999


def sequence(*, stops: SequenceOf[str] = (), max_tokens: int = 100, min_tokens: int = 0) -> Sequence:
    return Sequence(
        deliver=lambda event: None,
        arrived_at=0.0,
        tokens=[0],
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        sampler=Sampler(Sampling(), lambda: 0.0),
        text=TextStream(stops),
        end_ids={END},
    )


def say(answer: Sequence, tokens: SequenceOf[bytes], *, ended: bool = True) -> list[Progress]:
    """What is said of these tokens, whose ids are their places, and of an end token after them."""
    said = []
    for at, token in enumerate([*tokens, b""] if ended else tokens):
        progress = answer.take(Choice(END if at == len(tokens) else at, -float(at)), token)
        if progress is not None:
            said.append(progress)
            if progress.finish_reason is not None:
                break
    return said


def ids(progress: Progress) -> list[int]:
    return [choice.token for choice in progress.logprobs]


def test_log_probabilities_go_with_their_text() -> None:
    said = say(sequence(), [b"a", "é".encode()[:1], "é".encode()[1:], b"", b"b"])
    assert [(each.text, ids(each)) for each in said] == [("a", [0]), ("é", [1, 2]), ("b", [3, 4]), ("", [])]


def test_text_that_waits_for_a_stop_string_keeps_its_log_probabilities() -> None:
    said = say(sequence(stops=["cde"]), [b"ab", b"c", b"d", b"x", b"bc", b"d", b"e"])
    assert [(each.text, ids(each)) for each in said] == [("ab", [0]), ("cdx", [1, 2, 3]), ("b", [4]), ("", [])]
    assert said[-1].finish_reason == "stop"


def test_an_end_gives_the_log_probabilities_of_what_left_no_text() -> None:
    (only,) = say(sequence(max_tokens=2), ["🔥".encode()[:1], "🔥".encode()[1:2]])
    assert (only.text, only.finish_reason, ids(only)) == ("", "length", [0, 1])


def test_nothing_stops_an_answer_before_min_tokens() -> None:
    answer = sequence(stops=["ab"], min_tokens=3)
    said = say(answer, [b"a", b"b", b"a", b"b", b"c"])
    assert "".join(each.text for each in said) == "ab"
    assert answer.num_output_tokens == 4


@given(
    tokens=st.lists(st.binary(min_size=0, max_size=3).map(lambda raw: bytes(b"abc\xc3\xa9"[b % 5] for b in raw))),
    stops=st.lists(st.text(st.sampled_from("abcé"), min_size=1, max_size=3), max_size=2),
    ended=st.booleans(),
)
def test_every_token_of_the_text_is_said_once_in_order(tokens: list[bytes], stops: list[str], ended: bool) -> None:
    answer = sequence(stops=stops)
    said = say(answer, tokens, ended=ended)
    told = [token for each in said for token in ids(each)]
    assert told == list(range(len(told)))
    shown = 0
    for each in said:
        shown += len(each.text)
        if each.finish_reason == "stop" and not answer.text.stopped:
            assert told == list(range(len(tokens)))
    if answer.text.stopped:
        begins = [len(b"".join(tokens[:at]).decode(errors="replace")) for at in told]
        assert all(begin <= shown for begin in begins)
