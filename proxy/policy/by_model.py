"""Which upstreams may serve a request, by the model that it names: on routes ``to: {models: [...]}``. Pure.

Not among ``policies:``: the route itself says that it is there. It finds the model, holds it against what the key may
use, and puts the upstreams in order (``proxy.model_routes``); whoever forwards asks them one after the other. A key
that may not use a model is told the same as of a model that does not exist. ``GET .../models`` is answered here. The
answer says which model and upstream served, and that no cache may keep it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from proxy.cells import Cells
from proxy.chain import Policy
from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Head, Outcome, Reply
from proxy.held_body import HeldBody
from proxy.llm.request import LlmRequest
from proxy.llm.slo import PROBES, RECORD_SIZE, ROW_SIZE, FirstTokens
from proxy.model_routes import ModelRoute, ModelRoutes, Target, prefix_of, prefix_share
from proxy.policy.env import Notify, PolicyEnv
from proxy.policy.private_answers import keep_private, varies_by
from proxy.upstream.breaker import Breaker
from proxy.upstream.breaker_table import State

log = logging.getLogger("headrace.proxy")

NAME: Final = "by_model"
#: By which a request may choose its upstream.
CHOICE: Final = "X-Prompt-Route"
#: In ``Exchange.scratch``: the model that serves instead of the one that is asked for, where a policy says so.
INSTEAD: Final = "instead"
_MODELS: Final = "/models"
_CACHING: Final = ((b"Cache-Control", b"private, no-store"), (b"Vary", b"Authorization, X-API-Key"))
#: Ends before any token that say how long one took at least.
_WITHOUT_TOKEN: Final = frozenset(
    {Ending.UPSTREAM_FAILED, Ending.UPSTREAM_ABORTED, Ending.UPSTREAM_ERROR, Ending.CLIENT_GONE}
)
#: Ends of answers that were none, whenever their first token came.
_FAILED: Final = frozenset({Ending.UPSTREAM_ABORTED, Ending.UPSTREAM_ERROR})


def build(models: ModelRoutes, env: PolicyEnv, breakers: Mapping[str, Breaker]) -> ByModel:
    """The policy of one route. Raises ValueError if the common table has no room for what it counts."""
    promises = {route.name: _promise(route, env) for route in models.serving() if route.degrade_to is not None}

    def draw() -> float:
        return (int(env.draw_hex(4), 16) + 1) / (1 << 32)

    return ByModel(models, breakers, promises, draw, _Metrics(env.cells, models), varies_by(env), env.notify)


def _promise(route: ModelRoute, env: PolicyEnv) -> FirstTokens:
    """A model's, the same for all routes and workers; another table goes on with what was counted."""
    place = f"first tokens {route.name}"
    return env.states.get(
        (place, route.when),
        lambda: FirstTokens(route.when, env.shared.record(place, RECORD_SIZE), env.shared.columns(place, ROW_SIZE)),
    )


class ByModel(Policy):
    """promises: of models that may be degraded, by name. notify: told of models that become degraded, and come back."""

    def __init__(
        self,
        models: ModelRoutes,
        breakers: Mapping[str, Breaker],
        promises: Mapping[str, FirstTokens],
        draw: Callable[[], float],
        metrics: _Metrics,
        vary: bytes,
        notify: Notify | None = None,
    ) -> None:
        self._vary = vary
        self._notify = notify
        self._models = models
        self._breakers = breakers
        self._promises = promises
        self._draw = draw
        self._metrics = metrics
        self._degraded: dict[str, bool] = {}

    def reads_body(self) -> bool:
        return True

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        if x.body is None:
            return None
        if not x.body.json_at_once():
            return self._read(x)
        self._find(x, x.body)
        return None

    async def _read(self, x: Exchange) -> None:
        assert x.body is not None
        await x.body.read_json()
        self._find(x, x.body)

    def _find(self, x: Exchange, body: HeldBody) -> None:
        found = self._models.asked(body.llm.model if body.llm is not None else "")
        if found is not None:
            instead: ModelRoute | None = x.scratch.get(INSTEAD)
            x.scratch["model"] = (instead or found).name
            x.scratch[NAME] = found

    def admit(self, x: Exchange, now: float) -> Reply | None:
        x.drop.add(b"x-prompt-route")
        if x.body is None:
            return self._without_body(x)
        llm = x.body.llm
        if llm is None:
            return refuse(x, Kind.BAD_REQUEST, "The body is not a JSON object as this path takes it.")
        route: ModelRoute | None = x.scratch.get(NAME)
        if not llm.model:
            document = x.body.json
            if isinstance(document, dict) and "model" in document:
                message = "The field `model` must be a string that names a model."
                return refuse(x, Kind.BAD_REQUEST, message, param="model")
            if self._models.default is None:
                return refuse(x, Kind.BAD_REQUEST, "Name a model: the field `model` is missing.", param="model")
        if route is None or not self._may_use(x, route.name, llm.model):
            message = (
                "There is no such model here for this API key. GET the path that ends with /models for those there are."
            )
            return refuse(x, Kind.MODEL_NOT_FOUND, message, param="model")
        only = x.fields.get(CHOICE) or None
        if only is not None and (reply := self._refused_choice(x, route, only)) is not None:
            return reply
        serving: ModelRoute = x.scratch.pop(INSTEAD, route)
        degraded = self._degrades(serving, now)
        x.targets = self._models.plan(serving, self._share(serving, llm), degraded=degraded, only=only)
        return None

    @staticmethod
    def _may_use(x: Exchange, *names: str) -> bool:
        return x.key is None or any(x.key.allow.model(name) for name in names if name)

    def _refused_choice(self, x: Exchange, route: ModelRoute, only: str) -> Reply | None:
        allowed = x.key.allow.upstreams if x.key is not None else ()
        if only not in allowed and "*" not in allowed:
            return refuse(
                x, Kind.FORBIDDEN, f"This API key may not choose that upstream by {CHOICE}. Leave the field out."
            )
        names = dict.fromkeys(target.upstream for target in route.targets)
        if only not in names:
            message = f"The upstream that {CHOICE} names does not serve this model; those that do: {', '.join(names)}."
            return refuse(x, Kind.BAD_REQUEST, message)
        return None

    def _share(self, route: ModelRoute, llm: LlmRequest) -> Callable[[Target], float]:
        return prefix_share(prefix_of(llm)) if route.by_prefix else lambda _target: self._draw()

    def _degrades(self, route: ModelRoute, now: float) -> bool:
        """Whether this request goes to the lighter model first."""
        promise = self._promises.get(route.name)
        if promise is None:
            return False
        broken = promise.broken(now)
        slow = broken or self._breakers[route.targets[0].upstream].state is State.DEGRADED
        if slow is not self._degraded.get(route.name, False):
            self._degraded[route.name] = slow
            self._metrics.degraded[route.name].set(float(slow))
        if promise.turned(slow):
            why = "first tokens come too late" if broken else "its upstream is degraded"
            verdict = f"new requests go to {route.degrade_to} first: {why}" if slow else "serves its own requests again"
            text = f"model {route.name}: {verdict}"
            log.log(logging.WARNING if slow else logging.INFO, "%s", text)
            if self._notify is not None:
                self._notify({"kind": "degrade", "text": text, "model": route.name, "degraded": slow})
        return slow and self._draw() >= PROBES

    def _without_body(self, x: Exchange) -> Reply:
        _, found, name = x.path.partition(_MODELS)
        if x.method not in ("GET", "HEAD") or not found or (name and not name.startswith("/")):
            message = "This route takes requests whose body names a model, and GET of the path that ends with /models."
            return refuse(x, Kind.NOT_FOUND, message)
        names = [each for each in self._models.names() if self._may_use(x, each)]
        if not name or name == "/":
            return _json({"object": "list", "data": [_described(each) for each in names]})
        if name[1:] not in names:
            return refuse(x, Kind.MODEL_NOT_FOUND, "There is no such model here for this API key.", param="model")
        return _json(_described(name[1:]))

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        target = x.served_by
        if target is None:
            return
        keep_private(head, self._vary)
        head.headers.append((b"headrace-model", target.route.encode("latin-1", "replace")))
        head.headers.append((b"headrace-upstream", target.upstream.encode("latin-1", "replace")))

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        route: ModelRoute | None = x.scratch.pop(NAME, None)
        target = x.served_by
        if route is None or target is None:
            return
        self._metrics.served(route, target)
        promise = self._promises.get(target.route)
        if promise is None:
            return
        if x.first_token_at and outcome.ending not in _FAILED:
            promise.told(x.first_token_at - x.admitted_at, now)
        elif x.first_token_at:
            promise.waited(x.first_token_at - x.admitted_at, now)  # what failed is no evidence that all is well
        elif outcome.ending in _WITHOUT_TOKEN and (not x.first_byte_at or _streams(x)):
            promise.waited(now - x.admitted_at, now)


class _Metrics:
    """Of the models that one route may come to."""

    def __init__(self, cells: Cells, models: ModelRoutes) -> None:
        doc = "Requests by the model that they were for and by what answered: its model and upstream."
        self._served = {
            (asked.name, target.route, target.upstream): cells.counter(
                "headrace_model_requests_total",
                doc,
                {"model": asked.name, "served": target.route, "upstream": target.upstream},
            )
            for asked in models.served
            for target in models.all_targets(asked)
        }
        self.degraded = {
            route.name: cells.gauge(
                "headrace_model_degraded",
                "1 while a model's new requests go to its lighter one first.",
                {"model": route.name},
                combine="max",
            )
            for route in models.serving()
            if route.degrade_to is not None
        }

    def served(self, asked: ModelRoute, target: Target) -> None:
        """Count a request."""
        self._served[asked.name, target.route, target.upstream].add()


def _streams(x: Exchange) -> bool:
    return x.body is not None and x.body.llm is not None and x.body.llm.stream


def _described(name: str) -> dict[str, Any]:
    """A model as OpenAI lists it. When it was made is not known here."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "headrace"}


def _json(value: Any) -> Reply:
    return Reply(200, ((b"Content-Type", b"application/json"), *_CACHING), orjson.dumps(value))
