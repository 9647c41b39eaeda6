"""The breaker on the wire: what reaches the upstream, what the others are told, and that no permit is ever lost."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.wire.harness import OK, Answer, Edge, RawClient, UpstreamSide, answering, app, edge, eventually, raw_upstream

GET = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
NUM_CLIENTS = 1000
LIMITS = {"listener": {"limits": {"connections_per_client": 2 * NUM_CLIENTS}}}

Asked = tuple[RawClient, asyncio.Task[Answer]]


class Held:
    """An upstream that answers nothing until it is told what."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def __call__(self, side: UpstreamSide) -> None:
        while await side.request() is not None:
            gone = asyncio.ensure_future(side.gone())
            await asyncio.wait((gone, self.answer), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return
            gone.cancel()
            await side.send(await self.answer)


def state(running: Edge) -> str:
    told: str = running.worker.breakers()["app"]["state"]
    return told


async def half_open(running: Edge) -> None:
    """Have the next request find the breaker half-open."""
    running.worker.order_breakers("open", ["app"], 0.001, 0.0)
    await eventually(lambda: running.worker.breakers()["app"]["next_probe_s"] == 0)


async def ask_all(running: Edge, times: int) -> list[Asked]:
    """So many requests at once, each on its own connection, which is there before the first is sent."""
    clients = [await running.connect() for _ in range(times)]
    for client in clients:
        client.sock.send(GET)
    return [(client, asyncio.ensure_future(client.answer())) for client in clients]


async def refused(asked: list[Asked], num: int) -> list[Asked]:
    """Once ``num`` of them were refused: those that were not."""
    await eventually(lambda: sum(task.done() for _, task in asked) >= num)
    answers = [task.result() for _, task in asked if task.done()]
    assert {(answer.status, answer.get("retry-after")) for answer in answers} <= {(503, "1")}
    assert len(answers) == num
    return [(client, task) for client, task in asked if not task.done()]


@pytest.mark.parametrize("probes", [1, 10])
async def test_I01_I02_a_thousand_at_once_get_exactly_the_permits_and_a_cancelled_probe_gives_its_own_back(
    probes: int,
) -> None:
    held = Held()
    breaker = {"probes": probes, "open": "60s", "max_open": "1h"}
    async with raw_upstream(held) as upstream, edge({**app(upstream.port, breaker=breaker), **LIMITS}) as running:
        await half_open(running)
        asked = await ask_all(running, NUM_CLIENTS)
        probing = await refused(asked, NUM_CLIENTS - probes)
        await eventually(lambda: len(upstream.heads) == probes)

        leaving = (probes + 1) // 2
        for client, task in probing[:leaving]:
            task.cancel()
            client.reset()
        await eventually(lambda: running.worker.breakers()["app"]["probes"]["in_flight"] == probes - leaving)
        again = await refused(await ask_all(running, 100), 100 - leaving)
        await eventually(lambda: len(upstream.heads) == probes + leaving)

        assert state(running) == "half-open"
        held.answer.set_result(OK)
        answers = await asyncio.gather(*(task for _, task in [*probing[leaving:], *again]))
        assert [answer.status for answer in answers] == [200] * probes
        await eventually(lambda: state(running) == "closed")
        assert (await running.ask(GET)).status == 200


async def test_I02_every_kind_of_end_gives_the_place_back() -> None:
    """One probe after the other: refused by the upstream, left by its client, broken off, answered badly, answered."""
    scripts: list[bytes | None] = []

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            answer = scripts.pop(0)
            if answer is None:
                await side.gone()
                return
            await side.send(answer)
            if answer.endswith(b"half"):
                side.reset()
                return

    breaker = {"open": "1ms", "max_open": "1ms"}
    broken = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf"
    failed = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
    busy = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
    async with raw_upstream(script) as upstream, edge(app(upstream.port, breaker=breaker)) as running:
        for answer in (busy, None, broken, failed, OK):
            scripts.append(answer)
            await half_open(running)
            client = await running.connect()
            await client.send(GET)
            if answer is None:
                await eventually(lambda: not scripts)
                client.close()
                await eventually(lambda: not running.worker._relays)
            else:
                await client.rest() if answer is broken else await client.answer()
            told = running.worker.breakers()["app"]
            assert told.get("probes", {}).get("in_flight", 0) == 0
        assert state(running) == "closed"


async def test_I04_streams_that_break_off_open_the_breaker() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await side.send(b"9\r\ndata: 1\n\n\r\n" * 2)
        side.reset()

    breaker = {"min_requests": 3, "open": "30s"}
    async with raw_upstream(script) as upstream, edge(app(upstream.port, breaker=breaker)) as running:
        for _ in range(3):
            client = await running.connect()
            await client.send(GET)
            rest, _ = await client.rest()
            assert rest.startswith(b"HTTP/1.1 200 ")
        answer = await running.ask(GET)
        assert (answer.status, answer.get("retry-after")) == (503, "30")
        assert len(upstream.heads) == 3


async def test_a_forced_breaker_refuses_admits_and_judges_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.proxy")
    failing = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
    breaker = {"min_requests": 2, "open": "30s"}
    async with raw_upstream(answering(failing)) as upstream, edge(app(upstream.port, breaker=breaker)) as running:
        running.worker.order_breakers("open", ["app"], 300.0, 1.0)
        answer = await running.ask(GET)
        assert (answer.status, answer.get("retry-after")) == (503, "300")
        assert upstream.num_connections == 0
        running.worker.order_breakers("close", ["app"], None, 2.0)
        assert [(await running.ask(GET)).status for _ in range(5)] == [500] * 5
        running.worker.order_breakers("reset", ["app"], None, 3.0)
        assert [(await running.ask(GET)).status for _ in range(4)] == [500, 500, 503, 503]
        assert running.worker.breakers()["app"]["cause"] == "too many failures"
    assert [record.message for record in caplog.records if "breaker" in record.message] == [
        "upstream app: breaker closed -> open: opened by order, for 300 s",
        "upstream app: breaker open -> closed: closed by order",
        "upstream app: breaker closed -> closed: reset",
        "upstream app: breaker closed -> open: too many failures (2 of 2 requests failed), for 30 s",
    ]


async def test_a_reload_of_the_breakers_table_keeps_its_state_and_takes_its_numbers() -> None:
    from proxy.config_routes import ProxyConfig

    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        running.worker.order_breakers("open", ["app"], None, 0.0)
        assert (await running.ask(GET)).get("retry-after") == "10"
        document = running.config.model_dump(mode="json")
        document["upstreams"]["app"]["breaker"]["open"] = "7s"
        snapshot = await running.worker.build(ProxyConfig.model_validate(document, strict=False), {}, {})
        assert (await running.ask(GET)).get("retry-after") == "10"  # built, and not in force
        await running.worker.commit(snapshot)
        answer = await running.ask(GET)
        assert (answer.status, answer.get("retry-after")) == (503, "7")


async def test_a_503_that_says_when_is_not_asked_before() -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 77\r\nContent-Length: 0\r\n\r\n"
    breaker = {"min_requests": 2, "open": "10s"}
    async with raw_upstream(answering(busy)) as upstream, edge(app(upstream.port, breaker=breaker)) as running:
        answers = [await running.ask(GET) for _ in range(3)]
        assert [answer.get("retry-after") for answer in answers] == ["77"] * 3
        assert len(upstream.heads) == 2


async def test_an_upstream_that_is_slow_or_refuses_is_told_and_served_on() -> None:
    busy = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
    answers = [busy, busy, OK, OK]

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await asyncio.sleep(0.002)  # more than ``slow``
            await side.send(answers.pop(0))

    for slow, states in ((None, ["warning", "warning"]), ("1ms", ["degraded", "degraded"])):
        breaker = {"min_requests": 2, "slow": slow}
        answers[:] = [busy, busy, OK, OK]
        async with raw_upstream(script) as upstream, edge(app(upstream.port, breaker=breaker)) as running:
            told = []
            for statuses in ([429, 429], [200, 200]):
                assert [(await running.ask(GET)).status for _ in statuses] == statuses
                told.append(state(running))
            assert told == states
