"""The error for what the system does not let us have: an address, a directory, a file."""

from __future__ import annotations

from collections.abc import Sequence


class ResourceError(Exception):
    """``problems`` says of each what cannot be had, why, and what to do."""

    def __init__(self, *problems: str) -> None:
        self.problems: Sequence[str] = problems
        super().__init__("; ".join(problems))
