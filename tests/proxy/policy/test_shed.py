"""Who is refused first when there is no room."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from engine.admission import Admission
from engine.load_page import LoadPage
from proxy.cells import Cells
from proxy.chain import Policy
from proxy.engine_load import EngineLoad
from proxy.policy import PolicyEnv, PolicySet, States, shed
from proxy.policy.shed import Config
from tests.proxy.make import chain, exchange

CHAT = "/v1/chat/completions"


def policies(**tables: Any) -> PolicySet:
    return PolicySet.model_validate_json(json.dumps(tables))


def policy(load: EngineLoad | None, digit: str = "0", **tables: Any) -> Policy:
    """digit: all that is drawn."""
    beside = policies(**tables)
    env = PolicyEnv("r", {}, {}, States(), Cells(), None, lambda n: digit * 2 * n, beside=beside, engine_load=load)
    return shed.build(beside.shed, env)


async def statuses(
    tmp_path: Path, inside: int, digit: str = "0", retry_after: bytes = b"7", **tables: Any
) -> list[int | None]:
    """What requests of high, normal and low priority are answered while so many of ten places are taken."""
    admission = Admission(running=5, queue=5, work_s=lambda: 13.0)
    for _ in range(inside):
        admission.enter()
    entry: Any = SimpleNamespace(kind="chat", model=SimpleNamespace(admission=admission))
    page = LoadPage(str(tmp_path / "e.sock.load"), {"chat": entry})
    page.open()
    page.write(100.0)
    asked = policy(EngineLoad(str(tmp_path / "e.sock")), digit, **tables)
    replies = []
    for level in ("high", "normal", "low"):
        x = exchange(CHAT, method="POST", has_body=True)
        x.scratch["priority"] = level
        replies.append(asked.admit(x, 100.0))
    page.close()
    for reply in replies:
        assert reply is None or (b"Retry-After", retry_after) in reply.headers
    return [None if reply is None else reply.status for reply in replies]


@pytest.mark.parametrize(
    ("inside", "answers"),
    [(7, [None] * 3), (8, [None, None, 503]), (9, [None, 503, 503]), (10, [503] * 3)],
)
async def test_the_least_urgent_are_refused_first(tmp_path: Path, inside: int, answers: list[int | None]) -> None:
    assert await statuses(tmp_path, inside, priority={}) == answers


async def test_without_priorities_all_have_all_places(tmp_path: Path) -> None:
    assert await statuses(tmp_path, 9) == [None] * 3
    assert await statuses(tmp_path, 10) == [503] * 3


async def test_not_all_come_back_at_once(tmp_path: Path) -> None:
    assert await statuses(tmp_path, 10, "f", b"8") == [503] * 3


async def test_the_shares_are_the_operators(tmp_path: Path) -> None:
    assert await statuses(tmp_path, 5, priority={}, shed={"low": "50%", "normal": "100%"}) == [None, None, 503]


def test_what_has_no_body_and_what_goes_elsewhere_is_not_judged(tmp_path: Path) -> None:
    assert type(policy(None)) is Policy
    assert policy(EngineLoad(str(tmp_path / "e.sock"))).admit(exchange(CHAT), 0.0) is None


def test_where_the_engine_is_one_of_several_the_share_is_noted_for_who_forwards(tmp_path: Path) -> None:
    load = EngineLoad(str(tmp_path / "e.sock"))
    env = PolicyEnv("r", {}, {}, States(), Cells(), None, beside=policies(priority={}), engine_load=load)
    x = exchange(CHAT, method="POST", has_body=True)
    x.scratch["priority"] = "low"
    assert shed.build(Config(), replace(env, engine_alone=False)).admit(x, 0.0) is None
    assert x.scratch["shed"] == 0.8


def test_low_is_not_let_in_before_normal() -> None:
    with pytest.raises(ValidationError, match="least urgent"):
        Config.model_validate({"low": "90%", "normal": "80%"})


def test_in_flight_of_a_route_keeps_its_last_places_for_the_urgent() -> None:
    asked = chain({"priority": {"default": "normal"}, "in_flight": {"max": 10}})
    open_now = [exchange() for _ in range(10)]
    answers = [asked.admit(x, 0.0) for x in open_now]
    assert [reply is None for reply in answers] == [True] * 9 + [False]
    low = chain({"priority": {"default": "low"}, "in_flight": {"max": 10}})
    assert [low.admit(exchange(), 0.0) is None for _ in range(9)] == [True] * 8 + [False]
