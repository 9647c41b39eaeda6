"""Budgets of a route: what API keys, teams and tenants may use in an hour, a day or a month. All must have room. Pure.

A request takes what it may come to use when it is admitted, and is settled by what it has used: more than was left,
where it used more than it had taken, is owed until its window ends. Both are counted in the window in which it was
admitted, however long it takes. What a worker had taken that is killed counts as used, until the window ends or the
budget is counted anew from the record of usage; so what is admitted never exceeds what is given.

Used by the policy ``tokens``, which counts. A refusal says which budget, whose it is and when to come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from proxy.budget_level import WHOSE, BudgetLevel, Standing
from proxy.errors import Kind, refuse, retry_after
from proxy.exchange import Exchange, Head, Reply
from proxy.limit_fields import tell_items, tells_of_limits
from proxy.named_limit import counted

if TYPE_CHECKING:
    from proxy.policy.env import PolicyEnv

_STANDING: Final = "budgets"
_TAKEN: Final = "budgets.taken"


def build_budgets(env: PolicyEnv) -> Budgets | None:
    """Those of the box, which all routes draw on whose tokens are counted; None: there are none."""
    return Budgets(env.budgets) if env.budgets else None


class Budgets:
    """Of one route."""

    def __init__(self, levels: Sequence[BudgetLevel]) -> None:
        self._levels = tuple(levels)

    def admit(self, x: Exchange, tokens: int, now: float, wall: float) -> Reply | None:
        """Take so many tokens, and one request, of every budget, or none and refuse. wall: Unix time at ``now``."""
        memory = self._levels[0].memory
        memory.enter_all()  # of all budgets
        try:
            standing = [
                Standing(each, each.key_of(x), each.amount_of(x), max(1, tokens) if each.unit == "tokens" else 1, wall)
                for each in self._levels
            ]
            refused = any(each.refuses for each in standing)
            if not refused:
                for each in standing:
                    each.take()
            for each in standing:
                each.look_ahead()
        finally:
            memory.leave_all()
        x.scratch[_STANDING] = standing
        if refused:
            return _refusal(x, standing)
        x.scratch[_TAKEN] = standing
        return None

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        """Tell what is left, with what was taken for this request counted as used."""
        standing: list[Standing] | None = x.scratch.get(_STANDING)
        told = [each for each in standing if each.level.ietf] if standing else []
        if told:
            policies = b", ".join([each.level.policy_item(each.amount, each.window) for each in told])
            items = b", ".join([each.level.item(each.left, each.told_s) for each in told])
            tell_items(head, [each.level.shown for each in told], policies, items, tells_of_limits(head))

    def settle(self, x: Exchange, tokens: int, now: float) -> None:
        """The request has used so many. One that has used none is not counted among the requests either. Once; nothing
        is settled that was refused."""
        taken: list[Standing] | None = x.scratch.pop(_TAKEN, None)
        if not taken:
            return
        memory = taken[0].level.memory
        memory.enter_all()
        try:
            for each in taken:
                each.settle(tokens)
        finally:
            memory.leave_all()


def _refusal(x: Exchange, standing: Sequence[Standing]) -> Reply:
    """The answer to a request that some of these budgets refuse: it names the one that takes longest."""
    refusing = [each for each in standing if each.refuses]
    for each in refusing:
        each.level.refused.add()
    worst = max(refusing, key=lambda each: each.reset_s)
    level, wait_s = worst.level, worst.reset_s
    violated = tuple([each.level.name for each in refusing])
    needs = f"This request needs {counted(worst.cost, level.unit)}"
    given = f"{counted(worst.amount, level.unit)} in {level.when(worst.window)}"
    budget = f"the budget {level.name} of {WHOSE[level.kind]}: {given}"
    if wait_s == inf:
        message = f"{needs}, more than {budget}. Send a shorter one, or ask for fewer."
        return refuse(x, Kind.QUOTA, message, violated=violated, should_retry=False)
    message = f"{needs}, and {worst.left} are left of {budget}. Try again in {retry_after(wait_s)} s."
    return refuse(x, Kind.QUOTA, message, retry_after_s=wait_s, violated=violated)
