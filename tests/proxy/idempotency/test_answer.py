"""Kept answers as bytes and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.exchange import Head
from proxy.idempotency.answer import StoredAnswer, is_final
from proxy.idempotency.recorder import Recorder
from tests.proxy.make import exchange

FIELDS = st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=40)), max_size=5)
ANSWERS = st.builds(
    StoredAnswer,
    st.binary(min_size=32, max_size=32),
    st.integers(200, 599),
    FIELDS.map(tuple),
    st.none() | st.binary(max_size=200),
)


@given(ANSWERS)
def test_an_answer_comes_back_as_it_was_and_a_cut_one_does_not(answer: StoredAnswer) -> None:
    data = answer.encoded()
    assert StoredAnswer.decoded(data) == answer
    with pytest.raises(ValueError, match="a kept answer is"):
        StoredAnswer.decoded(data[:-1])


def test_a_replayed_answer_is_marked_and_dated_anew() -> None:
    head = Head(201, [(b"Date", b"then"), (b"Content-Type", b"text/plain"), (b"Content-Length", b"2")])
    reply = StoredAnswer.of(bytes(32), head, b"ok").reply()
    assert reply.status == 201
    assert reply.headers == ((b"Content-Type", b"text/plain"), (b"Idempotent-Replayed", b"true"))
    assert reply.body == b"ok"


def test_a_replayed_answer_says_nothing_of_what_was_left_of_limits() -> None:
    of_limits = [b"RateLimit", b"RateLimit-Policy", b"X-RateLimit-Reset", b"x-ratelimit-remaining-tokens"]
    head = Head(200, [(name, b"0") for name in (*of_limits, b"X-Envoy-Attempt-Count", b"X-Rate")])
    assert StoredAnswer.of(bytes(32), head, b"ok").headers == ((b"X-Rate", b"0"),)


def test_of_an_answer_without_its_body_no_header_is_kept() -> None:
    assert StoredAnswer.of(bytes(32), Head(200, [(b"Set-Cookie", b"a=b")]), None).headers == ()


def test_L22_e_what_would_not_be_the_same_again_is_not_final() -> None:
    assert [status for status in (200, 201, 204, 302, 400, 404, 422, 499) if not is_final(status)] == []
    assert [status for status in (401, 402, 403, 407) if is_final(status)] == []  # a key may be mended meanwhile
    assert [status for status in (101, 408, 425, 429, 500, 502, 503, 504, 599) if is_final(status)] == []


def test_a_recorder_changes_nothing_and_keeps_no_more_than_its_bound() -> None:
    recorder = Recorder(5, lambda: None)
    assert [recorder.data(b"abc"), recorder.data(b"de"), recorder.end()] == [b"abc", b"de", b""]
    assert (recorder.complete, recorder.body) == (True, b"abcde")
    over = Recorder(5, lambda: None)
    assert over.data(b"abcdef") == b"abcdef"
    over.end()
    assert (over.complete, over.body) == (True, None)


def test_a_recorder_forgets_an_attempt_that_broke_off() -> None:
    recorder = Recorder(5, lambda: None)
    recorder.data(b"first")
    recorder.broken()
    assert not recorder.complete
    recorder.data(b"again")
    recorder.end()
    assert recorder.body == b"again"


@pytest.mark.parametrize("pieces", [[b"abc", b"d"], [b"abcd"], []], ids=["two", "one", "none"])
@pytest.mark.parametrize("known", [True, False])
def test_a_recorder_tells_of_the_end_when_it_has_all_and_before_the_last_byte_passes(
    pieces: list[bytes], known: bool
) -> None:
    passed = b""
    told: list[tuple[bytes, bytes | None, bool]] = []
    recorder = Recorder(5, lambda: told.append((passed, recorder.body, recorder.complete)))
    length = sum(map(len, pieces))
    recorder.head(exchange(), Head(200 if pieces else 204, [], length if known else None))
    for piece in pieces:
        passed += recorder.data(piece)
    assert not told
    passed += recorder.end()
    # Of an answer of no known length the last byte is that of its framing, which follows the end.
    assert told == [(b"".join(pieces[:-1] if known else pieces), b"".join(pieces), True)]
    assert passed == b"".join(pieces)


def test_a_recorder_tells_when_an_answer_says_that_it_failed_and_nobody_of_one_that_is_forgotten() -> None:
    told: list[str] = []
    failed = Recorder(5, lambda: told.append("failed"))
    failed.faulted()
    failed.end()
    assert (told, failed.complete) == (["failed"], False)
    forgotten = Recorder(5, lambda: told.append("forgotten"))
    forgotten.forget()
    forgotten.end()
    assert told == ["failed"]
