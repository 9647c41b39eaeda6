"""The whole configuration file as tables: the appliance's own keys around the edge's vocabulary of ``proxy.config``.

Owns what the keys are called, their units, defaults and bounds; conf/headrace.yaml shows every one of them. Knows
nothing of files: whether a path exists is found out by ``appliance.config.materials``.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from engine.batching.settings import BatchingSettings, Cost, LevelSettings, Lines
from engine.batching.window import PolicyName
from engine.providers import ProviderName
from engine.settings import Control
from proxy.config import Address, Defaults, Limit, Listener, Table, Upstream
from proxy.config_budgets import Budget, Usage
from proxy.config_models import ModelRoute
from proxy.config_routes import Route as ProxyRoute
from proxy.units import Duration, Percent, Size

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
PositiveDuration = Annotated[Duration, Field(gt=0)]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name; write 1 to 100 letters, digits, and . _ : / - after the first")
    return value


Name = Annotated[str, AfterValidator(_name)]


class Secret(Table):
    """Where a secret's value comes from: the contents of a file, less its last line break, or a variable."""

    file: Annotated[str, Field(min_length=1)] | None = None
    env: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Secret:
        if (self.file is None) == (self.env is None):
            raise ValueError("expected exactly one of `file: PATH` and `env: VARIABLE`")
        return self


class Admin(Table):
    address: Address | None = "127.0.0.1:9180"  # /metrics and /healthz, loopback only; null: none


class Log(Table):
    level: Literal["debug", "info", "warning", "error"] = "info"
    access: Annotated[str, Field(min_length=1)] = "stderr"  # stderr, off, or a file to append to


class Level(Table):
    """What may wait of the requests of one priority."""

    queue: Count | None = None  # beside a running batch; beyond it 503; null: the model's queue alone counts
    timeout: PositiveDuration | None = None  # one that waits longer is refused with 503; null: none is

    @property
    def settings(self) -> LevelSettings:
        return LevelSettings(self.queue, self.timeout)


class Levels(Table):
    high: Level = Level()
    normal: Level = Level()
    low: Level = Level()


class Batching(Table):
    """How a model that is not a chat model shares its runs. null: what its folder says, else the engine's default."""

    max_batch: Annotated[int, Field(ge=1, le=4096)] | None = None  # rows in one run
    window: Duration | Auto | None = None  # how long a free device may wait for company; auto: while it pays
    policy: PolicyName | None = None
    cost: Cost | None = None  # what makes a row dear
    levels: Levels = Levels()  # by headrace-priority
    log: Lines | None = None  # of a line for each run: every, one a second, none


class Slo(Table):
    """What the operator promises of a model: waiting for company may not break it."""

    p99: PositiveDuration


class Model(Table):
    path: Annotated[str, Field(min_length=1)] | None = None  # a model folder; null: its name in the repository
    queue: Count = 128  # requests that may wait for a place; beyond it 503
    slots: Annotated[int, Field(ge=1, le=1024)] = 16  # chat: sequences that run at once
    context: Count | None = None  # chat: tokens per slot; null: what the model was trained for
    max_stall: PositiveDuration = 0.1  # chat: what other work may add to a decode step
    prefix_ttl: Duration = 600.0  # chat: how long a text is kept for others that begin like it
    prefix_sharing: Literal["key", "all"] = "key"  # chat: others of the same API key, or of any
    speculation: bool = True  # chat: read likely tokens ahead where it pays
    deterministic: bool = False  # chat: the same bits alone and beside others, slower and without speculation
    batching: Batching = Batching()  # embedding, tensor
    slo: Slo | None = None  # embedding, tensor
    instances: Annotated[int, Field(ge=1, le=64)] | None = None  # tensor: sessions that share a batch; null: its folder
    provider: ProviderName | None = None  # null: as the folder says, else cpu
    provider_options: dict[str, str | int] = Field(default_factory=dict)  # as ONNX Runtime knows them
    fallback: tuple[ProviderName, ...] = ()  # what to try when the provider is not there or does not start
    idle_unload: PositiveDuration | None = None  # unused for so long it is unloaded; null: not until others need room

    @property
    def batching_settings(self) -> BatchingSettings:
        """As the engine takes them."""
        batching = self.batching
        return BatchingSettings(
            max_batch=batching.max_batch,
            window_s=batching.window,
            policy=batching.policy,
            cost=batching.cost,
            levels=(batching.levels.high.settings, batching.levels.normal.settings, batching.levels.low.settings),
            slo_p99_s=None if self.slo is None else self.slo.p99,
            log=batching.log,
        )


class Models(Table):
    """Options of the engine, and beside them each model under its name, as requests call it."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Model]

    threads: Count | Auto = "auto"  # of one run on the device; auto: one per usable core
    memory: Annotated[Percent, Field(gt=0)] = 0.7  # what all models may take of what the engine has or could get
    hang: PositiveDuration = 30.0  # a run longer than this means that the engine hangs: it is replaced
    max_body: Size = 8 << 20  # of a request to the engine
    repository: Annotated[str, Field(min_length=1)] | None = None  # a directory: each model folder in it is served
    control: Control = "admin"  # who may load and unload models

    @model_validator(mode="after")
    def _names(self) -> Models:
        for name in self.by_name:
            _name(name)
        return self

    @property
    def by_name(self) -> dict[str, Model]:
        return self.__pydantic_extra__

    def path_of(self, name: str) -> str:
        """The folder of a model, by its name here, as the file has it. References are checked: it has a path, or there
        is a repository."""
        return self.by_name[name].path or f"{self.repository}/{name}"

    @property
    def any(self) -> bool:
        """Whether there is an engine."""
        return bool(self.by_name or self.repository)


class Route(ProxyRoute):
    """A route, and what the appliance must know of it before it lets the network reach the route."""

    allow_anonymous: bool = False  # serve the engine, or an upstream with our key, to callers without a key


MAX_WORKERS = 256


class HeadraceConfig(Table):
    """The file. Every key but ``listeners`` may be left out."""

    include: tuple[str, ...] = ()
    defaults: Defaults = Defaults()
    secrets: dict[Name, Secret] = Field(default_factory=dict)
    runtime_dir: Annotated[str, Field(min_length=1)] | None = None
    drain: Duration = 30.0
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] | Auto = "auto"
    admin: Admin = Admin()
    log: Log = Log()
    listeners: Annotated[tuple[Listener, ...], Field(min_length=1)]
    models: Models = Models()
    upstreams: dict[Name, Upstream] = Field(default_factory=dict)
    limits: dict[Name, Limit] = Field(default_factory=dict)
    budgets: dict[Name, Budget] = Field(default_factory=dict)
    usage: Usage | None = None
    model_routes: dict[Name, ModelRoute] = Field(default_factory=dict)
    routes: tuple[Route, ...] = ()
