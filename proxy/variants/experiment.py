"""The experiment of one route: who gets which variant, what is counted of each, and when one is stopped. Pure.

It belongs to a snapshot; all that it knows stands in the workers' shared table, under the names of the route and of the
variant and what that one changes. So it goes on through reloads and deaths of workers, and a variant that is made to
change something else begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from proxy.config_variants import CONTROL, Config, Variant
from proxy.shared.columns import Columns
from proxy.shared.record import Record
from proxy.upstream.balance_hash import hash_of
from proxy.variants.assignment import choose, group_of, why_not
from proxy.variants.sequential import Counts, Verdict, dispersion, judge
from proxy.variants.standing import RECORD_SIZE, Standing
from proxy.variants.tally import ROW_SIZE, Ended, Sums, Tally, total
from proxy.variants.token import arm_id

JUDGE_S: Final = 5.0
ORDERS: Final = ("list", "set", "reset")


class Table(Protocol):
    """proxy.shared.table.SharedTable, as far as it is needed here."""

    def record(self, name: str, size: int) -> Record: ...
    def columns(self, name: str, size: int) -> Columns: ...


class Stopped(NamedTuple):
    """A rule has stopped a variant."""

    route: str
    variant: str
    rule: str
    verdict: Verdict
    of_variant: Counts
    of_control: Counts


class Arm:
    """The control, or a variant. config: None for the control."""

    __slots__ = ("_place", "config", "id", "name", "record", "standing", "tally")

    def __init__(self, route: str, name: str, config: Variant | None, goal: Hashable, shared: Table) -> None:
        changes = config.model_copy(update={"share": 0.0}).model_dump_json() if config is not None else ""
        self._place = place = f"variant {route}\n{name}\n{goal}\n{changes}"
        self.name = name
        self.config = config
        self.record = shared.record(place, RECORD_SIZE)
        self.tally = Tally(shared.columns(place, ROW_SIZE))
        self.standing = Standing()
        self.id = b""
        self.load()

    def load(self) -> Standing:
        """How it stands now."""
        self.standing = Standing(*self.record.load())
        self.id = arm_id(self._place, self.standing.beginning)
        return self.standing

    def sums(self) -> Sums:
        """What all workers have counted of it."""
        return self.tally.sums(self.standing.beginning)


class Experiment:
    """tell: told that a rule has stopped a variant, once in the box."""

    def __init__(self, route: str, config: Config, shared: Table, tell: Callable[[Stopped], None]) -> None:
        goal = (config.goal, str(config.user), config.models)
        self.route = route
        self._config = config
        self._tell = tell
        self.control = Arm(route, CONTROL, None, goal, shared)
        self.variants = tuple(Arm(route, name, table, goal, shared) for name, table in config.of.items())
        self._arms = (self.control, *self.variants)
        self._seeds = [hash_of(arm.name) for arm in self.variants]
        self._configured = [table.share for table in config.of.values()]
        self._version = -1
        self._shares: list[float] = []
        self._judged_at: float | None = None

    # Requests

    def choose(self, user: str, path: str) -> Arm:
        """The user's arm on this path."""
        index = choose(user, path, self._seeds, self.shares())
        return self.variants[index] if index >= 0 else self.control

    def ended(self, arm: Arm, user: str, ended: Ended) -> None:
        """Count a request that went to an upstream."""
        self.shares()
        arm.tally.ended(group_of(user), ended, arm.standing.beginning)

    def find(self, arm_id: bytes) -> Arm | None:
        """The arm that a token is of; None: it is not there any more, or has begun anew."""
        self.shares()
        return next((arm for arm in self._arms if arm.id == arm_id), None)

    @staticmethod
    def told(arm: Arm, group: int, good: bool) -> None:
        """Count an outcome."""
        arm.tally.told(group, good, arm.standing.beginning)

    def shares(self) -> list[float]:
        """The variants' shares now, as every worker has them."""
        version = sum([arm.record.version() for arm in self._arms])
        if version != self._version:
            standings = [arm.load() for arm in self._arms][1:]
            self._version = version
            self._shares = _shares(standings, self._configured)
        return self._shares

    # From time to time

    def look(self, now: float) -> None:
        """Judge, if that is due: end a period whose shares have changed, and stop what a rule stops."""
        if self._judged_at is None or not 0.0 <= now - self._judged_at < JUDGE_S:
            self._judged_at = now
            self._judge(now)

    def _judge(self, now: float) -> None:
        shares = self.shares()
        mark = float(hash_of(str(shares)) % (1 << 52) + 1)
        control, control_groups = self._goal(self.control)
        for arm, share, configured in zip(self.variants, shares, self._configured, strict=True):
            counts, groups = self._goal(arm)
            before = arm.standing.under(configured).in_period(mark, counts, control)
            verdict = judge(before.score(counts, control), dispersion(groups, control_groups))
            after = before.judged(verdict, counts, control, self._config.stop, now) if share else before.at_rest()
            if after != arm.standing and self._change(arm, after) and after.rule is not None and not before.stopped:
                self._tell(Stopped(self.route, arm.name, after.rule, verdict, counts, control))

    def _change(self, arm: Arm, after: Standing) -> bool:
        """Publish how it stands after what this worker has seen; False: another one was first."""
        values = arm.record.begin()
        if Standing(*values) != arm.standing:
            arm.record.cancel()
            return False
        arm.record.commit(after)
        self.shares()
        return True

    def _goal(self, arm: Arm) -> tuple[Counts, tuple[Counts, ...]]:
        sums = arm.sums()
        groups = sums.requests if self._config.goal == "success" else sums.outcomes
        return total(groups), groups

    # Orders

    def order(self, order: str, variant: str | None, share: float, number: float, now: float) -> str | None:
        """Obey, once in the box: ``set`` a variant's share, or ``reset`` one or all: forget what was ordered, counted
        and stopped. What is wrong with it; None: nothing."""
        named = [arm for arm in self.variants if variant in (None, arm.name)]
        if not named:
            return f"{self.route} has no variant {variant!r}; it has {', '.join(arm.name for arm in self.variants)}"
        self._judge(now)  # up to here under the shares of before
        if order == "set":
            shares = dict(zip((arm.name for arm in self.variants), self.shares(), strict=True))
            others = [other for name, other in shares.items() if name != variant]
            if (problem := why_not(str(variant), share, others)) is not None:
                return problem
        # The control first: counts of variants that are not begun anew yet stand against none.
        for arm in (*([self.control] if variant is None else []), *named):
            values = Standing(*arm.record.begin())
            if values.number >= number:
                arm.record.cancel()
            elif order == "set":
                configured = arm.config.share if arm.config is not None else 0.0
                arm.record.commit(values.with_share(share, configured)._replace(number=number))
            else:
                arm.record.commit(Standing(beginning=values.beginning + 1.0, number=number))
        self._judge(now)
        return None

    def show(self, now: float) -> list[dict[str, Any]]:
        """The table, the control first, as plain JSON values."""
        shares = self.shares()
        rows = [self._shown(self.control, 1.0 - sum(shares), now)]
        return rows + [self._shown(arm, share, now) for arm, share in zip(self.variants, shares, strict=True)]

    def _shown(self, arm: Arm, share: float, now: float) -> dict[str, Any]:
        sums, standing = arm.sums(), arm.standing
        requests, outcomes = total(sums.requests), total(sums.outcomes)
        row: dict[str, Any] = {
            "variant": arm.name,
            "share": round(share, 6),
            "stopped": standing.rule,
            "stopped_for_s": round(now - standing.stopped_at, 1) if standing.stopped else None,
            "requests": int(requests.num),
            "good": int(requests.good),
            "gone": int(sums.gone),
            "outcomes": int(outcomes.num),
            "good_outcomes": int(outcomes.good),
            "answer_s": _mean(sums.answer_s, sums.answered),
            "first_byte_s": _mean(sums.first_byte_s, sums.begun),
            "first_token_s": _mean(sums.first_token_s, sums.streamed),
            "prompt_tokens": int(sums.prompt_tokens),
            "completion_tokens": int(sums.completion_tokens),
        }
        if arm is self.control:
            return row
        counts, groups = self._goal(arm)
        control, control_groups = self._goal(self.control)
        z, p, _ = judge(standing.score(counts, control), dispersion(groups, control_groups))
        differs = p <= self._config.alpha
        verdict = ("worse" if z < 0 else "better") if differs else "no difference yet"
        return row | {"z": round(z, 3), "p": float(f"{p:.3g}"), "verdict": verdict}


def _shares(standings: list[Standing], configured: list[float]) -> list[float]:
    shares = [each.share_of(own) for each, own in zip(standings, configured, strict=True)]
    if any(_problems(shares)):  # ordered beside other variants than there are now
        shares = [0.0 if each.stopped else own for each, own in zip(standings, configured, strict=True)]
    return shares


def _problems(shares: list[float]) -> Iterator[str | None]:
    return (why_not("", share, shares[:i] + shares[i + 1 :]) for i, share in enumerate(shares))


def _mean(total_s: float, num: float) -> float | None:
    return round(total_s / num, 4) if num else None
