"""What the engine is started with: frozen, in SI units, and the same on both sides of the control channel.

Owns the defaults of a model's serving options and their JSON form. Knows nothing of YAML: the appliance makes these
from the ``models:`` table, ``python -m engine`` from its arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.batching.settings import BatchingSettings
from engine.providers import Placement, ProviderName


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one model folder is served. Options of the other kind of model are ignored."""

    name: str  # what a request says in "model"
    path: str  # the model folder
    max_queue: int = 128  # requests that may wait for a place; beyond it: 503 with Retry-After
    slots: int = 16  # chat: sequences that run at once
    context: int | None = None  # chat: tokens per slot; None: what the model was trained for
    max_stall_s: float = 0.1  # chat: what other work on the device may add to a decode step
    prefix_ttl_s: float = 600.0  # chat: how long a text is kept for others that begin like it; 0: not at all
    prefix_sharing: Literal["key", "all"] = "key"  # chat: others of the same API key, or of any
    speculation: bool = True  # chat: read likely tokens ahead where it pays; changes no answer's distribution
    deterministic: bool = False  # chat: the same bits alone and beside others, slower and without speculation
    batching: BatchingSettings = BatchingSettings()  # noqa: RUF009 (frozen); embedding, tensor: who shares a run
    instances: int | None = None  # tensor: sessions that each run a share of a batch; None: as its folder says
    provider: ProviderName | None = None  # where its graph runs; None: as its folder says, else on the CPU
    provider_options: Mapping[str, str] = field(default_factory=dict)  # as ONNX Runtime knows them
    fallback: tuple[ProviderName, ...] = ()  # what to try when the provider is not there or does not start
    idle_unload_s: float | None = None  # unused for so long it is unloaded; None: not before others need its memory

    def __post_init__(self) -> None:
        for name in ("slots", "max_queue"):
            if getattr(self, name) < 1:
                raise ValueError(f"model {self.name!r}: {name} must be at least 1")
        if self.instances is not None and self.instances < 1:
            raise ValueError(f"model {self.name!r}: instances must be at least 1")
        if self.prefix_ttl_s < 0:
            raise ValueError(f"model {self.name!r}: prefix_ttl_s must not be below 0")
        if self.max_stall_s <= 0:
            raise ValueError(f"model {self.name!r}: max_stall_s must be above 0")
        if self.idle_unload_s is not None and self.idle_unload_s <= 0:
            raise ValueError(f"model {self.name!r}: idle_unload_s must be above 0")

    @property
    def placement(self) -> Placement:
        """Where its graph runs, as far as its folder says nothing."""
        return Placement(self.provider or "cpu", self.provider_options, self.fallback)


Control = Literal["clients", "admin"]  # who may load and unload models: requests too, or the operator alone


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine process: where it listens and what it serves."""

    socket_path: str  # unix socket; shorter than 107 bytes
    models: tuple[ModelSettings, ...]
    repository: str | None = None  # a directory of more model folders, each served under its directory's name
    control: Control = "admin"
    threads: int = 0  # of the runtime, for one run; 0: one per usable core
    memory: float = 0.7  # the part of what the engine has or could get of the box's memory that models may take
    hang_s: float = 30.0  # a run of the device longer than this means that the runner hangs
    max_body_bytes: int = 8 << 20  # of a request body; beyond it: 413

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if not 0 < self.memory <= 1:
            raise ValueError(f"memory must be above 0 and at most 1, not {self.memory}")
        if len(set(names)) != len(names):
            raise ValueError(f"two models share a name: {', '.join(sorted(names))}")
        if len(self.socket_path.encode()) > 106:
            raise ValueError(f"{self.socket_path}: a unix socket's path must be shorter than 107 bytes")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for the control channel."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EngineSettings:
        """The settings that ``to_json`` gave. Raises TypeError on an unknown key, ValueError on a bad value."""
        models = [
            {
                **model,
                "fallback": tuple(model.get("fallback", ())),
                "batching": BatchingSettings.from_json(model["batching"])
                if "batching" in model
                else BatchingSettings(),
            }
            for model in value["models"]
        ]
        return cls(**{**value, "models": tuple(ModelSettings(**model) for model in models)})
