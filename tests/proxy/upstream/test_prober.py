"""What a check asks for, by the server it asks."""

from __future__ import annotations

import pytest

from proxy.config import Defaults, Upstream
from proxy.policy import States
from proxy.upstream.breaker import Breaker
from proxy.upstream.metrics import UpstreamMetrics
from proxy.upstream.prober import Prober, check_request, host_of
from proxy.upstream.servers import ServerEnv
from proxy.upstream.upstream import build_upstream
from tests.proxy.make import exchange, proxy_config


def upstream(**table: object) -> Upstream:
    return proxy_config(upstreams={"app": table}).upstreams["app"]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://10.0.0.5:8080", "10.0.0.5:8080"),
        ("http://app.internal:80", "app.internal"),
        ("https://app.internal", "app.internal"),
        ("https://app.internal:80", "app.internal:80"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("unix:/run/app.sock", "localhost"),
    ],
)
async def test_the_host_is_the_servers_own(url: str, host: str) -> None:
    table = upstream(servers=[url])
    built = build_upstream("app", table, Defaults(), {}, ServerEnv(States()), Breaker(table.breaker))
    assert host_of(built.servers[0]) == host


async def test_only_configured_checks_and_names_are_watched() -> None:
    table = upstream(servers=["http://10.0.0.5:80", "http://10.0.0.6:80"])
    env = ServerEnv(States())
    assert build_upstream("app", table, Defaults(), {}, env, Breaker(table.breaker)).watchers == ()
    table = upstream(servers=["http://10.0.0.5:80", "http://10.0.0.6:80"], health={"path": "/healthz"})
    watchers = build_upstream("app", table, Defaults(), {}, env, Breaker(table.breaker)).watchers
    assert [type(watcher) for watcher in watchers] == [Prober, Prober]


async def test_checks_connections_and_standing_outlive_a_reload_as_long_as_their_tables_stay() -> None:
    keys: dict[str, object] = {"servers": ["http://a.internal:80", "http://b.internal:80"], "health": {"path": "/"}}
    table = upstream(**keys)
    breaker = Breaker(table.breaker)
    states = States()
    before = build_upstream("app", table, Defaults(), {}, ServerEnv(states), breaker)
    for changed in ({"balance": "round_robin"}, {"servers": [{"url": "http://a.internal:80", "weight": 5}]}):
        after = build_upstream(
            "app", upstream(**{**keys, **changed}), Defaults(), {}, ServerEnv(States(states)), breaker
        )
        kept = len(after.servers) == 2
        assert (after.servers[0] is before.servers[0]) is kept
        assert (after.servers[0].resolver in before.watchers) is kept
    dns = build_upstream("app", upstream(**keys, dns={"ttl": "1s"}), Defaults(), {}, ServerEnv(States(states)), breaker)
    assert dns.servers[0] is not before.servers[0]
    assert dns.states[0] is before.states[0]


async def test_panic_is_a_metric_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headrace.proxy")
    table = upstream(servers=["http://10.0.0.5:80", "http://10.0.0.6:80", "http://10.0.0.7:80"])
    env = ServerEnv(States())
    built = build_upstream("app", table, Defaults(), {}, env, Breaker(table.breaker))
    gauge, counter = UpstreamMetrics(env.cells, "app").panic, UpstreamMetrics(env.cells, "app").panics
    for state in built.states[:2]:
        state.set_up(False)
    built.choose(exchange(), 0.0, 0.5)
    assert (gauge.value, counter.value) == (1.0, 1.0)
    built.states[0].set_up(True)
    built.choose(exchange(), 0.0, 0.5)
    assert (gauge.value, counter.value) == (0.0, 1.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "all are used (panic)" in caplog.text


def test_the_key_of_the_upstream_is_sent() -> None:
    asked = check_request("/v1/models", "gpu1:8000", b"Bearer sk-1")
    assert asked.endswith(b"\r\nConnection: close\r\nAuthorization: Bearer sk-1\r\n\r\n")
