"""Processes on one shared table, for tests: several that contend for it, and one that is killed between two stores."""

from __future__ import annotations

import opcode
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from proxy.shared import limit as limit_module
from proxy.shared.layout import Geometry
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable

ROOT = Path(__file__).resolve().parents[3]
SMALL = Geometry(limits=4, keys=64, permits=64, records=4, tallies=2, columns=8)
NUM_WORKERS = 4
SHARED = str(Path(limit_module.__file__).parent)
STORE_SUBSCR = opcode.opmap["STORE_SUBSCR"]


@pytest.fixture
def owner() -> Iterator[SharedTableOwner]:
    made = SharedTableOwner(SMALL)
    yield made
    made.close()


def two_workers(owner: SharedTableOwner) -> tuple[SharedTable, SharedTable]:
    columns = [owner.enter(), owner.enter()]
    first, second = (SharedTable.attached(owner.fd, column) for column in columns)
    assert first.may_decide
    return first, second


def started(owner: SharedTableOwner, columns: list[int], script: str) -> list[subprocess.Popen[str]]:
    """A process for each column, which has run the script to its first line and waits for ``go_on``. The script's
    arguments are the table's file and its column."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(owner.fd), str(column)],
            cwd=ROOT, pass_fds=[owner.fd], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for column in columns
    ]  # fmt: skip
    assert [says(worker) for worker in workers] == ["here"] * len(workers)
    return workers


def says(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def go_on(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()


def in_child(act: Callable[[], object]) -> int:
    """Run ``act`` in a forked process; how it ended. Record locks are the child's alone."""
    pid = os.fork()
    if not pid:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class KillBeforeStore:
    """A trace function that kills the process before it executes its n-th store into memory in proxy/shared."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SHARED):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] == STORE_SUBSCR:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def killed_at_every_store(act: Callable[[], object], check: Callable[[], None]) -> int:
    """Run ``act`` in processes of which each gets one store further; ``check`` what each left. The number of stores."""
    n = 1
    while n < 100:

        def until_the_store(n: int = n) -> None:
            sys.settrace(KillBeforeStore(n))
            act()

        ended = in_child(until_the_store)
        check()
        if ended == 0:
            return n - 1
        assert ended == -signal.SIGKILL
        n += 1
    raise AssertionError("there is no end of stores")
