"""Servers of a benchmark end with it, however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from tests.documents import ROOT

#: Serves on a free port and says so; holds the pipe whose end tells that it is gone.
PROGRAM = """
import sys, time
from bench.processes import free_port, server
port = free_port()
with server([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], port=port) as process:
    print(process.pid, flush=True)
    time.sleep(600)
"""


def test_a_benchmark_that_is_killed_leaves_no_server_behind() -> None:
    bench = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert bench.stdout is not None
    with bench.stdout:
        served = os.pidfd_open(int(bench.stdout.readline()))
    bench.kill()
    assert bench.wait() == -signal.SIGKILL
    try:
        assert select.select([served], [], [], 60)[0]
    finally:
        os.close(served)
