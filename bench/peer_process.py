"""A peer in an environment of its own: a Python process that is asked line by line over its pipes.

Owns both ends of that conversation, and so imports nothing that a peer's environment may lack. A peer is a class; each
of its methods that is asked for takes and returns what JSON can carry. Environments lie in ``.headrace/peers/NAME``
(README.md says how they are made), or in the folder that ``HEADRACE_PEERS`` names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = Path(os.environ.get("HEADRACE_PEERS", HERE.parent / ".headrace" / "peers"))


class PeerProcess:
    """``bench/SCRIPT`` under the Python of an environment, loaded when the constructor returns.

    Raises RuntimeError when it ends before it is loaded; its last lines say why.
    """

    def __init__(self, script: str, *arguments: str, python: str) -> None:
        self._command = [python, str(HERE / script), *arguments]
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, text=True
        )
        self.pid = self._process.pid
        self.versions: dict[str, str] = self._answer()

    def ask(self, method: str, **arguments: Any) -> Any:
        """What the peer's method returns. Raises RuntimeError when the peer ends instead."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._complaints.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._process.wait()
        self._complaints.seek(0)
        last_words = self._complaints.read()[-600:].decode(errors="replace")
        raise RuntimeError(f"{self._command} ended; its last words: {last_words}")


def environment(name: str) -> Path:
    """Where the Python of a peer's environment is, if it was made."""
    return PEERS / name / "bin" / "python"


def serve(load: Callable[..., Any]) -> None:
    """The peer's end: loads with the command line's words, then answers until its input ends.

    What libraries print goes where errors go: only answers go to the pipe.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = load(*sys.argv[1:])
    print(json.dumps(peer.versions), file=answers, flush=True)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        print(json.dumps(getattr(peer, method)(**arguments)), file=answers, flush=True)
