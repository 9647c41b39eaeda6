"""The supervisor's body: carries its actions out and brings it what happens. ``serve`` runs an appliance.

Owns the event loop, the configuration files, the sockets and the admin interface. Decides nothing: signal handlers,
children and timers only put events into one queue, and the supervisor says what to do about each.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import breakers, events, exit_codes, log, model_orders, variants
from appliance.children import COMMAND, Children
from appliance.config import Configuration, ConfigurationError, load
from appliance.control import ChannelError, Message
from appliance.event_ring import EventRing
from appliance.events import Action, Event
from appliance.lock import RuntimeDir, claim
from appliance.post import Limits
from appliance.resource_error import ResourceError
from appliance.shipment import Shipment
from appliance.sockets import Sockets
from appliance.status import installed_version, spell_status
from appliance.supervisor import Supervisor
from appliance.systemd import Notifier, take_sockets, watchdog_interval_s

if TYPE_CHECKING:
    from appliance.admin import Admin

_log = logging.getLogger("headrace")
_LOOK_S = 2.0  # how often the runtime directory is looked after


def serve(path: Path, *, on_ready: Callable[[], None] | None = None) -> int:
    """Run the configuration at ``path`` until it is told to stop; the exit code. Errors go to the log on stderr."""
    log.configure("supervisor", "info")
    try:
        configuration = load(path, at_start=True)
        for problem in configuration.warnings:
            _log.warning("%s", problem)
        log.set_level(configuration.effective.log.level)
        return asyncio.run(run(path, configuration, on_ready=on_ready))
    except ConfigurationError as error:
        for problem in error.problems:
            _log.error("%s", problem)
        return exit_codes.CANNOT_BOOT
    except ResourceError as error:
        for message in error.problems:
            _log.error("%s", message)
        return exit_codes.CANNOT_CREATE


async def run(
    path: Path,
    configuration: Configuration,
    *,
    on_ready: Callable[[], None] | None = None,
    command: Sequence[str] = COMMAND,
    limits: Limits | None = None,
) -> int:
    """An appliance from its start to its end, on the running loop. Raises ResourceError at the start."""
    with claim(configuration.runtime_dir) as runtime_dir:
        appliance = Appliance(path, Shipment(configuration), runtime_dir, on_ready, command, limits)
        try:
            return await appliance.run()
        finally:
            await appliance.close()


class Appliance:
    """The running whole; what the admin interface asks."""

    def __init__(
        self,
        path: Path,
        shipment: Shipment,
        runtime_dir: RuntimeDir,
        on_ready: Callable[[], None] | None,
        command: Sequence[str],
        limits: Limits | None,
    ) -> None:
        self._path = path
        self._current = shipment
        self._loaded: Shipment | None = shipment
        self._runtime_dir = runtime_dir
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._supervisor = Supervisor(limits)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.event_ring = EventRing()
        self._children = Children(self._events.put_nowait, self._progressed, self.event_ring.add, command=command)
        self._sockets = Sockets(take_sockets(os.environ, os.getpid()))
        self._notifier = Notifier(os.environ)
        self._admin: Admin | None = None
        self._tickets: dict[int, asyncio.Future[tuple[str, ...]]] = {}
        self._num_tickets = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ready = False
        self._exit_code: int | None = None
        self._started_at = time.monotonic()

    async def run(self) -> int:
        """Until the supervisor says Exit."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._events.put_nowait, events.ReloadAsked())
        self._sockets.prepare(self._current.all_addresses())
        for unused in self._sockets.unused():
            _log.warning("systemd has handed over %s, which no listener uses", unused)
        self._happened(events.Loaded(self._current.plan))
        await self._open_admin()  # while the children start
        self._begin(self._keep_runtime_dir())
        if interval_s := watchdog_interval_s(os.environ, os.getpid()):
            self._begin(self._feed_watchdog(interval_s))
        while self._exit_code is None:
            self._happened(await self._next_event())
        return self._exit_code

    async def close(self) -> None:
        """Let go of everything; what children are left is killed."""
        for task in self._tasks:
            task.cancel()
        for ticket in self._tickets.values():
            ticket.cancel()
        self._children.close()
        if self._admin is not None:
            await self._admin.close()
        self._sockets.close()
        if self._loaded not in (None, self._current):
            self._loaded.close()
        self._current.close()

    # What is asked of it: admin.Box.

    def status(self) -> dict[str, Any]:
        """The status page."""
        return spell_status(
            self._supervisor.statistics(),
            self._children.running.values(),
            uptime_s=time.monotonic() - self._started_at,
            urls=self._current.urls(),
            admin=self._current.admin_address,
        )

    @property
    def configuration_path(self) -> Path:
        """The file that is served."""
        return self._path.absolute()

    def faults(self) -> tuple[str, ...]:
        """Why it is not ready; empty: it is."""
        return self._supervisor.statistics().faults

    async def metrics(self) -> bytes:
        """The metrics page."""
        from appliance import engine_page, metrics

        statistics = self._supervisor.statistics()
        generation = statistics.generation
        page = await engine_page.fetch(str(self._current.engine_socket(generation))) if generation else None
        pids = {child.name: child.process.pid for child in self._children.running.values()}
        return metrics.render(installed_version(), statistics, pids, self._children.cells.values(), page)

    def reload(self) -> asyncio.Future[tuple[str, ...]]:
        """Take the configuration anew; the future holds what is wrong with it."""
        self._num_tickets += 1
        verdict = self._tickets[self._num_tickets] = self._loop.create_future()
        self._events.put_nowait(events.ReloadAsked(self._num_tickets))
        return verdict

    async def breakers(self, order: str, upstream: str | None, for_s: float | None) -> dict[str, Any]:
        """The breakers after an order: list, open, close or reset. upstream: None, all. for_s: None, for good."""
        facts = {"order": order, "upstream": upstream, "for_s": for_s, "given_at": self._loop.time()}
        return await breakers.hear(self._ask_workers("breakers", **facts), upstream)

    async def variants(self, order: str, route: str | None, variant: str | None, share: float) -> dict[str, Any]:
        """The variants after an order: list, set or reset. route, variant: None, all."""
        facts = {"order": order, "route": route, "variant": variant, "share": share, "given_at": self._loop.time()}
        return await variants.hear(self._ask_workers("variants", **facts), route)

    def _ask_workers(self, kind: str, **facts: Any) -> list[asyncio.Future[Message]]:
        posts = [post for post in self._supervisor.statistics().posts if post.role == "proxy" and post.serves]
        return [self._children.ask(post.child, kind, **facts) for post in posts]

    async def models(self, order: str, name: str, path: str) -> dict[str, Any]:
        """What is served after an order: list, load, unload or swap (for the folder at ``path``)."""
        engine = model_orders.engine_of(self._supervisor.statistics())
        facts = {"order": order, "name": name, "path": path}
        return await model_orders.hear(None if engine is None else self._children.ask(engine, "models", **facts))

    def stop(self) -> None:
        """Drain and end; a second time: end."""
        self._events.put_nowait(events.StopAsked())

    # Events and actions.

    async def _next_event(self) -> Event:
        wake_at = self._supervisor.wake_at()
        try:
            async with asyncio.timeout_at(wake_at if wake_at < inf else None):
                return await self._events.get()
        except TimeoutError:
            return events.Ticked()

    def _happened(self, event: Event) -> None:
        for action in self._supervisor.handle(event, self._loop.time()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        children = self._children
        match action:
            case events.Spawn(child, name, role):
                children.spawn(child, name, role, self._current.log_level, self._current.secret_variables)
            case events.Build(child, revision, generation, candidate):
                self._build(child, revision, generation, self._shipment(candidate))
            case events.StartEngine(child, generation, candidate):
                children.tell(child, "configure", **self._shipment(candidate).engine_order(generation))
            case events.Commit(child, revision):
                children.tell(child, "commit", revision=revision)
            case events.Discard(child, revision):
                children.tell(child, "discard", revision=revision)
            case events.TellEngine(child, up, reason):
                children.tell(child, "engine_state", up=up, reason=reason)
            case events.Drain(child, limit_s):
                children.tell(child, "drain", limit_s=limit_s)
            case events.Kill(child, name):
                children.kill(child, name)
            case events.Load():
                self._begin(self._load())
            case events.Listen():
                self._sockets.listen()
            case events.Adopt():
                self._adopt()
            case events.Forget():
                self._forget()
            case events.StopListening():
                self._sockets.close()
            case events.Answer(ticket, problems):
                self._answer(ticket, problems)
            case events.Notify(state, status):
                self._notify(state, status)
            case events.Log(level, message):
                getattr(_log, level)("%s", message)
            case events.Exit(code):
                self._exit_code = code

    def _shipment(self, candidate: bool) -> Shipment:
        return self._loaded if candidate and self._loaded else self._current

    def _build(self, child: int, revision: int, generation: int, shipment: Shipment) -> None:
        fds = [shipment.access_log_fd, *self._sockets.select(shipment.addresses)]
        try:
            self._children.tell(child, "configure", fds, revision=revision, **shipment.proxy_order(generation))
        except ChannelError as error:
            self._events.put_nowait(events.Refused(child, revision, (f"the configuration is too large: {error}",)))

    async def _load(self) -> None:
        try:
            self._loaded = await self._read()
        except (ConfigurationError, ResourceError) as error:
            self._events.put_nowait(events.LoadFailed(tuple(map(str, error.problems))))
        except Exception as error:  # whoever waits for the verdict must hear of a fault of ours, too
            _log.exception("the configuration could not be read by a fault")
            self._events.put_nowait(events.LoadFailed((f"internal fault: {error!r}",)))
        else:
            self._events.put_nowait(events.Loaded(self._loaded.plan))

    async def _read(self) -> Shipment:
        shipment = await asyncio.to_thread(lambda: Shipment(load(self._path)))
        try:
            if conflicts := shipment.conflicts(self._current):
                raise ResourceError(*conflicts)
            self._sockets.prepare(shipment.all_addresses())
            self._sockets.listen()
        except ResourceError:
            self._sockets.forget()
            shipment.close()
            raise
        return shipment

    def _adopt(self) -> None:
        before, self._current, self._loaded = self._current, self._loaded or self._current, None
        if before is not self._current:
            before.close()
        self._sockets.keep(self._current.all_addresses())
        log.set_level(self._current.log_level)
        if self._admin is not None and before.admin_address != self._current.admin_address:
            self._begin(self._admin.open_port(self._admin_socket()))

    def _forget(self) -> None:
        self._sockets.forget()
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def _answer(self, ticket: int, problems: tuple[str, ...]) -> None:
        verdict = self._tickets.pop(ticket)
        if not verdict.done():  # else the one who asked has left
            verdict.set_result(problems)

    def _notify(self, state: str, status: str) -> None:
        if state == "stopping":
            self._notifier.stopping(status, self._current.plan.drain_s)
        else:
            getattr(self._notifier, state)(status)
        if state == "ready" and not self._is_ready:
            self._is_ready = True
            took_s = time.monotonic() - self._started_at
            _log.info("ready on %s after %.1f s", ", ".join(self._current.urls()), took_s)
            if self._on_ready is not None:
                self._on_ready()

    def _progressed(self, name: str, step: str) -> None:
        _log.info("%s: %s", name, step)

    # The long-lived rest.

    async def _open_admin(self) -> None:
        from appliance.admin import Admin  # its HTTP server is imported while the children start

        self._admin = Admin(self)
        try:
            await self._admin.open_socket(self._runtime_dir.path)
            await self._admin.open_port(self._admin_socket())
        except OSError as error:
            raise ResourceError(f"the admin interface cannot be opened: {error.strerror or error}") from None

    def _admin_socket(self) -> socket.socket | None:
        address = self._current.admin_address
        return self._sockets.duplicate(address) if address else None

    async def _keep_runtime_dir(self) -> None:
        """Without it nobody could give an order, and no engine could start again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                if self._runtime_dir.restore() and self._admin is not None:
                    _log.warning("%s was removed; it is made again", self._runtime_dir.path)
                    await self._admin.open_socket(self._runtime_dir.path)
            except (ResourceError, OSError) as error:
                _log.error("%s", error)

    async def _feed_watchdog(self, interval_s: float) -> None:
        while True:
            self._notifier.watchdog()
            await asyncio.sleep(interval_s)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("%s", error, exc_info=error)
