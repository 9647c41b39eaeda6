"""Who may say how urgent a request is, and what a deadline comes to."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.deadline import MAX_S, Deadline, read_deadline, read_timeout
from proxy.exchange import Exchange
from proxy.keys import Allowed, KeyEntry
from tests.proxy.make import chain, exchange

MAY = KeyEntry("a", "sha256:" + "0" * 64, "", allow=Allowed(priority=True))
MAY_NOT = MAY._replace(allow=Allowed())


def asked(fields: dict[str, str], key: KeyEntry | None = MAY_NOT, now: float = 0.0, **config: Any) -> Exchange:
    x = exchange(headers=list(fields.items()), key=key)
    assert chain({"priority": config}).admit(x, now) is None
    return x


def refused(fields: dict[str, str], now: float = 0.0) -> tuple[int, str]:
    reply = chain({"priority": {}}).admit(exchange(headers=list(fields.items()), key=MAY), now)
    assert reply is not None
    return reply.status, json.loads(reply.body)["detail"]


@pytest.mark.parametrize(
    ("key", "config", "sent"),
    [(MAY, {}, b"high"), (MAY_NOT, {}, None), (None, {}, None), (MAY_NOT, {"default": "low"}, b"low")],
)
@pytest.mark.parametrize("field", ["X-Priority", "headrace-priority"])
def test_only_keys_that_may_are_heard(field: str, key: KeyEntry | None, config: dict[str, Any], sent: object) -> None:
    x = asked({field: "High"}, key, **config)
    assert dict(x.add).get(b"headrace-priority") == sent
    assert {b"x-priority", b"headrace-priority"} <= x.drop  # the client's own never goes further


def test_a_level_that_is_none_is_told() -> None:
    assert refused({"X-Priority": "urgent"}) == (400, "X-Priority must be one of high, normal, low.")


@pytest.mark.parametrize(
    ("fields", "config", "left_s"),
    [
        ({}, {}, (inf, inf)),
        ({"X-Request-Deadline": "1500ms"}, {}, (1.5, inf)),
        ({"headrace-deadline": "2s"}, {}, (2.0, inf)),
        ({"X-Request-Deadline": "2023-11-14T22:13:30Z"}, {}, (10.0, inf)),  # the clock says 22:13:20
        ({"X-Request-Deadline": "1h"}, {"longest": "5m"}, (300.0, inf)),
        ({}, {"longest": "5m"}, (300.0, inf)),
        ({"x-stainless-timeout": "600", "x-stainless-read-timeout": "20.5"}, {}, (inf, 20.5)),
        ({"x-stainless-timeout": "soon"}, {}, (inf, inf)),
        ({"x-stainless-timeout": "0"}, {}, (inf, inf)),
        ({"Patience": "3s"}, {"timeouts": ["Patience"]}, (inf, 3.0)),
    ],
)
def test_deadlines(fields: dict[str, str], config: dict[str, Any], left_s: tuple[float, float]) -> None:
    deadline = asked(fields, **config).deadline
    assert ((deadline.end_at, deadline.begin_at) if deadline else (inf, inf)) == pytest.approx(left_s)


@pytest.mark.parametrize("text", ["2", "soon", "2023-11-14T22:13:30", "-1s", "1e9s", ""])
def test_a_deadline_that_is_none_is_told(text: str) -> None:
    status, message = refused({"X-Request-Deadline": text}) if text else (400, "X-Request-Deadline must be a duration")
    assert status == 400
    assert message.startswith("X-Request-Deadline must be a duration")


def test_what_has_passed_already_is_refused_and_not_to_be_repeated() -> None:
    assert refused({"X-Request-Deadline": "2023-11-14T22:13:19Z"})[0] == 408
    assert refused({"x-stainless-timeout": "1"}, now=1.0)[0] == 408  # while it waited here


def test_what_is_left_goes_on() -> None:
    assert Deadline(12.5, 11.0).fields(10.0) == b"headrace-deadline: 2500ms\r\nheadrace-timeout: 1000ms\r\n"
    assert Deadline(end_at=10.0).fields(10.0) == b"headrace-deadline: 1ms\r\n"
    assert not Deadline(begin_at=11.0).passed(12.0, begun=True)
    assert Deadline(begin_at=11.0).passed(12.0, begun=False)


@given(st.text(max_size=40), st.floats(0, 4e9))
def test_any_text_is_a_bounded_time_or_none(text: str, wall: float) -> None:
    deadline, timeout = read_deadline(text, wall), read_timeout(text)
    assert deadline is None or deadline <= MAX_S
    assert timeout is None or 0 < timeout < MAX_S
