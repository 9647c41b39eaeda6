"""Whether four workers admit exactly a quota, while some of them are killed and the configuration is reloaded.

Owns the load, the disturbances and the sum at the end. What arrived is counted by the upstream. A request that was cut
with its worker was counted by the limit if it was let in, which nobody can tell any more: it counts in favour of the
quota, so a difference is more than was allowed, or less than would have been without what was cut.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from bench.chats import USAGE, chat
from bench.peers import HEADRACE
from bench.policies import KEY, PATH
from bench.processes import HERE, free_port, server
from bench.report import Row
from proxy.keys import hash_key

NUM_WORKERS: Final = 4
NUM_CLIENTS: Final = 16
PER_S: Final = 240.0  # requests offered, all routes together
ASKED_OF_A_CONNECTION: Final = 25
#: When (as shares of the time) what is done to the edge.
DISTURBANCES: Final = {
    0.15: "kill", 0.25: "reload", 0.35: "kill", 0.4: "reload", 0.45: "kill", 0.55: "reload", 0.6: "kill", 0.8: "kill",
}  # fmt: skip
#: Tokens that a request reserves, at least: more than it uses, so that nobody is ever in debt.
MAX_TOKENS: Final = 500


class Quota(NamedTuple):
    """route: its path. most: what it admits, in requests or tokens. unit: how much of it one request uses."""

    route: str
    most: int
    unit: int = 1


def quotas(seconds: float) -> list[Quota]:
    """Reached after about 70 % of the time; nothing of them comes back before a day is over."""
    share = int(PER_S * seconds * 0.7) // 5
    used = USAGE["total_tokens"]
    return [
        Quota("gcra", share),
        Quota("sliding", share),
        Quota("both", share),
        Quota("tokens", share * used, used),
        Quota("budget", share),
    ]


def configuration(directory: str, port: int, origin_port: int, found: list[Quota]) -> dict[str, Any]:
    """The whole of it; the policies of a route are those of its quota."""
    most = {quota.route: quota.most for quota in found}
    limits = {
        "gcra": {"key": "all", "requests": "1/day", "burst": most["gcra"]},
        "sliding": {"key": "client", "requests": f"{most['sliding']}/day", "algorithm": "sliding"},
        "first": {"key": "all", "requests": "1/day", "burst": most["both"]},
        "second": {"key": ["client", "route"], "requests": f"{most['both'] + 5}/day", "algorithm": "sliding"},
        "tokens": {"key": "all", "tokens": "1/day", "burst": most["tokens"]},
    }
    policies = {
        "gcra": {"rate_limit": ["gcra"]},
        "sliding": {"rate_limit": ["sliding"]},
        "both": {"rate_limit": ["first", "second"]},
        "tokens": {"rate_limit": ["tokens"], "tokens": {}},
        "budget": {"auth": {"keys": "keys.yaml"}, "tokens": {}},
    }
    return {
        "runtime_dir": directory,
        "admin": {"address": None},
        "workers": NUM_WORKERS,
        "drain": "5s",
        "log": {"access": "off", "level": "error"},
        "listeners": [{"address": f"127.0.0.1:{port}"}],
        "upstreams": {"origin": {"servers": [f"http://127.0.0.1:{origin_port}"], "kind": "openai"}},
        "limits": limits,
        "usage": {"path": f"{directory}/usage.db"},
        "budgets": {"daily": {"key": "api_key", "requests": most["budget"], "per": "day", "window": "rolling"}},
        "routes": [
            {"match": {"path": f"/{quota.route}/*"}, "to": "origin", "policies": policies[quota.route]}
            for quota in found
        ],
    }


class Load:
    """The clients, and what they were answered. statuses: by route; 0: cut with the worker."""

    def __init__(self, port: int, routes: list[str]) -> None:
        self.statuses: dict[str, Counter[int]] = {route: Counter() for route in routes}
        self.num_other = 0  # answers that no limit gives
        self._port = port
        self._routes = routes
        self._num_asked = 0

    async def run(self, seconds: float) -> None:
        """Offers at a fixed pace, each client one request at a time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await asyncio.gather(*(self._client(end, i / PER_S) for i in range(NUM_CLIENTS)))

    async def ask_each(self, num: int) -> None:
        """So many requests for each route, at once."""
        routes = [route for route in self._routes for _ in range(num)]
        await asyncio.gather(*(self._ask_alone(route) for route in routes))

    async def _client(self, end: float, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        at, writer = loop.time() + wait_s, None
        num_left = 0
        while at < end:
            await asyncio.sleep(at - loop.time())  # who is behind catches up
            at += NUM_CLIENTS / PER_S
            if writer is None or not num_left:
                if writer is not None:
                    writer.close()
                reader, writer = await self._connect()
                num_left = ASKED_OF_A_CONNECTION
            num_left -= 1
            if not await self._ask(self._next_route(), reader, writer):
                num_left = 0
        if writer is not None:
            writer.close()

    def _next_route(self) -> str:
        self._num_asked += 1
        return self._routes[self._num_asked % len(self._routes)]

    async def _ask_alone(self, route: str) -> None:
        reader, writer = await self._connect()
        await self._ask(route, reader, writer)
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def _ask(self, route: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Ask once; whether the connection can be asked again. One that is reset before the request was sent, because
        it waited in a worker's queue, was never asked of."""
        body = chat(self._num_asked % 997, 400, max_tokens=MAX_TOKENS)
        head = f"POST /{route}{PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            answered = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = answered.partition(b"\r\ncontent-length: ")[2].split(b"\r\n", 1)[0]
            await reader.readexactly(int(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.statuses[route][0] += 1
            return False
        status = int(answered[9:12])
        self.statuses[route][status] += 1
        self.num_other += status not in (200, 429)
        return b"\r\nconnection: close" not in answered


class Edge:
    """The appliance under test, and what is done to it."""

    def __init__(self, pid: int, file: Path) -> None:
        self._pid = pid
        self._file = file
        self._drain_s = 5
        self.num_killed = self.num_reloaded = 0

    async def disturb(self, seconds: float) -> None:
        """Kill workers and reload, as ``DISTURBANCES`` says."""
        begun_at = asyncio.get_running_loop().time()
        for share, what in DISTURBANCES.items():
            await asyncio.sleep(begun_at + share * seconds - asyncio.get_running_loop().time())
            if what == "kill":
                workers = _workers_of(self._pid)
                os.kill(workers[self.num_killed % len(workers)], signal.SIGKILL)
                self.num_killed += 1
            else:
                await self._reload()

    async def _reload(self) -> None:
        self._drain_s += 1
        document = json.loads(self._file.read_text())
        self._file.write_text(json.dumps({**document, "drain": f"{self._drain_s}s"}))
        command = [*HEADRACE, "reload", "-c", str(self._file), "--wait"]
        done = await asyncio.create_subprocess_exec(*command, stdout=-3, stderr=-3)
        if await done.wait():
            raise SystemExit("a reload failed: the figures mean nothing")
        self.num_reloaded += 1


def _workers_of(pid: int) -> list[int]:
    """The proxy workers among a supervisor's children."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        except OSError:  # ended meanwhile
            continue
        found += [int(child)] if "proxy" in words else []
    return found


def measure_admitted(seconds: float) -> tuple[list[Row], dict[str, float | None]]:
    """Rows by limit: its quota, what arrived, what was cut, and the difference."""
    found = quotas(seconds)
    port, origin_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        file = Path(directory) / "headrace.yaml"
        file.write_text(json.dumps(configuration(directory, port, origin_port, found)))
        key = {"id": "bench", "hash": hash_key(KEY)}
        (Path(directory) / "keys.yaml").write_text(json.dumps({"keys": [key]}))
        origin = [sys.executable, str(HERE / "chats.py"), str(origin_port)]
        with (
            server(origin, port=origin_port),
            server([*HEADRACE, "serve", "-c", str(file)], port=port) as process,
        ):
            load, edge = Load(port, [quota.route for quota in found]), Edge(process.pid, file)
            arrived = uvloop.run(_run(load, edge, origin_port, seconds))
    rows = [_row(quota, arrived.get(f"/{quota.route}{PATH}", 0), load.statuses[quota.route]) for quota in found]
    return rows, {
        "admitted_minus_quota": float(sum(abs(row["difference"]) for row in rows)),
        "admitted_other_answers": float(load.num_other),
        "admitted_kills": float(edge.num_killed),
        "admitted_reloads": float(edge.num_reloaded),
    }


async def _run(load: Load, edge: Edge, origin_port: int, seconds: float) -> dict[str, int]:
    await asyncio.gather(load.run(seconds), edge.disturb(seconds))
    await load.ask_each(8)  # who still has room shows it
    reader, writer = await asyncio.open_connection("127.0.0.1", origin_port)
    writer.write(b"GET /count HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    counts: dict[str, int] = json.loads(await reader.readexactly(int(head.partition(b"Content-Length: ")[2])))
    writer.close()
    return counts


def _row(quota: Quota, num_arrived: int, statuses: Counter[int]) -> Row:
    """difference: in what the limit counts; less than one request's, where it counts tokens, is none."""
    used = num_arrived * quota.unit
    # What was reserved for a request whose worker was killed is not known to have been used.
    room = (statuses[0] + (quota.unit > 1)) * max(quota.unit, MAX_TOKENS * 2 if quota.unit > 1 else 1)
    difference = max(0, used - quota.most) + min(0, used + room - quota.most)
    return {
        "limit": quota.route, "quota": quota.most, "arrived": used, "refused": statuses[429], "cut": statuses[0],
        "difference": difference,
    }  # fmt: skip
