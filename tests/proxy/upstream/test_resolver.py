"""Names of servers: asked for again and again, kept while there is no answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from proxy.upstream.resolver import Resolver, Unresolved, is_name, look_up


class Dns:
    """Answers with what is next; the last answer stays. An OSError is raised."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)
        self.num_asked = 0

    async def __call__(self, name: str) -> Sequence[str]:
        self.num_asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


GONE = OSError(-2, "Name or service not known")


def resolver(dns: Dns, *, ttl_s: float = 30.0) -> tuple[Resolver, list[str]]:
    told: list[str] = []
    built = Resolver(
        "app.internal",
        ttl_s,
        changed=lambda: told.append("changed"),
        failed=lambda: told.append("failed"),
        lookup=dns,
    )
    return built, told


async def test_a_change_is_told_and_the_same_answer_is_not() -> None:
    built, told = resolver(Dns(["10.0.0.1"], ["10.0.0.1"], ["10.0.0.2", "10.0.0.1"]))
    for _ in range(3):
        assert await built.ask()
    assert told == ["changed", "changed"]
    assert built.addresses.all == ("10.0.0.1", "10.0.0.2")


async def test_the_last_good_answer_stays_while_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.proxy")
    built, told = resolver(Dns(["10.0.0.1"], GONE, [], GONE, ["10.0.0.1"]))
    await built.ask()
    for _ in range(3):
        assert not await built.ask()
    assert built.addresses.all == ("10.0.0.1",)
    await built.ready()
    await built.ask()
    assert told == ["changed", "failed", "failed", "failed"]
    assert [record.getMessage() for record in caplog.records] == [
        "the name app.internal does not resolve: Name or service not known; its last addresses stay in use",
        "the name app.internal resolves again",
    ]


async def test_a_name_that_never_resolved_says_why_and_is_asked_for_again() -> None:
    dns = Dns(GONE, GONE, ["10.0.0.1"])
    built, _ = resolver(dns, ttl_s=0.001)
    built.start()
    try:
        with pytest.raises(Unresolved, match=r"its name app\.internal does not resolve: Name or service not known"):
            await built.ready()
        async with asyncio.timeout(5.0):
            while not built.addresses.all:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await built.ready()
    finally:
        built.close()


async def test_who_comes_before_the_first_answer_waits_for_it() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> Sequence[str]:
        asked.set()
        await answer.wait()
        return ["10.0.0.1"]

    built = Resolver("app.internal", 30.0, lookup=slow)
    built.start()
    waiting = asyncio.create_task(built.ready())
    await asked.wait()
    assert not waiting.done()
    answer.set()
    await waiting
    built.close()


async def test_closing_lets_go_of_who_waits() -> None:
    built, _ = resolver(Dns(GONE))
    waiting = asyncio.create_task(built.ready())
    await asyncio.sleep(0)
    built.close()
    with pytest.raises(Unresolved):
        await waiting


@pytest.mark.parametrize(
    ("host", "name"),
    [("app.internal", True), ("localhost", True), ("10.0.0.1", False), ("::1", False), ("fe80::1%eth0", False)],
)
def test_what_must_be_resolved(host: str, name: bool) -> None:
    assert is_name(host) is name


async def test_etc_hosts_is_asked() -> None:
    assert "127.0.0.1" in await look_up("localhost")


async def test_what_cannot_be_a_name_is_a_failure_and_not_a_crash() -> None:
    built = Resolver("x" * 70 + ".example", 30.0)
    assert not await built.ask()
