"""``python -P -m appliance.child proxy|engine --control-fd N``: the process that the supervisor starts.

Owns what both roles share: the loop, the line to the supervisor, the last words after a fault, and leaving without
waiting for native threads. Imports only what its role needs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import logging
import mmap
import os
import resource
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

import uvloop

from appliance import exit_codes, log
from appliance.link import Link

#: Given the line and the arguments, plays the role and returns the exit code.
Role = Callable[[Link, argparse.Namespace], Awaitable[int]]

_log = logging.getLogger("headrace")


async def play_proxy(link: Link, arguments: argparse.Namespace) -> int:
    """A proxy worker: counts into the mapping at ``cells_fd``, and shares that at ``shared_fd`` with the others."""
    from appliance.proxy_child import ProxyChild
    from proxy.cells import MAPPING_BYTES, Cells
    from proxy.shared.table import SharedTable
    from proxy.worker import BuildError, ProxyWorker

    cells = Cells(mmap.mmap(arguments.cells_fd, MAPPING_BYTES))
    access_log_fd = os.open(os.devnull, os.O_WRONLY)
    shared = SharedTable.attached(arguments.shared_fd, arguments.column)
    worker = ProxyWorker(
        cells=cells, shared=shared, access_log_fd=access_log_fd, notify=lambda facts: link.tell("event", facts=facts)
    )
    return await ProxyChild(link, worker, access_log_fd, BuildError).run()


async def play_engine(link: Link, arguments: argparse.Namespace) -> int:
    """The local engine."""
    _offer_to_die_first()
    from appliance.engine_child import EngineChild
    from engine.worker import EngineWorker

    return await EngineChild(link, EngineWorker).run()


ROLES: dict[str, Role] = {"proxy": play_proxy, "engine": play_engine}


def main(roles: dict[str, Role] = ROLES) -> NoReturn:
    """Play the role that the arguments name until the supervisor ends it; then leave at once."""
    faulthandler.enable()  # SIGABRT prints the stacks of all threads
    # No core dump: it would put private keys on the disk, and take long over the weights of a model.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    parser = argparse.ArgumentParser(prog="python -m appliance.child")
    parser.add_argument("role", choices=list(roles))
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--cells-fd", type=int, default=-1)
    parser.add_argument("--shared-fd", type=int, default=-1)
    parser.add_argument("--column", type=int, default=0)
    parser.add_argument("--name", default="child")
    parser.add_argument("--log-level", default="info")
    arguments = parser.parse_args()
    log.configure(arguments.name, arguments.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_play(roles[arguments.role], arguments))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a thread inside of native code must not hold up the exit


def _offer_to_die_first() -> None:
    """When the box runs out of memory the kernel shall end this process, which is replaced, and not the edge."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


async def _play(role: Role, arguments: argparse.Namespace) -> int:
    link = Link(socket.socket(fileno=arguments.control_fd))
    try:
        return await role(link, arguments)
    except Exception as error:
        _log.exception("%s ends by a fault", arguments.name)
        link.tell("fatal", reason=f"{type(error).__name__}: {error}")
        return exit_codes.INTERNAL
    finally:
        link.close()


if __name__ == "__main__":
    main()
