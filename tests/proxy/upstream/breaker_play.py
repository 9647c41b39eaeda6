"""What tests of the breaker share: one that has tripped, several that share a record, and short questions to it."""

from __future__ import annotations

from proxy.config import Breaker as BreakerConfig
from proxy.shared.columns import LocalColumns, Row
from proxy.shared.record import LocalRecord
from proxy.upstream.breaker import RECORD_SIZE, Breaker
from proxy.upstream.breaker_table import SERVING
from proxy.upstream.permit import Permit, Refused
from proxy.upstream.window import ROW_SIZE

CONFIG = BreakerConfig.model_validate(
    {"window": "10s", "min_requests": 4, "failures": "50%", "open": "10s", "max_open": "35s", "probes": 1}
)


def permit(breaker: Breaker, now: float) -> Permit:
    given = breaker.admit(now)
    assert isinstance(given, Permit)
    return given


def refused(breaker: Breaker, now: float) -> float:
    given = breaker.admit(now)
    assert isinstance(given, Refused)
    return given.retry_after_s


def trip(breaker: Breaker, now: float) -> None:
    while breaker.state in SERVING:
        permit(breaker, now).settle(False, now)


def opened(config: BreakerConfig = CONFIG) -> Breaker:
    breaker = Breaker(config)
    trip(breaker, 0.0)
    return breaker


def crew(size: int, config: BreakerConfig = CONFIG) -> list[Breaker]:
    """The breakers of so many workers, which share one record."""
    record = LocalRecord(RECORD_SIZE)
    rows: list[Row] = [[0.0] * ROW_SIZE for _ in range(size)]
    return [Breaker(config, None, record, worker(rows, n), owner=n + 1.0) for n in range(size)]


def worker(rows: list[Row], number: int) -> LocalColumns:
    columns = LocalColumns(0, tuple(rows))
    columns.mine = rows[number]
    return columns


def counts(breaker: Breaker, now: float) -> tuple[float, float]:
    sums = breaker.view(now).sums
    return sums.good, sums.bad


def refuse(breaker: Breaker, now: float, ok: bool | None = None, retry_after_s: float = 0.0) -> None:
    permit(breaker, now).settle(ok, now, True, retry_after_s)
