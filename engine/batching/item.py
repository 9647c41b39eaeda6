"""What one request asks of one place in a batch. Plain data, pure; never changed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Item:
    """A part of a batch that is never cut."""

    __slots__ = ("payload", "rows", "shape", "size")

    def __init__(self, payload: Any, rows: int = 1, size: int = 1, shape: Hashable = ()) -> None:
        self.payload = payload  # for the model's `run`; of tensor models dict[str, ndarray], with the batch axis first
        self.rows = rows  # that it takes of max_batch, at least 1; one of more rows than that runs alone
        self.size = size  # what each row costs, at least 1: tokens, pixels, or 1 where all cost alike
        self.shape = shape  # only items of equal shape share a run
