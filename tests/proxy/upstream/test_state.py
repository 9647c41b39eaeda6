"""A server's state on the table that all workers share: whatever their number, it is ejected as by one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from proxy.config import Health
from proxy.shared.table import SharedTable
from proxy.upstream.state import RECORD_SIZE, ServerState
from tests.proxy.make import proxy_config

ROOT = Path(__file__).parents[3]
WORKERS = 4
FAILURES = 250


def health(**keys: object) -> Health:
    return proxy_config(upstreams={"u": {"servers": ["http://a:1"], "health": keys}}).upstreams["u"].health


def state_in(table: SharedTable, config: Health) -> ServerState:
    return ServerState("http://a:1", config, table.record("ejection/u/http://a:1", RECORD_SIZE))


def test_what_one_snapshot_left_out_the_next_one_leaves_out() -> None:
    """Another ``health:`` table makes another state, not another memory."""
    table = SharedTable.alone()
    before = state_in(table, health(fails=2, eject="10s"))
    for _ in range(2):
        before.started()
        before.finished(False, 1.0)
    after = state_in(table, health(fails=5, eject="60s"))
    assert (after.ejected_until, after.fails_running, after.num_ejections) == (11.0, 2, 1)


#: A process of its own, because the tests' own may have threads; it forks the workers.
BOX = f"""
import os
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable
from proxy.upstream.state import RECORD_SIZE, ServerState
from tests.proxy.upstream.test_state import health

def work(fd, column):
    told = []
    table = SharedTable.attached(fd, column)
    while not table.may_decide:
        pass
    config = health(fails={WORKERS * FAILURES}, eject="10s")
    state = ServerState("a", config, table.record("a", RECORD_SIZE), None, lambda: told.append(1))
    for _ in range({FAILURES}):
        state.started()
        state.finished(False, 1.0)
    return len(told)

owner = SharedTableOwner()
columns = [owner.enter() for _ in range({WORKERS})]
children = []
for column in columns:
    child = os.fork()
    if child == 0:
        os._exit(work(owner.fd, column))
    children.append(child)
print(*sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
for column in columns:
    owner.left(column)
state = ServerState("a", health(), SharedTable.attached(owner.fd, owner.enter()).record("a", RECORD_SIZE))
print(state.fails_running, state.ejected_until, state.num_ejections)
"""


def test_H05_failures_seen_by_four_workers_at_once_are_all_counted_and_eject_as_by_one() -> None:
    """The last of 1,000 failures ejects, whoever sees it; each of the four processes sees 250."""
    box = subprocess.run([sys.executable, "-c", BOX], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert box.stderr == ""
    assert box.stdout.splitlines() == ["0 0 0 1", f"{WORKERS * FAILURES} 11.0 1"]
