"""What one request asks of one place in a batch. Plain data, pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A part of a batch that is never cut."""

    payload: Any  # what the model's `run` takes; of tensor models dict[str, ndarray], each with the batch axis first
    rows: int = 1  # that it takes of max_batch, at least 1; one of more rows than that runs alone
    size: int = 1  # what each row costs, at least 1: tokens, pixels, or 1 where all cost alike
    shape: Hashable = ()  # only items of equal shape share a run
