"""The tokens of named limits: taken before a request is sent, settled when it is known how many it has used. Pure.

Used by the policy ``tokens``, which counts. The limits are those of the route's ``rate_limit``: requests are counted
there, before the body is read, and given back when the tokens do not suffice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from proxy.exchange import Exchange, Head, Reply
from proxy.limit_fields import tell_limits
from proxy.named_limit import NamedLimit, Standing
from proxy.policy.env import PolicyEnv
from proxy.policy.model_limits import limits_of_models
from proxy.policy.rate_limit import give_back, refusal, stand
from proxy.shared.limit import decide_together

_STANDING: Final = "token_limits"
_TAKEN: Final = "token_limits.taken"


def build_token_limits(env: PolicyEnv) -> TokenLimits | None:
    """Those of the route's limits that bound tokens; None: there is none."""
    names = dict.fromkeys(getattr(env.beside, "rate_limit", None) or ())
    limits = _counting_tokens(names, env)
    by_model = {model: own for model, others in limits_of_models(env).items() if (own := _counting_tokens(others, env))}
    return TokenLimits(limits, by_model) if limits or by_model else None


def _counting_tokens(names: Iterable[str], env: PolicyEnv) -> list[NamedLimit]:
    return [NamedLimit(name, env, "tokens") for name in names if env.limits[name].tokens is not None]


class _Taken:
    """What was taken of a limit, on trial or not. used: by its key, with it, at that time."""

    __slots__ = ("at", "cost", "key", "named", "used")

    def __init__(self, named: NamedLimit, key: str, cost: float, used: float, at: float) -> None:
        self.named = named
        self.key = key
        self.cost = cost
        self.used = used
        self.at = at


class _Set:
    """Limits that are asked together. policies: what RateLimit-Policy says of them."""

    def __init__(self, limits: Sequence[NamedLimit]) -> None:
        self.limits = [named for named in limits if not named.dry_run]
        self.trials = [named for named in limits if named.dry_run]
        self.policies = b", ".join([named.policy_item for named in self.limits if named.ietf])


class TokenLimits:
    """Of one route. by_model: those of models beside them (``proxy.policy.model_limits``)."""

    def __init__(
        self, limits: Sequence[NamedLimit], by_model: Mapping[str, Sequence[NamedLimit]] | None = None
    ) -> None:
        self._of_route = _Set(limits)
        self._by_model = {model: _Set([*limits, *own]) for model, own in (by_model or {}).items()}

    def _set_of(self, x: Exchange) -> _Set:
        return self._by_model.get(x.scratch.get("model", ""), self._of_route) if self._by_model else self._of_route

    def admit(self, x: Exchange, tokens: int, now: float) -> Reply | None:
        """Take so many tokens under every limit, or none and refuse."""
        asked_of = self._set_of(x)
        limits, cost = asked_of.limits, float(tokens)
        if limits:
            keys = [named.key_of(x) for named in limits]
            if len(limits) == 1:
                counts = [limits[0].memory.decide(keys[0], now, cost)]
            else:
                asked = [(named.memory, key) for named, key in zip(limits, keys, strict=True)]
                counts = decide_together(asked, now, [cost] * len(asked))
            standing, refused = stand(limits, keys, counts, now, cost)
            x.scratch[_STANDING] = standing
            if refused:
                give_back(x, now)
                return refusal(x, standing)
            x.scratch[_TAKEN] = [
                _Taken(each.named, each.key, cost, n, now) for each, n in zip(standing, counts, strict=True)
            ]
        for named in asked_of.trials:
            key = named.key_of(x)
            used = named.memory.decide(key, now, cost)
            if used < 0.0:
                named.refused.add()
            else:
                x.scratch.setdefault(_TAKEN, []).append(_Taken(named, key, cost, used, now))
        return None

    def cancel(self, x: Exchange, now: float) -> None:
        """Something else refuses the request: all that was taken is given back, and what is told is told without it."""
        for each in x.scratch.get(_STANDING) or ():
            each.left += int(each.cost)
        self.settle(x, 0, now)

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        """Tell what is left, with what was taken for this request counted as used."""
        standing: list[Standing] | None = x.scratch.get(_STANDING)
        if standing:
            tell_limits(head, standing, self._set_of(x).policies, x.wall_at + now - x.started_at)

    def settle(self, x: Exchange, tokens: int, now: float, debt: float = 1.0) -> None:
        """The request has used so many: the rest is given back, or what it was more is owed, up to ``debt``, a share of
        the burst. Once; nothing is settled that was refused."""
        taken: list[_Taken] | None = x.scratch.pop(_TAKEN, None)
        for each in taken or ():
            memory, more = each.named.memory, tokens - each.cost
            if more < 0.0:
                more = -min(-more, memory.standing(each.cost, each.used, now - each.at))
            if more:
                memory.adjust(each.key, more, now, debt)
