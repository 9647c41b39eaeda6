"""The peers of bench/batching.py and bench/classify.py: servers in environments of their own, with one folder.

Owns which there are, how each is run and ended; ``bench/batching_peers.sh`` makes them. Knows nothing of what is
measured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.peer_process import PEERS, PeerProcess, environment
from bench.posts import post
from bench.processes import HERE, START_TIMEOUT_S, free_port, server

MAX_BATCH, WAIT_MS = 32, 5
LOADGEN = "loadgen"
EXPORTED = PEERS / "weights" / "all-minilm-l6-v2"  # by bench/peer_export.py
MAKE = "bench/batching_peers.sh makes it"


class Peer(NamedTuple):
    """A server that may be there: its environment, its program, and that program's words behind port and folder."""

    environment: str
    script: str
    words: Sequence[str]

    @property
    def exists(self) -> bool:
        """Whether its environment was made."""
        return environment(self.environment).exists()

    def version(self) -> str:
        """Of the package that gives the environment its name."""
        ask = f"from importlib.metadata import version; print(version({self.environment!r}))"
        done = subprocess.run([environment(self.environment), "-c", ask], check=True, capture_output=True, text=True)
        return done.stdout.strip()


def peers(cores: int, *, max_batch: int = MAX_BATCH, unbatched_threads: int | None = None) -> Mapping[str, Peer]:
    """By name. Those that batch have a worker of one thread per core: one worker of many threads is slower. What does
    not batch has ``unbatched_threads`` in each of its runs; None: one per core."""
    batching = ("1", str(cores), str(max_batch), str(WAIT_MS))
    return {
        "mosec": Peer("mosec", "peer_mosec.py", batching),
        "LitServe": Peer("litserve", "peer_litserve.py", batching),
        "FastAPI, unbatched": Peer("fastapi", "peer_fastapi.py", (str(unbatched_threads or cores),)),
    }


@contextmanager
def running(peer: Peer, folder: Path, request: bytes) -> Iterator[int]:
    """The peer, once it answers ``request``. Yields its port of 127.0.0.1."""
    port = free_port()
    command = [str(environment(peer.environment)), str(HERE / peer.script), str(port), str(folder), *peer.words]
    with server(command, port=port) as process:
        try:
            _wait_until_it_answers(port, request)
            yield port
        finally:
            with suppress(ProcessLookupError):  # some leave their workers behind when they are asked to end
                os.killpg(process.pid, signal.SIGKILL)


def _wait_until_it_answers(port: int, request: bytes) -> None:
    """Some listen before their workers have loaded."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            post(port, [request], connections=1, seconds=0.2)
            return
        except (SystemExit, subprocess.CalledProcessError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def loadgen_exists() -> bool:
    """Whether its environment was made."""
    return environment(LOADGEN).exists()


@contextmanager
def loadgen(port: int, request: bytes) -> Iterator[PeerProcess]:
    """MLPerf's LoadGen, which offers ``request`` to a port: bench/peer_loadgen.py."""
    with tempfile.NamedTemporaryFile(prefix="headrace-bench-") as file:
        file.write(request)
        file.flush()
        with closing(PeerProcess("peer_loadgen.py", str(port), file.name, python=str(environment(LOADGEN)))) as asking:
            yield asking
