"""What a request holds of its model: that it stays in memory, and one of its places.

Owns that both are given back, once, whatever ends the request. These are classes, not generators with a decorator: of a
small request's time those took a sixth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from engine.entry import Entry, Loaded
from engine.errors import RequestError, invalid
from engine.model import Model, ModelKind

if TYPE_CHECKING:
    from engine.serving import Serving

M = TypeVar("M", bound=Model)


class Place:
    """One of a model's places."""

    __slots__ = ("_model", "_serving")

    def __init__(self, serving: Serving, model: Model) -> None:
        self._serving = serving
        self._model = model

    def __enter__(self) -> None:
        self._serving.take_place(self._model)

    def __exit__(self, *ended: object) -> None:
        self._model.admission.leave()


class Use(Generic[M]):
    """A model, and one of its places."""

    __slots__ = ("_entry", "_loaded", "_serving", "_type")

    def __init__(self, serving: Serving, entry: Entry, type_: type[M]) -> None:
        self._serving = serving
        self._entry = entry
        self._type = type_
        self._loaded: Loaded | None = None

    async def __aenter__(self) -> M:
        fleet = self._serving.fleet
        loaded = self._loaded = await fleet.take(self._entry)
        model = loaded.model
        try:
            if model.kind != self._type.kind:  # another folder was loaded under this name while the request waited
                raise of_another_kind(model.name, model.kind)
            self._serving.take_place(model)
        except BaseException:
            fleet.leave(loaded)
            raise
        return cast(M, model)

    async def __aexit__(self, *ended: object) -> None:
        assert self._loaded is not None
        self._loaded.model.admission.leave()
        self._serving.fleet.leave(self._loaded)


def of_another_kind(name: str, kind: ModelKind) -> RequestError:
    """A 400: the model is there, but for another endpoint."""
    return invalid(f"the model {name!r} is of kind {kind}; this endpoint does not serve it", "model")
