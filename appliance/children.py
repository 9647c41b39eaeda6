"""The processes of the children: spawned, watched, spoken to and killed for the supervisor, whose actions end here.

Owns process ids, control channels and what the children last said of themselves. Decides nothing: whatever happens
becomes an event for the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import site
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import appliance
from appliance import events
from appliance.control import Channel, Message
from appliance.events import Event, Role
from appliance.systemd import PRIVATE_VARIABLES
from proxy.cells import MAPPING_BYTES, reset_gauges
from proxy.shared.owner import NoColumn, SharedTableOwner

COMMAND = (sys.executable, "-P", "-m", "appliance.child")
#: What the runtime must find in its environment before it is imported.
ENGINE_ENVIRONMENT = {"ORT_DISABLE_TELEMETRY": "1", "NUMPY_MADVISE_HUGEPAGE": "0"}
ALLOCATOR = "HEADRACE_ALLOCATOR"  # names a library for the engine alone, in place of the C library's allocator

_ALONE_S = 10.0  # so long after an end, a worker that is alone may count on nobody coming
_KILLED_S = 2.0  # a process ends within it once it was killed, or hangs in the kernel


@dataclass(slots=True)
class Child:
    """A running process."""

    number: int
    name: str
    process: subprocess.Popen[bytes]
    pidfd: int
    channel: Channel
    column: int | None = None  # of a proxy, in the table that all of them share
    statistics: dict[str, Any] = field(default_factory=dict)


class Children:
    """All running children by their number. Lives on the running loop; ``happened`` takes the events, ``told``
    what a worker tells the box of what has changed."""

    def __init__(
        self,
        happened: Callable[[Event], None],
        progressed: Callable[[str, str], None],
        told: Callable[[str, dict[str, Any]], None],
        *,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.running: dict[int, Child] = {}
        self.cells: dict[str, mmap.mmap] = {}  # a proxy's metrics by its post: a successor counts on
        self._cells_fds: dict[str, int] = {}
        self._shared = SharedTableOwner()
        self._happened = happened
        self._progressed = progressed
        self._told = told
        self._questions: dict[int, tuple[int, asyncio.Future[Message]]] = {}
        self._num_questions = 0
        self._command = tuple(command)
        self._loop = asyncio.get_running_loop()

    def spawn(self, number: int, name: str, role: Role, log_level: str, withheld: Collection[str] = ()) -> None:
        """Start a process, without the variables ``withheld``. If the system refuses, that is the child's end."""
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno()]
        arguments = [role, "--control-fd", str(theirs.fileno()), "--name", name, "--log-level", log_level]
        column: int | None = None
        try:
            if role == "proxy":
                column = self._shared.enter()
                fds += [self._map_cells(name), self._shared.fd]
                arguments += ["--cells-fd", str(fds[1]), "--shared-fd", str(fds[2]), "--column", str(column)]
            process = subprocess.Popen(
                [*self._command, *arguments],
                env=child_environment(os.environ, role, withheld),
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
            )
        except (OSError, NoColumn) as error:
            ours.close()
            if column is not None:
                self._shared.left(column)
            why = getattr(error, "strerror", None) or error
            self._happened(events.Fatal(number, f"could not be started: {why}"))
            self._happened(events.Exited(number, 1))
            return
        finally:
            theirs.close()
        pidfd = os.pidfd_open(process.pid)
        channel = Channel(ours, lambda message, fds: self._heard(number, message, fds), lambda: None)
        self.running[number] = Child(number, name, process, pidfd, channel, column)
        self._loop.add_reader(pidfd, self._reap, number)

    def tell(self, number: int, kind: str, fds: Sequence[int] = (), **facts: Any) -> None:
        """Send an order, if the child is still there."""
        if child := self.running.get(number):
            child.channel.send({"type": kind, **facts}, fds)

    def ask(self, number: int, kind: str, **facts: Any) -> asyncio.Future[Message]:
        """Send a question; the future holds the answer, or is cancelled when the child is gone before."""
        self._num_questions += 1
        ticket = self._num_questions
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._questions[ticket] = number, answer
        answer.add_done_callback(lambda _: self._questions.pop(ticket, None))
        if number in self.running:
            self.tell(number, kind, ticket=ticket, **facts)
        else:
            answer.cancel()
        return answer

    def kill(self, number: int, name: str) -> None:
        """Send a signal by its name, if the child is still there."""
        if child := self.running.get(number):
            child.process.send_signal(signal.Signals[name])

    def close(self) -> None:
        """Kill those that still run, and let go of everything."""
        for child in self.running.values():
            self._loop.remove_reader(child.pidfd)
            os.close(child.pidfd)
            child.channel.close()
            child.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(_KILLED_S)
        self.running.clear()
        for mapping in self.cells.values():
            mapping.close()
        for fd in self._cells_fds.values():
            os.close(fd)
        self._shared.close()

    def _map_cells(self, name: str) -> int:
        if name not in self._cells_fds:
            fd = os.memfd_create(f"headrace-{name}")
            os.ftruncate(fd, MAPPING_BYTES)
            self._cells_fds[name] = fd
            self.cells[name] = mmap.mmap(fd, MAPPING_BYTES)
        return self._cells_fds[name]

    def _reap(self, number: int) -> None:
        child = self.running[number]
        status = child.process.wait()
        self._loop.remove_reader(child.pidfd)
        os.close(child.pidfd)
        child.channel.read_rest()  # its last words may still be in the socket
        child.channel.close()
        del self.running[number]
        for asked, answer in list(self._questions.values()):
            if asked == number:
                answer.cancel()
        if child.name in self.cells:
            reset_gauges(self.cells[child.name])
        if child.column is not None:
            self._shared.left(child.column)
            self._loop.call_later(_ALONE_S, self._shared.settle)
        self._happened(events.Exited(number, status))

    def _heard(self, number: int, message: Message, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)  # children send none
        child = self.running[number]
        match message:
            case {"type": "beat", "statistics": statistics}:
                child.statistics = statistics
                self._happened(events.Beat(number))
            case {"type": "trouble", "reason": reason, "statistics": statistics}:
                child.statistics = statistics
                self._happened(events.Trouble(number, reason))
            case {"type": "built", "revision": revision}:
                self._happened(events.Built(number, revision))
            case {"type": "refused", "revision": revision, "problems": problems}:
                self._happened(events.Refused(number, revision, tuple(problems)))
            case {"type": "serving"}:
                self._happened(events.Serving(number, message.get("revision", 0)))
            case {"type": "fatal", "reason": reason}:
                self._happened(events.Fatal(number, reason))
            case {"type": "answer", "ticket": ticket}:
                question = self._questions.get(ticket)
                if question is not None and question[0] == number and not question[1].done():
                    question[1].set_result(message)
            case {"type": "progress", "step": step}:
                self._progressed(child.name, step)
            case {"type": "event", "facts": facts}:
                self._told(child.name, facts)


def child_environment(environ: Mapping[str, str], role: Role, withheld: Collection[str] = ()) -> dict[str, str]:
    """The environment of a child: ours, less what systemd said to us alone and the variables ``withheld``.

    The child finds the code that runs here.
    """
    kept = {name: value for name, value in environ.items() if name not in {*PRIVATE_VARIABLES, *withheld}}
    root = str(Path(appliance.__file__).resolve().parent.parent)
    if root not in site.getsitepackages():  # a checkout
        kept["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environ.get("PYTHONPATH")])])
    if role != "engine":
        return kept
    preloaded = {"LD_PRELOAD": kept[ALLOCATOR]} if kept.get(ALLOCATOR) else {}
    return {**kept, **preloaded, **ENGINE_ENVIRONMENT}
