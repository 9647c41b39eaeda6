"""What every loaded model has in common, whatever it does: a name, a lane on the device, places, numbers."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

from engine.admission import Admission
from engine.job import Lane

ModelKind = Literal["chat", "embedding", "tensor"]


class Model(Protocol):
    """A loaded model, ready to serve."""

    kind: ClassVar[ModelKind]

    @property
    def name(self) -> str: ...

    @property
    def created(self) -> int: ...  # seconds since the epoch

    @property
    def lane(self) -> Lane: ...

    @property
    def admission(self) -> Admission: ...

    def allot(self, num_bytes: int) -> None:
        """What it may take for keys and values from now on; more than that it gives back. The device's thread."""
        ...

    def statistics(self) -> dict[str, float]:
        """Numbers for /metrics and for the supervisor, by name; ``*_total`` only grow. Any thread."""
        ...

    def close(self) -> None:
        """Free what it holds; the device no longer runs it."""
        ...
