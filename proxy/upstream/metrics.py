"""What is counted of servers, resolved to cells when a snapshot is built."""

from __future__ import annotations

from proxy.cells import Cells


class ServerMetrics:
    """One server's numbers."""

    def __init__(self, cells: Cells, upstream: str, server: str) -> None:
        labels = {"upstream": upstream, "server": server}
        self.up = cells.gauge(
            "headrace_server_up", "Whether the server passes its checks; 1 where none are configured.", labels,
            combine="max",
        )  # fmt: skip
        self.ejections = cells.counter(
            "headrace_server_ejections_total", "Times that failures running left the server out for a while.", labels
        )
        self.checks = {
            ok: cells.counter(
                "headrace_server_checks_total", "Checks of the server, by result.", {**labels, "result": result}
            )
            for ok, result in ((True, "good"), (False, "bad"))
        }
        self.connections = cells.gauge("headrace_server_connections", "Open connections to the server.", labels)
        self.connects = cells.counter("headrace_server_connects_total", "Connections made to the server.", labels)
        self.connect_failures = cells.counter(
            "headrace_server_connect_failures_total", "Connections to the server that could not be made.", labels
        )
        self.pending = cells.gauge(
            "headrace_server_pending", "Requests that wait for one of the server's connections.", labels
        )
        self.refused = {
            limit: cells.counter(
                "headrace_server_refused_total", "Requests refused by the server's bounds, by which.",
                {**labels, "limit": limit},
            )
            for limit in ("pending", "pending_timeout")
        }  # fmt: skip
        self.dns_failures = cells.counter(
            "headrace_dns_failures_total", "Times that the server's name could not be resolved.", labels
        )


class UpstreamMetrics:
    """One upstream's numbers."""

    def __init__(self, cells: Cells, upstream: str) -> None:
        labels = {"upstream": upstream}
        self.panic = cells.gauge(
            "headrace_upstream_panic", "1 while more than half of the servers would be left out, so that all are used.",
            labels, combine="max",
        )  # fmt: skip
        self.panics = cells.counter("headrace_upstream_panics_total", "Times that panic began.", labels)
