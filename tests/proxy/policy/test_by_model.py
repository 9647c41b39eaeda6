"""A model's promise of first tokens: what the end of a request says of it, and where requests go when it is broken."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.cells import Cells
from proxy.config import Breaker as BreakerConfig
from proxy.config_models import ModelRoute as ModelRouteTable
from proxy.exchange import Ending, Exchange, Outcome
from proxy.llm.slo import RECORD_SIZE, ROW_SIZE, FirstTokens
from proxy.model_routes import ModelRoutes
from proxy.policy.by_model import NAME, ByModel, _Metrics
from proxy.shared.columns import LocalColumns
from proxy.shared.record import LocalRecord
from proxy.upstream.breaker import Breaker
from tests.proxy.make import exchange

MODELS = ModelRoutes({"chat": ModelRouteTable.model_validate({"upstreams": ({"to": "a"},)})}, ("chat",))


class Promise:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, float]] = []

    def told(self, first_token_s: float, _now: float) -> None:
        self.heard.append(("told", first_token_s))

    def waited(self, for_s: float, _now: float) -> None:
        self.heard.append(("waited", for_s))


def heard(ending: Ending, *, first_byte_at: float = 0.0, first_token_at: float = 0.0, stream: bool = True) -> Any:
    """What the promise hears of a request that was admitted at 1 and ended at 9."""
    promise: Any = Promise()
    policy = ByModel(MODELS, {}, {"chat": promise}, lambda: 0.5, _Metrics(Cells(), MODELS), b"")
    x: Exchange = exchange(admitted_at=1.0, first_byte_at=first_byte_at, first_token_at=first_token_at)
    route = MODELS.served[0]
    x.scratch[NAME], x.served_by = route, route.targets[0]
    if stream:
        x.body = _Streaming()  # type: ignore[assignment]
    policy.settle(x, Outcome(ending, 200), 9.0)
    return promise.heard


class _Streaming:
    class llm:
        stream = True
        model = "chat"


@pytest.mark.parametrize("ending", [Ending.COMPLETE, Ending.CLIENT_GONE])
def test_a_first_token_is_told(ending: Ending) -> None:
    assert heard(ending, first_byte_at=2.0, first_token_at=3.0) == [("told", 2.0)]


@pytest.mark.parametrize("ending", [Ending.UPSTREAM_ERROR, Ending.UPSTREAM_ABORTED])
def test_the_first_token_of_an_answer_that_failed_counts_only_if_it_was_late(ending: Ending) -> None:
    assert heard(ending, first_byte_at=2.0, first_token_at=3.0) == [("waited", 2.0)]


@pytest.mark.parametrize("ending", [Ending.UPSTREAM_ERROR, Ending.UPSTREAM_ABORTED, Ending.CLIENT_GONE])
def test_a_stream_that_began_and_showed_nothing_was_waited_for(ending: Ending) -> None:
    assert heard(ending, first_byte_at=2.0) == [("waited", 8.0)]


def test_a_whole_answer_says_nothing_of_first_tokens() -> None:
    assert heard(Ending.COMPLETE, first_byte_at=2.0, stream=False) == []
    assert heard(Ending.UPSTREAM_ABORTED, first_byte_at=2.0, stream=False) == []
    assert heard(Ending.UPSTREAM_FAILED, stream=False) == [("waited", 8.0)]


def test_while_first_tokens_come_too_late_requests_go_to_the_lighter_model_and_one_in_twenty_goes_to_see() -> None:
    table = ModelRouteTable.model_validate
    tables = {
        "chat": table({"upstreams": ({"to": "a"},), "degrade_to": "light"}),
        "light": table({"upstreams": ({"to": "b"},)}),
    }
    models = ModelRoutes(tables, ("chat",))
    promise: Any = _Broken()
    drawn, told = [0.5], []
    breakers: Any = {"a": Breaker(BreakerConfig())}
    policy = ByModel(models, breakers, {"chat": promise}, lambda: drawn[0], _Metrics(Cells(), models), b"", told.append)

    def first() -> str:
        x = exchange(method="POST", has_body=True)
        x.body = _Streaming()  # type: ignore[assignment]
        x.scratch[NAME] = models.served[0]
        assert policy.admit(x, 0.0) is None
        assert x.targets is not None
        return x.targets[0].route

    assert first() == "chat"
    promise.is_broken = True
    assert first() == "light"
    drawn[0] = 0.04
    assert first() == "chat"
    promise.is_broken, drawn[0] = False, 0.5
    assert first() == "chat"
    assert [(event["kind"], event["model"], event["degraded"]) for event in told] == [
        ("degrade", "chat", True),
        ("degrade", "chat", False),
    ]


def test_a_degraded_model_is_told_once_for_the_box_and_by_every_worker_to_its_metric() -> None:
    table = ModelRouteTable.model_validate
    tables = {
        "chat": table({"upstreams": ({"to": "a"},), "degrade_to": "light", "when": {"min_requests": 1}}),
        "light": table({"upstreams": ({"to": "b"},)}),
    }
    models = ModelRoutes(tables, ("chat",))
    record, rows = LocalRecord(RECORD_SIZE), ([0.0] * ROW_SIZE, [0.0] * ROW_SIZE)
    promises = [FirstTokens(models.served[0].when, record, LocalColumns(ROW_SIZE, each)) for each in (rows, rows[::-1])]
    told: list[Any] = []
    metrics = [_Metrics(Cells(), models) for _ in range(3)]

    def build(worker: int, cells: int) -> ByModel:
        breakers: Any = {"a": Breaker(BreakerConfig())}
        promise = {"chat": promises[worker]}
        return ByModel(models, breakers, promise, lambda: 0.5, metrics[cells], b"", told.append)

    workers = [build(0, 0), build(1, 1)]

    def each_hears(now: float) -> list[bool]:
        for policy in workers:
            x = exchange(method="POST", has_body=True)
            x.body = _Streaming()  # type: ignore[assignment]
            x.scratch[NAME] = models.served[0]
            assert policy.admit(x, now) is None
        return [event["degraded"] for event in told]

    assert each_hears(0.0) == []
    promises[0].told(9.0, 10.0)
    assert each_hears(20.0) == [True]
    workers.append(build(1, 2))  # by a reload, or of another route
    assert each_hears(30.0) == [True]
    assert [each.degraded["chat"].value for each in metrics] == [1.0, 1.0, 1.0]
    assert each_hears(100.0) == [True, False]
    assert each_hears(110.0) == [True, False]
    promises[1].told(9.0, 120.0)
    assert each_hears(130.0) == [True, False, True]


class _Broken:
    is_broken = False
    is_told = False

    def turned(self, degraded: bool) -> bool:
        before, self.is_told = self.is_told, degraded
        return before is not degraded

    def broken(self, _now: float) -> bool:
        return self.is_broken
