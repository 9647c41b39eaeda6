"""One model on one device under a virtual clock: arrivals in, latencies out. Nothing sleeps, nothing is random but what
is handed in."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engine.batching.batcher import Batcher
from engine.batching.item import Item
from engine.batching.pace import Pace
from engine.batching.window import Policy

MAX_BATCH = 16


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    latencies_s: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    ended_at: float = 0.0

    @property
    def mean_s(self) -> float:
        return sum(self.latencies_s) / len(self.latencies_s)

    @property
    def throughput(self) -> float:
        return len(self.latencies_s) / self.ended_at

    def quantile_s(self, part: float) -> float:
        return sorted(self.latencies_s)[min(len(self.latencies_s) - 1, int(part * len(self.latencies_s)))]


def simulate(
    make_policy: Callable[[Pace], Policy],
    run_s: Callable[[int], float],
    arrivals: Iterator[float],
    *,
    num_jobs: int,
    size: int = 16,
    again: Callable[[], float] | None = None,
    run_cost: float = 16,
) -> Outcome:
    """run_s: what a run of so many rows really takes. arrivals: instants, ascending. again: after so long each client
    asks again (a closed loop; None: open). Ends after ``num_jobs`` answers."""
    pace = Pace(run_cost)
    batcher: Batcher[int] = Batcher(pace, max_batch=MAX_BATCH, policy=make_policy(pace))
    coming = [(at, index) for index, at in enumerate(arrivals)] if again else []
    names = iter(range(len(coming), 1 << 60))
    came: dict[int, float] = {}
    outcome, now = Outcome(), 0.0
    if not again:
        coming = [(next(arrivals), next(names))]
    while len(outcome.latencies_s) < num_jobs:
        while coming and coming[0][0] <= now:
            at, job = heapq.heappop(coming)
            came[job] = at
            batcher.add(job, [Item(None, size=size)], at)
            if not again:
                heapq.heappush(coming, (next(arrivals), next(names)))
        if not batcher.ready(now):
            at = batcher.wake_at()
            now = min(math.inf if at is None else at, coming[0][0] if coming else math.inf)
            continue
        entries = batcher.take(now)
        took_s = run_s(len(entries))
        pace.observe(len(entries), size, took_s)
        outcome.batches.append(len(entries))
        now += took_s
        while coming and coming[0][0] < now:  # during the run
            at, job = heapq.heappop(coming)
            came[job] = at
            batcher.add(job, [Item(None, size=size)], at)
            if not again:
                heapq.heappush(coming, (next(arrivals), next(names)))
        batcher.ran(now, len(entries))
        for entry in entries:
            outcome.latencies_s.append(now - came.pop(entry.job))
            if again:
                heapq.heappush(coming, (now + again(), next(names)))
    outcome.ended_at = now
    return outcome


def poisson(rate: float, seed: int = 1) -> Iterator[float]:
    """Instants of a Poisson process."""
    draw, now = random.Random(seed), 0.0
    while True:
        now += draw.expovariate(rate)
        yield now


def bursts(every_s: float, size: int, spread_s: float, seed: int = 1) -> Iterator[float]:
    """Groups of requests that come within ``spread_s``, each group ``every_s`` after the last."""
    draw, begin_at = random.Random(seed), 0.0
    while True:
        begin_at += every_s
        yield from sorted(begin_at + draw.random() * spread_s for _ in range(size))
