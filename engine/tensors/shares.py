"""How a batch is divided among the instances of a model. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def shares(rows: Sequence[int], num_instances: int) -> list[slice]:
    """Slices of the payloads, one for each instance that gets any: all payloads in their order, about as many rows
    each. rows: of each payload, which is never cut."""
    total = sum(rows)
    parts: list[slice] = []
    begin = taken = 0
    for instance in range(num_instances):
        due = total * (instance + 1) / num_instances
        end = begin
        while end < len(rows) and (end == begin or taken + rows[end] / 2 <= due):
            taken += rows[end]
            end += 1
        if end > begin:
            parts.append(slice(begin, end))
        begin = end
    return parts if begin == len(rows) else [*parts[:-1], slice(parts[-1].start, len(rows))]
