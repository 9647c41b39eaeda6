"""The access log: one line whatever was sent, times where they belong, secrets nowhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.exchange import Ending, Exchange, Outcome
from proxy.llm.usage import Usage
from proxy.model_routes import Target
from proxy.policy.access_log import MAX_TARGET, MAX_TEXT, mask_query
from tests.proxy.make import COMPLETE, chain, exchange


def logged(x: Exchange, outcome: Outcome = COMPLETE, now: float = 0.0) -> dict[str, Any]:
    lines: list[bytes] = []
    served = chain({}, lines=lines)
    served.admit(x, 0.0)
    served.settle(x, outcome, now)
    (line,) = lines
    assert b"\n" not in line
    assert line.isascii()
    found: dict[str, Any] = json.loads(line)
    return found


def test_who_what_how_and_where_the_time_went() -> None:
    x = exchange("/v1/x?a=1", [("User-Agent", "curl/8")], now=100.0, method="POST", key_id="laptop")
    x.routed_at, x.admitted_at, x.connected_at, x.first_byte_at = 100.001, 100.003, 100.007, 100.015
    x.upstream, x.server, x.attempts, x.bytes_in, x.bytes_out = "app", "http://s1", 2, 10, 20
    found = logged(x, Outcome(Ending.UPSTREAM_ABORTED, 200, "reset"), 100.031)
    assert found == {
        "time": 1700000100.031,
        "id": "11" * 16,
        "client": "203.0.113.7",
        "key": "laptop",
        "method": "POST",
        "host": "a.example",
        "target": "/v1/x?a=1",
        "version": "1.1",
        "route": None,
        "upstream": "app",
        "server": "http://s1",
        "attempts": 2,
        "status": 200,
        "ending": "upstream_aborted",
        "reason": "reset",
        "bytes_in": 10,
        "bytes_out": 20,
        "route_ms": pytest.approx(1.0, abs=0.002),
        "wait_ms": pytest.approx(2.0, abs=0.002),
        "connect_ms": pytest.approx(4.0, abs=0.002),
        "first_byte_ms": pytest.approx(8.0, abs=0.002),
        "total_ms": pytest.approx(31.0, abs=0.002),
        "user_agent": "curl/8",
        "trace": f"00-{'11' * 16}-{'11' * 8}-00",
    }


def test_what_a_language_model_used_is_told_where_it_is_known() -> None:
    x = exchange()
    x.scratch["usage"] = Usage(12, 34, 5, True)
    found = logged(x)
    names = ("model", "prompt_tokens", "completion_tokens", "cached_tokens", "tokens_estimated")
    assert [found[name] for name in names] == [None, 12, 34, 5, True]
    x.settled, x.served_by = False, Target("chat \x00", "up", "m")
    assert logged(x)["model"] == "chat \\x00"
    assert not set(names) & set(logged(exchange()))


def test_a_stage_that_was_not_reached_is_null() -> None:
    found = logged(exchange(now=5.0), Outcome(Ending.REFUSED, 429), 5.5)
    assert [found[f"{stage}_ms"] for stage in ("route", "wait", "connect", "first_byte")] == [None] * 4
    assert found["total_ms"] == 500.0


def test_K01_a_decoded_path_cannot_forge_a_line() -> None:
    target = "/%0a127.0.0.1%20-%20%22GET%20/admin%22%20200"
    assert logged(exchange(target))["target"] == target


@pytest.mark.parametrize("nasty", ["\x1b[2J", "a\x80\xffb", 'quote"', "\x7f", "\r\nX: y", "back\\slash"])
def test_K01_control_and_high_bytes_are_escaped(nasty: str) -> None:
    x = exchange("/" + nasty, [("User-Agent", nasty)], method="G" + nasty, host="h" + nasty)
    found = logged(x)
    for field in ("target", "user_agent", "method", "host"):
        assert found[field].isprintable()
        assert found[field].isascii()


def test_K01_long_texts_are_cut() -> None:
    x = exchange("/" + "a" * 100_000 + "?" + "b" * 100_000, [("User-Agent", "u" * 100_000)], method="M" * 1000)
    found = logged(x)
    assert len(found["target"]) <= MAX_TARGET + 3
    assert len(found["user_agent"]) <= MAX_TEXT + 3
    assert len(found["method"]) <= 35


@pytest.mark.parametrize(
    "query",
    [
        "api_key=sk-SECRET",
        "a=1&token=%73k-SECRET&b=2",
        "%61pi%5Fkey=SECRET",
        "ACCESS_TOKEN=SECRET",
        "X-Amz-Signature=SECRET",
        "client_secret=SECRET",
        "password=SECRET&pwd=SECRET",
        "code=SECRET",
        "q=sk-SECRET",
        "q=%73%6b-SECRET",
        "q=hr_SECRET",
        "q=Bearer+SECRET",
        "key=a=SECRET",
        "accessToken=SECRET",
        "x.session-id=SECRET",
    ],
)
def test_K02_secrets_in_the_query_are_masked(query: str) -> None:
    found = logged(exchange(f"/x?{query}", [("Authorization", "Bearer sk-SECRET")]))
    assert "SECRET" not in json.dumps(found)
    assert "***" in found["target"]


@pytest.mark.parametrize(
    "query", ["", "a=1&b=2&&c", "q=desk-lamp", "page=3", "a=%20+", "secret", "author=a&design=b&country=c&keyboard=d"]
)
def test_other_parameters_are_logged_as_they_came(query: str) -> None:
    assert mask_query(query) == query


@pytest.mark.parametrize(
    "target",
    [
        "/x?a=1;token=SECRET",
        "/x#access_token=SECRET",
        "/x?a=1#access_token=SECRET",
        "/x?a?token=SECRET",
        "http://me:SECRET@a.example/x",
        "http://SECRET@a.example",
    ],
)
def test_K02_secrets_elsewhere_in_a_target_that_will_be_refused(target: str) -> None:
    found = logged(exchange(target))["target"]
    assert "SECRET" not in found
    assert "***" in found


def test_K02_a_cut_query_does_not_unmask() -> None:
    found = logged(exchange("/x?" + "a=1&" * 1000 + "token=SECRET"))
    assert "SECRET" not in found["target"]


def test_it_can_be_switched_off() -> None:
    lines: list[bytes] = []
    served, x = chain({"access_log": {"enabled": False}}, lines=lines), exchange()
    served.admit(x, 0.0)
    served.settle(x, COMPLETE, 0.0)
    assert lines == []
