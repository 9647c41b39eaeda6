"""What a tunnel does to its two connections, on transports that only remember."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy import tunnel as module
from proxy.tunnel import Tunnel


class Transport(asyncio.Transport):
    """Remembers what was done with it; its end is told by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.written = b""
        self.reading = False
        self.closing = self.aborted = False
        self.due = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (65536, 16384)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        assert not self.closing
        self.written += data

    def pause_reading(self) -> None:
        assert not self.closing
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.closing
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.due

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def say(self, data: bytes) -> None:
        """The peer sends this."""
        self.protocol.get_buffer(-1)[: len(data)] = data
        self.protocol.buffer_updated(len(data))

    def lose(self, exc: Exception | None = None) -> None:
        self.closing = True
        self.protocol.connection_lost(exc)


class Owner:
    def __init__(self) -> None:
        self.lost: list[Exception | None] = []

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Joined:
    """Two joined connections, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, from_client: bytes = b"", from_upstream: bytes = b"") -> None:
        self.now = 100.0
        monkeypatch.setattr(module, "time", self)
        self.client, self.upstream = Transport(), Transport()
        self.owners = Owner(), Owner()
        self.ended: list[str] = []
        self.tunnel = Tunnel(
            (self.client, self.owners[0]), (self.upstream, self.owners[1]), 10.0, lambda _, why: self.ended.append(why)
        )
        self.tunnel.join(from_client, from_upstream)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Joined:
    if not module.__file__.endswith(".py"):
        pytest.skip("compiled code takes its time from the clock")
    return Joined(monkeypatch)


def test_what_one_says_the_other_gets(joined: Joined) -> None:
    joined.client.say(b"hello")
    joined.upstream.say(b"hi ")
    joined.upstream.say(b"there")
    assert (joined.upstream.written, joined.client.written) == (b"hello", b"hi there")
    assert (joined.tunnel.bytes_in, joined.tunnel.bytes_out) == (5, 8)


def test_what_was_sent_ahead_comes_first_and_counts(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = Joined(monkeypatch, b"early", b"welcome")
    assert (ahead.upstream.written, ahead.client.written) == (b"early", b"welcome")
    assert (ahead.tunnel.bytes_in, ahead.tunnel.bytes_out) == (5, 7)
    assert ahead.client.reading
    assert ahead.upstream.reading


def test_who_does_not_take_pauses_the_other_alone(joined: Joined) -> None:
    joined.client.protocol.pause_writing()
    assert (joined.client.reading, joined.upstream.reading) == (True, False)
    joined.client.protocol.resume_writing()
    assert (joined.client.reading, joined.upstream.reading) == (True, True)
    joined.upstream.protocol.pause_writing()
    assert (joined.client.reading, joined.upstream.reading) == (False, True)


@pytest.mark.parametrize("first", ["client", "upstream"])
@pytest.mark.parametrize("reset", [False, True])
def test_the_end_of_one_closes_the_other_and_is_told_once(joined: Joined, first: str, reset: bool) -> None:
    error = ConnectionResetError() if reset else None
    lost, other = joined.client, joined.upstream
    if first == "upstream":
        lost, other = other, lost
    lost.lose(error)
    assert other.closing
    assert not other.aborted  # it gets what is still due to it
    assert joined.ended == []
    other.lose()
    assert joined.ended == [f"the {first} {'was reset' if reset else 'closed'}"]
    assert sorted(map(str, joined.owners[0].lost + joined.owners[1].lost)) == sorted([str(error), "None"])


def test_a_side_that_takes_nothing_is_ended_within_a_second(joined: Joined) -> None:
    assert joined.client.protocol.eof_received() is False
    assert joined.client.closing
    assert joined.upstream.closing
    joined.tunnel.check(joined.now + 0.4)
    assert not joined.upstream.aborted
    joined.tunnel.check(joined.now + 0.6)
    assert joined.client.aborted
    assert joined.upstream.aborted


def test_a_side_that_still_takes_what_is_due_to_it_is_given_time_but_not_for_ever(joined: Joined) -> None:
    joined.client.due = 1000
    joined.upstream.lose()
    for tenths in range(1, 103):
        joined.client.due -= 1
        joined.tunnel.check(joined.now + tenths / 10)
        assert not joined.client.aborted
    for tenths in range(103, 110):
        joined.client.due -= 1
        joined.tunnel.check(joined.now + tenths / 10)
    assert joined.client.aborted


@pytest.mark.parametrize("who", ["client", "upstream"])
def test_silence_closes_both_and_a_word_of_either_does_not(joined: Joined, who: str) -> None:
    joined.now += 9.0
    getattr(joined, who).say(b".")
    joined.tunnel.check(110.5)
    assert not joined.client.closing
    joined.tunnel.check(119.5)
    assert joined.client.closing
    assert joined.upstream.closing
    joined.client.lose()
    joined.upstream.lose()
    assert joined.ended == ["no byte either way for 10 s"]


def test_nothing_is_done_with_a_side_that_is_closing(joined: Joined) -> None:
    joined.client.close()
    joined.upstream.say(b"late")
    joined.upstream.protocol.pause_writing()
    joined.upstream.protocol.resume_writing()
    assert joined.client.written == b""
