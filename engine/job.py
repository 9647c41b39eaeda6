"""The three words between requests and a device: a Job is work that one request asked for, a Lane is one model's queue
of jobs and its plan of what to run next, a Step is one planned run.

Threads. The event loop makes jobs, hands them to the device and marks them ``cancelled``. Everything else of a lane and
its jobs belongs to the device's runner thread: ``add``, ``drop``, ``ready``, ``plan``, ``run`` and ``fail`` are called
there only, one at a time, so lanes need no locks. Only ``compute`` of a step that runs beside others is called on
another thread, and touches nothing but its own step. What the loop must learn comes back as deliveries: pairs of a job
and an event, which the loop gives to ``job.deliver`` in order, all deliveries of one step in one callback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(eq=False, kw_only=True)
class Job:
    """Work that one request asked of one lane. Models subclass it."""

    deliver: Callable[[Any], None]  # called on the event loop, with each event that the lane has for this job
    arrived_at: float  # monotonic seconds
    cancelled: bool = False  # set by the loop: nobody wants the answer; nothing is delivered any more


Delivery = tuple[Job, Any]


class Step(Protocol):
    """One run of the device, already planned."""

    def run(self) -> Sequence[Delivery]:
        """Do it and say what came of it. Blocking; outside it the GIL is held for as short as can be."""
        ...

    def fail(self, error: BaseException) -> Sequence[Delivery]:
        """``run`` raised: end the jobs that this step carried, give their places back, and say so to each."""
        ...


class BesideStep(Step, Protocol):
    """A step that may run beside others of its lane: ``run`` is ``compute`` and then ``finish``."""

    @property
    def beside(self) -> bool:
        """Whether it was planned to."""
        ...

    def compute(self) -> None:
        """The run itself, on any thread."""
        ...

    def finish(self) -> Sequence[Delivery]:
        """What came of it, on the runner thread."""
        ...


class Lane(Protocol):
    """One model's work on a device."""

    @property
    def width(self) -> int:
        """So many steps may run beside each other while no other lane has work; 1: it has no ``plan_beside``."""
        ...

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def max_stall_s(self) -> float:
        """What others may add to a decode step of this lane; math.inf: it does not decode."""
        ...

    @property
    def run_s(self) -> float:
        """Seconds spent inside the runtime so far, and copying for it what it need not read again."""
        ...

    def add(self, job: Any) -> None:
        """Queue a job. Its place was granted by an Admission before, so this never refuses."""
        ...

    def drop(self, job: Any) -> None:
        """Forget a cancelled job, wherever it stands, and give its place back. Unknown or ended jobs are ignored."""
        ...

    def ready(self, now: float) -> bool:
        """Whether ``plan`` would give a step."""
        ...

    def decoding(self) -> bool:
        """Whether some reader waits for the next token of a stream that has begun."""
        ...

    def tidy(self, now: float) -> None:
        """Give back what is kept without need: the device has nothing to run."""
        ...

    def wake_at(self) -> float | None:
        """When ``ready`` will turn true by itself (the end of a batching window); None: only by a new job."""
        ...

    def plan(self, now: float, allowance_s: float) -> Step | None:
        """The next step. allowance_s: what it may take beyond the decode steps in it; a step that cannot be made
        smaller may exceed it."""
        ...


@runtime_checkable
class WideLane(Lane, Protocol):
    """A lane whose steps may run beside each other."""

    def plan_beside(self, now: float, num_aloft: int) -> BesideStep | None:
        """The next step, while ``num_aloft`` of this lane are running, fewer than ``width``. One that is not to run
        beside others is only planned when none are, or has nothing to run."""
        ...
