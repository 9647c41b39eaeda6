"""One breaker in several real processes: exactly its permits whoever asks, also when a holder of one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.config import Breaker as BreakerConfig
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable
from proxy.upstream.breaker import RECORD_SIZE, Breaker
from proxy.upstream.breaker_table import State
from proxy.upstream.permit import Probe, Refused
from proxy.upstream.window import ROW_SIZE

ROOT = Path(__file__).resolve().parents[3]
NUM_WORKERS = 4
CONFIG = BreakerConfig.model_validate({"min_requests": 100, "open": "10s", "max_open": "60s", "probes": 10})

#: Fails until it is open; arrives 300 times after the open time, and holds what it was given.
WORKER = """
import os, sys
from proxy.upstream.permit import Probe
from tests.proxy.upstream.test_breaker_workers import attached
breaker, table = attached(int(sys.argv[1]), int(sys.argv[2]), os.getpid())
print("here", flush=True)
sys.stdin.readline()
table.look()
print("knows", flush=True)
sys.stdin.readline()
assert table.may_decide
for _ in range(25):
    breaker.admit(100.0).settle(False, 100.0)
print(breaker.state.value, flush=True)
sys.stdin.readline()
held = [permit for permit in (breaker.admit(111.0) for _ in range(300)) if isinstance(permit, Probe)]
print(len(held), flush=True)
sys.stdin.readline()
for probe in held:
    probe.settle(None, 112.0)
print(breaker.view(112.0).probes_held, flush=True)
sys.stdin.readline()
"""


def attached(fd: int, column: int, owner: int) -> tuple[Breaker, SharedTable]:
    """A worker's end of the breaker."""
    table = SharedTable.attached(fd, column)
    return Breaker(CONFIG, None, table.record("b", RECORD_SIZE), table.columns("b", ROW_SIZE), owner), table


class Worker:
    """A process that does the next thing whenever it is told to."""

    def __init__(self, table: SharedTableOwner) -> None:
        self.column = table.enter()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(table.fd), str(self.column)],
            cwd=ROOT, pass_fds=[table.fd], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def table() -> Iterator[SharedTableOwner]:
    made = SharedTableOwner()
    yield made
    made.close()


@pytest.fixture
def workers(table: SharedTableOwner) -> Iterator[list[Worker]]:
    made = [Worker(table) for _ in range(NUM_WORKERS)]
    yield made
    for worker in made:
        worker.kill()


def all_say(workers: list[Worker]) -> list[str]:
    """What they say when all of them do the next thing at once."""
    for worker in workers:
        worker.go_on()
    return [worker.says() for worker in workers]


def test_I01_I02_four_processes_give_exactly_the_permits_of_one_and_a_killed_one_loses_none(
    table: SharedTableOwner, workers: list[Worker]
) -> None:
    assert [worker.says() for worker in workers] == ["here"] * NUM_WORKERS
    assert all_say(workers) == ["knows"] * NUM_WORKERS
    # 100 failures in all are what it takes, whoever counted them: the last one to fail has opened it.
    assert State.OPEN.value in all_say(workers)
    held = [int(said) for said in all_say(workers)]
    assert sum(held) == CONFIG.probes

    lost, *others = sorted(workers, key=lambda worker: held[workers.index(worker)], reverse=True)
    lost.kill()
    table.left(lost.column)
    column = table.enter()
    assert column == lost.column
    successor, _ = attached(table.fd, column, os.getpid())
    num_lost = max(held)
    assert successor.view(111.5).probes_held == CONFIG.probes - num_lost
    # The lost ones count as given: their share of the arrivals is used up, and others come with more of them.
    given = [successor.admit(111.5) for _ in range(40 * CONFIG.probes)]
    probes = [each for each in given if isinstance(each, Probe)]
    assert len(probes) == num_lost
    assert sum(isinstance(each, Refused) for each in given) == len(given) - num_lost

    all_say(others)
    assert successor.view(112.0).probes_held == num_lost
    for probe in probes:
        probe.settle(True, 112.0)
    assert successor.state is (State.CLOSED if num_lost == CONFIG.probes else State.HALF_OPEN)
    assert successor.view(112.0).probes_held == 0
