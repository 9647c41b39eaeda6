"""What the proxy counts of its requests and connections, resolved to cells when a snapshot is built."""

from __future__ import annotations

from typing import Final

from proxy.cells import Cells, Counter
from proxy.exchange import Ending, Exchange, Outcome

_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")


class RouteMetrics:
    """One route's numbers: a request costs four additions."""

    def __init__(self, cells: Cells, route: str) -> None:
        labels = {"route": route}
        by_class = [
            cells.counter("headrace_requests_total", "Requests answered, by route and class of status.",
                          {**labels, "status": status})
            for status in _CLASSES
        ]  # fmt: skip
        #: By hundreds of the status; what is no status counts with its neighbour.
        self._requests = (by_class[0], *by_class, *by_class[-1:] * 4)
        self._seconds = cells.histogram(
            "headrace_request_seconds", "From a request's head to the end of its answer.", labels
        )
        self._first_byte = cells.histogram(
            "headrace_first_byte_seconds", "From a request's head to the first byte of the upstream's answer.", labels
        )
        self._in = cells.counter("headrace_request_body_bytes_total", "Bytes of request bodies taken.", labels)
        self._out = cells.counter("headrace_response_body_bytes_total", "Bytes of response bodies sent.", labels)
        self._endings: dict[Ending, Counter] = {
            ending: cells.counter(
                "headrace_exchanges_cut_total",
                "Exchanges that did not end with a whole answer, by how they ended.",
                {**labels, "ending": ending.value},
            )
            for ending in Ending
            if ending not in (Ending.COMPLETE, Ending.REFUSED)
        }

    def count(self, x: Exchange, outcome: Outcome, now: float) -> None:
        """Count one ended request."""
        started_at, first_byte_at = x.started_at, x.first_byte_at
        self._requests[outcome.status // 100].add()
        self._seconds.observe(now - started_at)
        if first_byte_at:
            self._first_byte.observe(first_byte_at - started_at)
        if x.bytes_in:
            self._in.add(x.bytes_in)
        if x.bytes_out:
            self._out.add(x.bytes_out)
        cut = self._endings.get(outcome.ending)
        if cut is not None:
            cut.add()


class WorkerMetrics:
    """The worker's own gauges."""

    def __init__(self, cells: Cells) -> None:
        self.loop_lag = cells.gauge(
            "headrace_loop_lag_seconds", "How late the event loop ran its last sweep.", combine="max"
        )
        self.connections = cells.gauge("headrace_connections", "Open client connections.")
        self.relays = cells.gauge("headrace_exchanges", "Requests being answered by an upstream.")
        self.log_dropped = cells.counter(
            "headrace_access_log_dropped_total", "Access-log lines dropped because the log was not taken in time."
        )
