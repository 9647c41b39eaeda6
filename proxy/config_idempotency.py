"""The tables of ``policies: {idempotency: ...}``: how long answers are kept under their keys, and where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from proxy.config import Table
from proxy.units import Duration, Size


class File(Table):
    """A SQLite file, which keeps answers across restarts."""

    path: Annotated[str, Field(min_length=2, pattern="^/")]  # made if it is not there; its directory must be
    size: Annotated[Size, Field(ge=16 << 20)] = 256 << 20  # of the file; the oldest answers make room
    entries: Annotated[int, Field(ge=100)] = 100_000


class Idempotency(Table):
    ttl: Annotated[Duration, Field(gt=0)] = 86_400.0  # for which an answer is kept
    answer: Annotated[Size, Field(gt=0, le=4 << 20)] = 1 << 20  # a larger one is not kept, nor carried out again
    store: Literal["memory"] | File = "memory"  # of the box: 64 MiB for all routes, until headrace stops

    @model_validator(mode="after")
    def _fits(self) -> Idempotency:
        if isinstance(self.store, File) and self.store.size < 4 * self.answer:
            raise ValueError("store.size must be at least four times `answer`")
        return self
