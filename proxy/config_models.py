"""The tables of ``model_routes`` and of ``to: {models: [...]}`` in a route: which upstreams serve a model, and when."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from proxy.config import Table
from proxy.units import Duration

ModelName = Annotated[str, Field(min_length=1, max_length=200)]


class ModelTarget(Table):
    """One upstream that serves a model."""

    to: Annotated[str, Field(min_length=1)]  # "engine" or a key of upstreams
    model: ModelName | None = None  # what it is called there; None: as the model route
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0  # higher ones are asked first
    weight: Annotated[int, Field(ge=1, le=1000)] = 1  # share of the requests among those of one priority


class When(Table):
    """When requests go to the lighter model: the first tokens of the last ``window`` came too late."""

    first_token_p95: Annotated[Duration, Field(gt=0)] = 1.2
    window: Annotated[Duration, Field(gt=0)] = 60.0
    min_requests: Annotated[int, Field(ge=1)] = 20  # below them in a window it stays as it is


class ModelRoute(Table):
    """A model as requests name it."""

    aliases: tuple[ModelName, ...] = ()  # other names for it
    upstreams: Annotated[tuple[ModelTarget, ...], Field(min_length=1, max_length=16)]
    balance: Literal["weight", "prefix"] = "weight"  # prefix: prompts that begin alike go to the same upstream
    fallback: Annotated[tuple[ModelName, ...], Field(max_length=8)] = ()  # models that answer if none of these can
    degrade_to: ModelName | None = None  # the model that takes new requests while this one is slow
    when: When = When()
    context: Annotated[int, Field(ge=1)] | None = None  # tokens of prompt and answer; None: the engine knows its own
    limits: Annotated[tuple[str, ...], Field(max_length=8)] = ()  # under which all requests for it are counted


#: Of one box: each takes some 20 MiB of every worker whose routes count with it.
MAX_TOKENIZERS = 8


class Tokenizer(Table):
    """Where a local model's tokenizer is, and how it is read: as ranks, or as a tokenizer.json. sha256: of the file, by
    which two models with the same one are known."""

    kind: Literal["tiktoken", "tokenizers"]
    file: str  # a path
    sha256: str
    pattern: str | None = None  # tiktoken: how text is split before merging
    nfc: bool = False  # tiktoken: text is composed before


class ToModels(Table):
    """``to: {models: [...]}``: the model that a request names decides which upstream it goes to."""

    models: Annotated[tuple[ModelName, ...], Field(min_length=1)]  # keys of model_routes
    default: ModelName | None = None  # for requests that name none


def _arm(value: Any) -> str:
    return "text" if isinstance(value, str) else "table"


#: "engine", a key of upstreams, or models.
RouteTarget = Annotated[
    Annotated[Annotated[str, Field(min_length=1)], Tag("text")] | Annotated[ToModels, Tag("table")], Discriminator(_arm)
]
