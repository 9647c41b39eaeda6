"""How long an attempt may take: the client's deadline, and the upstream's times, by a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from proxy.answer_times import said_too_late, stop_at, too_slow
from proxy.config import Timeouts
from proxy.deadline import Deadline
from proxy.exchange import Exchange
from tests.proxy.make import exchange

TABLE = Timeouts.model_validate({"first_byte": "30s", "idle": "10s", "total": "100s"})


@dataclass
class Connection:
    heard_at: float = 0.0
    reading_paused: bool = False
    writing_paused: bool = False


def asked(deadline: Deadline | None, upstream: str = "app") -> Exchange:
    return exchange(deadline=deadline, upstream=upstream)


def given_up(now: float, connection: Connection | None = None, **facts: Any) -> str:
    how = {"begun": False, "uploading": False, "content_since": None, **facts}
    upstream: Any = connection or Connection()
    return too_slow(asked(None), TABLE, upstream, now, **how)


@pytest.mark.parametrize(
    ("deadline", "upstream", "begun", "at"),
    [
        (None, "app", False, inf),
        (Deadline(5.0), "app", True, 5.0),
        (Deadline(5.0, 2.0), "app", False, 2.0),
        (Deadline(5.0, 2.0), "app", True, 5.0),  # a client's timeout is for the beginning
        (Deadline(2.0, 5.0), "app", False, 2.0),
        (Deadline(5.0), "engine", True, 5.1),  # which says by then itself what it has used
    ],
)
def test_the_clients_deadline_stops_an_attempt(
    deadline: Deadline | None, upstream: str, begun: bool, at: float
) -> None:
    assert stop_at(asked(deadline, upstream), begun) == at


@pytest.mark.parametrize(
    ("status", "upstream", "now", "is_word"),
    [(408, "engine", 4.95, True), (408, "engine", 4.8, False), (408, "app", 5.0, False), (503, "engine", 5.0, False)],
)
def test_only_our_engine_says_that_it_is_too_late(status: int, upstream: str, now: float, is_word: bool) -> None:
    assert said_too_late(asked(Deadline(5.0), upstream), status, now) is is_word


def test_a_408_without_a_deadline_is_the_engines_own() -> None:
    assert not said_too_late(asked(None, "engine"), 408, 5.0)


def test_until_the_answer_begins_it_has_the_time_of_a_first_byte() -> None:
    assert given_up(30.0) == ""
    assert given_up(30.1) == "no first byte within 30 s"


@pytest.mark.parametrize("facts", [{"begun": True}, {"uploading": True}])
def test_then_or_while_the_request_is_sent_no_pause_may_be_long(facts: dict[str, bool]) -> None:
    connection = Connection(heard_at=20.0, writing_paused=True)
    assert given_up(30.0, connection, **facts) == ""
    assert given_up(30.1, connection, **facts) == "no byte for 10 s"


def test_a_clients_pauses_are_not_the_upstreams() -> None:
    assert given_up(99.0, Connection(reading_paused=True), begun=True) == ""
    assert given_up(99.0, uploading=True) == ""  # it has room: the client is to send
    assert given_up(100.1, Connection(reading_paused=True), begun=True) == "not complete after 100 s"


def test_a_stream_that_has_begun_has_the_time_of_a_first_byte_until_its_content() -> None:
    talking = Connection(heard_at=39.0)
    assert given_up(40.0, talking, begun=True, content_since=10.0) == ""
    assert given_up(40.1, talking, begun=True, content_since=10.0) == "no content within 30 s"


def test_nothing_is_given_up_by_a_table_without_an_end() -> None:
    upstream: Any = Connection(heard_at=1e6)
    assert too_slow(asked(None), Timeouts(), upstream, 1e6, True, False, None) == ""
