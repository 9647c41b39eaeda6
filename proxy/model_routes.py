"""Model routes: what the model that a request names stands for, and in which order upstreams are asked for it. Pure.

Owns names, aliases and the order. Higher priorities come first; among equals the order is drawn by weight, or follows
from how the prompt begins, so that prompts that begin alike meet the same upstream and what it remembers of them
(rendezvous hashing: see ``balance_hash``). Behind a model's own upstreams come those of its fallbacks, in their order,
each upstream with its model once. While a model is degraded, the lighter one's come before all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Any, Final, TypeVar

from proxy.upstream.balance_hash import hash_of, mix

if TYPE_CHECKING:
    from proxy.config_models import ModelRoute as ModelRouteTable
    from proxy.llm.request import LlmRequest

MAX_TARGETS: Final = 8  # asked for one request at most
_PREFIX_CHARACTERS: Final = 2048  # of a prompt, which decide where it goes
_PREFIX_PARTS: Final = 64  # of a message
_SPAN: Final = float(1 << 64)

T = TypeVar("T")


class Target:
    """One upstream that serves a model. route: the model route that it stands for; model: its name there. Both are ""
    where a variant goes to another upstream, whatever its requests ask for."""

    __slots__ = ("model", "priority", "route", "seed", "upstream", "weight")

    def __init__(self, route: str, upstream: str, model: str, priority: int = 0, weight: int = 1) -> None:
        self.route = route
        self.upstream = upstream
        self.model = model
        self.priority = priority
        self.weight = weight
        self.seed = hash_of(f"{upstream}\0{model}")


class ModelRoute:
    """A model as requests name it."""

    __slots__ = ("by_prefix", "context", "degrade_to", "fallback", "limits", "name", "targets", "when")

    def __init__(self, name: str, table: ModelRouteTable) -> None:
        self.name = name
        self.targets = tuple(
            Target(name, each.to, each.model or name, each.priority, each.weight) for each in table.upstreams
        )
        self.by_prefix = table.balance == "prefix"
        self.fallback = table.fallback
        self.degrade_to = table.degrade_to
        self.when = table.when
        self.context = table.context
        self.limits = table.limits


class ModelRoutes:
    """Those that one route serves, by their names and aliases, and what their fallbacks and lighter models need.
    default: the model of requests that name none. beside: models that only variants of the route go to."""

    def __init__(
        self,
        tables: Mapping[str, ModelRouteTable],
        served: Iterable[str],
        default: str | None = None,
        beside: Iterable[str] = (),
    ) -> None:
        self._all = {name: ModelRoute(name, table) for name, table in tables.items()}
        self.served = tuple(self._all[name] for name in served)
        self.default = default
        self._beside = {name: self._all[name] for name in beside}
        self._by_name = {route.name: route for route in self.served}
        for route in self.served:
            for alias in tables[route.name].aliases:
                self._by_name.setdefault(alias, route)

    def find(self, name: str) -> ModelRoute | None:
        """The model of this name or alias."""
        return self._by_name.get(name)

    def asked(self, name: str) -> ModelRoute | None:
        """The model of a request that names this one; "": it names none."""
        return self.find(name or self.default or "")

    def beside(self, name: str) -> ModelRoute:
        """The model that a variant goes to."""
        return self._beside[name]

    def limits(self) -> dict[str, tuple[str, ...]]:
        """The names of limits of the models that have some."""
        return {each.name: each.limits for each in self.serving() if each.limits}

    def serving(self) -> tuple[ModelRoute, ...]:
        """All models that requests may come to by their names or a variant."""
        return tuple({route.name: route for route in (*self.served, *self._beside.values())}.values())

    def names(self) -> tuple[str, ...]:
        """All names that requests may use, aliases too."""
        return tuple(self._by_name)

    def contexts(self, of_engine: Mapping[str, int]) -> dict[str, int]:
        """How many tokens models take, as far as it is known: said by the model route, or by the engine's own model."""
        known = {}
        for route in self.serving():
            own = [
                of_engine[each.model] for each in route.targets if each.upstream == "engine" and each.model in of_engine
            ]
            if route.context is not None or own:
                known[route.name] = route.context or min(own)
        return known

    def tokenizers(self, of_engine: Mapping[str, T]) -> dict[str, T]:
        """The tokenizers of models that the local engine serves, by the names of their model routes."""
        known: dict[str, T] = {}
        for route in self.serving():
            for each in route.targets:
                if each.upstream == "engine" and each.model in of_engine:
                    known.setdefault(route.name, of_engine[each.model])
        return known

    def all_targets(self, route: ModelRoute) -> Iterator[Target]:
        """Every upstream that may come to serve a request for this model."""
        for model in (route, *self._beside.values()):
            lighter = () if model.degrade_to is None else (model.degrade_to,)
            for name in (model.name, *model.fallback, *lighter):
                yield from self._all[name].targets

    def plan(
        self, route: ModelRoute, share: Callable[[Target], float], *, degraded: bool = False, only: str | None = None
    ) -> tuple[Target, ...]:
        """The upstreams in the order in which they are asked, at most MAX_TARGETS. share: a number in (0, 1] for each:
        drawn, or from the prompt. only: the upstream that the request has asked for, and no other."""
        if only is not None:
            return tuple(target for target in route.targets if target.upstream == only)
        models = [route, *(self._all[name] for name in route.fallback)]
        if degraded and route.degrade_to is not None:
            models.insert(0, self._all[route.degrade_to])
        order: dict[tuple[str, str], Target] = {}
        for model in models:
            for target in _in_order(model.targets, share):
                order.setdefault((target.upstream, target.model), target)
        return tuple(order.values())[:MAX_TARGETS]


def _in_order(targets: Sequence[Target], share: Callable[[Target], float]) -> Sequence[Target]:
    """By priority; among equals each comes first as often as its weight says (Efraimidis and Spirakis, 2006)."""
    if len(targets) == 1:
        return targets
    return sorted(targets, key=lambda target: (-target.priority, -log(share(target)) / target.weight))


def prefix_share(prefix: int) -> Callable[[Target], float]:
    """For ``plan``: the same order for the same beginning of a prompt, and all beginnings spread by weight."""
    return lambda target: (mix(prefix ^ target.seed) + 1) / _SPAN


def prefix_of(llm: LlmRequest) -> int:
    """What stands for the beginning of a prompt: up to the first thing that the user says, which all turns of a
    conversation have in common."""
    texts: list[str] = []
    num_characters = 0
    for message in llm.messages:
        role, content = message.get("role"), message.get("content")
        parts = content[:_PREFIX_PARTS] if isinstance(content, list) else (content,)
        said = [_beginning_of(each) for each in (role, *parts)]
        texts += said
        num_characters += len(said) + sum(map(len, said))
        if role == "user" or num_characters > _PREFIX_CHARACTERS:
            break
    return hash_of("\0".join(texts or [text[:_PREFIX_CHARACTERS] for text in llm.texts[:1]])[:_PREFIX_CHARACTERS])


def _beginning_of(part: Any) -> str:
    """Of the text of a message, or of one part of it."""
    text = part.get("text", part.get("type")) if isinstance(part, dict) else part
    return text[:_PREFIX_CHARACTERS] if isinstance(text, str) else ""
