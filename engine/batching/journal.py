"""The log lines of a batching lane: one for each run, or fewer; what misfits; when an SLO shuts the window.

Knows no clock: ``now`` is an argument.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

from engine.batching.misfit import ADVICE, Kind
from engine.batching.settings import Lines
from engine.batching.window import Trigger

_log = logging.getLogger("headrace.batching")  # below headrace: shown from `log: {level: info}`, as the program's own


class Window(NamedTuple):
    """One run, from the first of its requests to its end."""

    pending_requests: int  # rows that waited as the batch was formed
    actual_batch_size: int  # rows that ran
    trigger: Trigger
    trigger_threshold: float  # rows, or microseconds: what the trigger was
    waited_us: int  # that a free device was held for company
    latency_us: int  # from the arrival of the first of its requests to the end of the run


class Journal:
    """The lines of one model."""

    def __init__(self, name: str, lines: Lines) -> None:
        self._name = name
        self._gap_s = {"every": 0.0, "second": 1.0, "none": math.inf}[lines]
        self._next_at = -math.inf if lines != "none" else math.inf
        self._num_windows = 0
        self._num_skipped = 0

    def window(self, window: Window, now: float) -> None:
        """A run has ended. A line costs about as much as a small model's run, so most are left out by default."""
        self._num_windows += 1
        if now < self._next_at:
            self._num_skipped += 1
            return
        self._next_at = now + self._gap_s
        _log.info(
            "model %s: window_id=%d pending_requests=%d actual_batch_size=%d trigger=%s trigger_threshold=%g"
            " waited_us=%d latency_us=%d skipped=%d",
            self._name,
            self._num_windows,
            *window,
            self._num_skipped,
        )
        self._num_skipped = 0

    def misfit(self, kind: Kind) -> None:
        """Traffic has begun not to fit."""
        _log.warning("model %s: misfit=%s: %s", self._name, kind, ADVICE[kind])

    def slo(self, shut: bool, p99_s: float) -> None:
        """Waiting broke the promise, or does not any more."""
        if shut:
            message = "waiting for company breaks its slo (p99 %g ms): the window is zero until it would not"
        else:
            message = "its slo (p99 %g ms) leaves room to wait for company again"
        _log.warning("model %s: " + message, self._name, p99_s * 1000)
