"""The one thread that runs models on a device, one run at a time, or several of one model beside each other.

Owns the thread, its inbox and the way back to the event loop: the loop's commands are done between two runs, and all
that one step has to say reaches the loop in one callback. Which lane runs is the arbiter's decision; what a step does
is the lane's. A step that raises fails its own jobs and the thread goes on; a lane that cannot even plan has lost its
invariants, so the device reports itself broken and is replaced with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from engine.arbiter import Arbiter, Claim
from engine.errors import Kind, RequestError
from engine.flights import Flights
from engine.job import BesideStep, Delivery, Job, Lane, Step, WideLane
from engine.occupancy import Occupancy

_log = logging.getLogger(__name__)


class Device:
    """Runs the steps of ``lanes`` until ``stop``. All methods but ``busy_s`` are for the event loop."""

    def __init__(self, name: str, lanes: Sequence[Lane], loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.broken: str | None = None  # why the thread ended by itself
        self.num_steps = 0
        self.occupancy = Occupancy(time.monotonic())
        self._lanes = list(lanes)
        self._loop = loop
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._arbiter = Arbiter()
        self._flights = Flights(f"device-{name}", self._inbox.put, self._landed)
        self._busy_since: float | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=f"device-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, lane: Lane, job: Job) -> None:
        """Queue a job; what becomes of it comes by ``job.deliver``."""
        self._inbox.put(lambda: self._add(lane, job))

    def cancel(self, lane: Lane, job: Job) -> None:
        """Nobody wants this job any more: nothing is delivered from now on, its place is free after the current run."""
        job.cancelled = True
        self._inbox.put(lambda: lane.drop(job))

    def wake(self) -> None:
        """Look again: a parked job may go on."""
        self._inbox.put(lambda: None)

    def attach(self, lane: Lane) -> None:
        """Give one more lane its turns."""
        self._inbox.put(lambda: self._lanes.append(lane))

    async def detach(self, lane: Lane, timeout_s: float) -> bool:
        """Run nothing of a lane any more; it has no jobs. False: the current run did not end in time."""

        def remove() -> None:
            self._lanes.remove(lane)
            if self._flights.lane is lane:
                self._land_all()
                self._flights.lane = None

        return await self.do(remove, timeout_s)

    async def ping(self, timeout_s: float) -> bool:
        """A round trip through the thread, between two runs. False: no answer in time."""
        return await self.do(lambda: None, timeout_s)

    async def do(self, command: Callable[[], None], timeout_s: float) -> bool:
        """Have the thread obey between two runs. False: it has not in time, and still may."""
        answer: asyncio.Future[None] = self._loop.create_future()

        def reply() -> None:
            if not answer.done():
                answer.set_result(None)

        def obey() -> None:
            command()
            self._tell(reply)

        self._inbox.put(obey)
        try:
            async with asyncio.timeout(timeout_s):
                await answer
        except TimeoutError:
            return False
        return True

    def busy_s(self, now: float) -> float:
        """How long the current run has lasted, or the oldest of them; 0.0 between runs. now: monotonic seconds."""
        since = self._busy_since
        return 0.0 if since is None else now - since

    async def stop(self, timeout_s: float) -> bool:
        """End the thread after the current run. False: the run did not end in time and the thread is left behind."""

        def mark() -> None:
            self._stopping = True

        self._inbox.put(mark)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            while True:
                self._obey()
                if self._stopping:
                    self._land_all()
                    self._flights.close()
                    return
                self._turn()
        except Exception as error:
            _log.exception("device %s: planning failed; the engine must be replaced", self.name)
            self.broken = f"planning failed: {type(error).__name__}: {error}"

    def _turn(self) -> None:
        now = time.monotonic()
        claims = [Claim(lane.ready(now), lane.decoding(), lane.max_stall_s) for lane in self._lanes]
        turn = self._arbiter.choose(claims)
        if turn is None:
            self._wait(now)
            return
        lane = self._lanes[turn.lane]
        before_s = lane.run_s
        num_aloft = len(self._flights)
        alone = lane.width > 1 and sum(claim.ready or claim.decoding for claim in claims) == 1
        if num_aloft and not (alone and self._flights.lane is lane and num_aloft < lane.width):
            self._inbox.get()()  # a run has to end before the next begins
        elif alone and isinstance(lane, WideLane):
            if (wide := lane.plan_beside(now, num_aloft)) is not None:
                self._launch(lane, wide, now) if wide.beside else self._run(lane, wide, now, before_s)
        elif (step := lane.plan(now, turn.allowance_s)) is not None:
            self._run(lane, step, now, before_s)

    def _run(self, lane: Lane, step: Step, now: float, before_s: float) -> None:
        """A step on this thread. before_s: the lane's ``run_s`` before the step was planned."""
        if not self._flights:
            self._busy_since = now
        try:
            deliveries = step.run()
        except Exception as error:
            _log.exception("device %s: a step of %s failed", self.name, lane.name)
            deliveries = step.fail(error)
        finally:
            self._busy_since = self._flights.since()
        self._ended(deliveries)
        self.occupancy.worked(time.monotonic(), lane.run_s - before_s)

    def _launch(self, lane: Lane, step: BesideStep, now: float) -> None:
        """A step on a thread of its own."""
        if not self._flights:
            self.occupancy.worked(now, 0.0)
        self._flights.launch(lane, step, now)
        self._busy_since = self._flights.since()

    def _landed(self, lane: Lane, step: BesideStep, error: BaseException | None) -> None:
        self._busy_since = self._flights.since()
        self.occupancy.ran(time.monotonic())
        if error is None:
            self._ended(step.finish())
        else:
            _log.error("device %s: a step of %s failed", self.name, lane.name, exc_info=error)
            self._ended(step.fail(error))

    def _land_all(self) -> None:
        """Wait for the runs that go on beside each other, obeying meanwhile."""
        while self._flights:
            self._inbox.get()()

    def _ended(self, deliveries: Sequence[Delivery]) -> None:
        self.num_steps += 1
        if deliveries:
            self._tell(lambda: _deliver(deliveries))

    def _obey(self) -> None:
        """Do what the loop has asked for meanwhile."""
        while not self._inbox.empty():
            self._inbox.get_nowait()()

    def _wait(self, now: float) -> None:
        """Nothing is ready: let the lanes tidy up, and sleep until a command comes or a lane's own time does."""
        for lane in self._lanes:
            lane.tidy(now)
        instants = [at for lane in self._lanes if (at := lane.wake_at()) is not None]
        with contextlib.suppress(Empty):
            self._inbox.get(timeout=max(0.0, min(instants) - now) if instants else None)()
        if self._flights:
            self.occupancy.ran(time.monotonic())
        else:
            self.occupancy.slept(time.monotonic())

    def _add(self, lane: Lane, job: Job) -> None:
        if job.cancelled:
            return
        try:
            lane.add(job)
        except Exception:
            _log.exception("device %s: %s could not queue a job", self.name, lane.name)
            error = RequestError(Kind.FAILED, "the request could not be queued; the engine's log says why")
            self._tell(lambda: _deliver([(job, error)]))

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            self._stopping = True


def _deliver(deliveries: Sequence[Delivery]) -> None:
    """On the loop: hand each event to its job."""
    for job, event in deliveries:
        if not job.cancelled:
            try:
                job.deliver(event)
            except Exception:
                _log.exception("an event could not be delivered")
