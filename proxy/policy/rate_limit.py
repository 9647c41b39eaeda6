"""Named rate limits of a route: all of them must pass, and only what passes is counted. Pure.

A refusal says which limit and when to come back, and every answer how much is left (``limit_fields``). ``t`` is the
wait for the next request when none is left, else the time until nothing is used; Retry-After is the longest wait of
the limits that refuse, rounded up. A limit on trial (``dry_run``) counts what the others let pass, and refuses nobody:
a metric counts whom it would have, and no field tells of it.

Here requests are counted. The tokens of the same limits are counted by ``token_limits`` for the policy ``tokens``,
which knows how many there are; when that refuses, the requests counted here are given back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from math import inf
from typing import Annotated, Final

from pydantic import Field

from proxy.chain import Policy
from proxy.errors import Kind, refuse, retry_after
from proxy.exchange import Exchange, Head, Reply
from proxy.limit_fields import tell_limits
from proxy.named_limit import NamedLimit, Standing, counted
from proxy.policy.env import PolicyEnv
from proxy.shared.limit import decide_together

NAME: Final = "rate_limit"
ALWAYS: Final = False
#: By which a request knows how it stands to the limits of its model (``proxy.policy.model_limits``).
OF_MODEL: Final = "rate_limit of the model"

Config = Annotated[tuple[str, ...], Field(min_length=1)]  # names of limits


def build(config: tuple[str, ...], env: PolicyEnv) -> RateLimit:
    """The policy of one route; a limit's memory is one for all routes that name it and all workers, and outlives both
    the snapshot and the worker."""
    names = [name for name in dict.fromkeys(config) if env.limits[name].requests is not None]
    by_model = any("model" in env.limits[name].kinds for name in names)
    return RateLimit([NamedLimit(name, env) for name in names], by_model=by_model)


class RateLimit(Policy):
    """by_model: some limit counts by the model, which the body names. name: by which a request knows how it stands."""

    def __init__(self, limits: Sequence[NamedLimit], by_model: bool = False, name: str = NAME) -> None:
        self._limits = [named for named in limits if not named.dry_run]
        self._trials = [named for named in limits if named.dry_run]
        self._policies = b", ".join([named.policy_item for named in self._limits if named.ietf])
        self._by_model = by_model
        self._name = name

    def reads_body(self) -> bool:
        return self._by_model

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        if not self._by_model or x.body is None or x.body.json_at_once():
            return None
        return _read(x)

    def admit(self, x: Exchange, now: float) -> Reply | None:
        limits = self._limits
        if len(limits) == 1:
            named = limits[0]
            key = named.key_of(x)
            used = named.memory.decide(key, now)
            refused = used < 0.0
            standing = [Standing(named, key, -1.0 - used if refused else used, refused, now)]
        elif limits:
            keys = [named.key_of(x) for named in limits]
            asked = [(named.memory, key) for named, key in zip(limits, keys, strict=True)]
            standing, refused = stand(limits, keys, decide_together(asked, now), now)
        else:
            standing, refused = [], False
        x.scratch[self._name] = standing
        if refused:
            return refusal(x, standing)
        if self._trials:
            try_out(x, self._trials, now)
        return None

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        standing: list[Standing] | None = x.scratch.get(self._name)
        if standing:
            tell_limits(head, standing, self._policies, x.wall_at + now - x.started_at)


async def _read(x: Exchange) -> None:
    assert x.body is not None
    await x.body.read_json()


def stand(
    limits: Sequence[NamedLimit], keys: Sequence[str], counts: Sequence[float], now: float, cost: float = 1.0
) -> tuple[list[Standing], bool]:
    """How a request stands to each limit, and whether it is refused. counts: as decided."""
    refused = counts[0] < 0.0
    rows = zip(limits, keys, counts, strict=True)
    return [Standing(each, key, -1.0 - n if refused else n, refused, now, cost) for each, key, n in rows], refused


def try_out(x: Exchange, trials: Sequence[NamedLimit], now: float, cost: float = 1.0) -> None:
    """Count a request that passes under the limits on trial, and those that would have refused it."""
    for named in trials:
        if named.memory.decide(named.key_of(x), now, cost) < 0.0:
            named.refused.add()


def give_back(x: Exchange, now: float) -> None:
    """What was counted for a request that is refused all the same."""
    for name in (NAME, OF_MODEL):
        for each in x.scratch.get(name) or ():
            each.named.memory.adjust(each.key, -1.0, now)
            each.left += 1


def refusal(x: Exchange, standing: Sequence[Standing]) -> Reply:
    """The answer to a request that some of these limits refuse: it names the one that takes longest."""
    refusing = [each for each in standing if each.refuses]
    for each in refusing:
        each.named.refused.add()
    worst = max(refusing, key=lambda each: each.reset_s)
    named, wait_s = worst.named, worst.reset_s
    terms = named.terms
    if wait_s == inf:
        message = (
            f"This request needs {counted(int(worst.cost), named.unit)}, more than the limit {named.name} ever has "
            f"at once: {terms.burst}. Send a shorter one, or ask for fewer."
        )
        return refuse(x, Kind.RATE_LIMITED, message, violated=(named.name,), should_retry=False)
    message = (
        f"The limit {named.name} of {terms.events} {named.unit} in {terms.per_s:g} s is used up. "
        f"Try again in {retry_after(wait_s)} s."
    )
    violated = tuple([each.named.name for each in refusing])
    return refuse(x, Kind.RATE_LIMITED, message, retry_after_s=wait_s, violated=violated)
