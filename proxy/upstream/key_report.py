"""Who is told that an upstream has refused one of our keys: the metric, the log, and those who follow events."""

from __future__ import annotations

import logging
from collections.abc import Callable

from proxy.cells import Cells
from proxy.policy.env import Notify

log = logging.getLogger("headrace.proxy")


def key_teller(name: str, num_keys: int, cells: Cells, notify: Notify | None) -> Callable[[int, int, float], None]:
    """For the keys of the upstream ``name``: takes a key's index, the status it was answered, and its rest in s."""
    counters = [
        cells.counter(
            "headrace_upstream_keys_refused_total",
            "Times that an upstream has refused one of its keys, which then rests; by the key's place, from 1.",
            {"upstream": name, "key": str(place)},
        )
        for place in range(1, num_keys + 1)
    ]

    def tell(index: int, status: int, rest_s: float) -> None:
        """Which key it is, and never what it is."""
        counters[index].add()
        text = (
            f"upstream {name}: key {index + 1} of {num_keys} was answered {status} and rests for {rest_s:g} s; "
            "the next one is used, if one is left"
        )
        log.warning("%s", text)
        if notify is not None:
            notify({"kind": "key", "text": text, "upstream": name, "key": index + 1, "status": status})

    return tell
