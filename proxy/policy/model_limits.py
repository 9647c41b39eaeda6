"""The limits of the models of a route: each request counts under those of the model that it is for. Pure.

They stand beside the route's own limits: all must have room, and what one of them refuses counts under none. A limit
that several models name is one for all of them. Tokens of the same limits are counted by ``proxy.policy.token_limits``.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.chain import Policy
from proxy.exchange import Exchange, Head, Reply
from proxy.named_limit import NamedLimit
from proxy.policy.env import PolicyEnv
from proxy.policy.rate_limit import NAME, OF_MODEL, RateLimit, give_back


def build_model_limits(env: PolicyEnv) -> ModelLimits | None:
    """Those of the route's models; None: no model has any. What the route counts anyway is not counted twice."""
    by_model = {}
    for model, names in limits_of_models(env).items():
        limits = [NamedLimit(name, env) for name in names if env.limits[name].requests is not None]
        if limits:
            by_model[model] = RateLimit(limits, name=OF_MODEL)
    return ModelLimits(by_model) if by_model else None


def limits_of_models(env: PolicyEnv) -> dict[str, tuple[str, ...]]:
    """The names of limits of each model of the route, without those of the route."""
    own = frozenset(getattr(env.beside, NAME, None) or ())
    known = env.models.limits() if env.models is not None else {}
    return {model: tuple(name for name in dict.fromkeys(names) if name not in own) for model, names in known.items()}


class ModelLimits(Policy):
    """by_model: the limits of the models that have some."""

    def __init__(self, by_model: Mapping[str, RateLimit]) -> None:
        self._by_model = by_model

    def admit(self, x: Exchange, now: float) -> Reply | None:
        limits = self._by_model.get(x.scratch.get("model", ""))
        if limits is None:
            return None
        reply = limits.admit(x, now)
        if reply is not None:
            standing = x.scratch.pop(OF_MODEL)  # of which nothing was taken
            give_back(x, now)
            x.scratch[OF_MODEL] = standing
        return reply

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        limits = self._by_model.get(x.scratch.get("model", ""))
        if limits is not None:
            limits.respond(x, head, now)
