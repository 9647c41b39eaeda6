"""How a variant stands in the box: its share, whether a rule has stopped it, and what was counted in past periods.

One record of the shared table each, changed whole. An ordered share holds until the configuration says another one than
it said at the order. A period ends when any share of the experiment changes: its score is added to those before, and
the counts at its end are where the next one begins. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.variants.sequential import Counts, Score, Verdict, score

if TYPE_CHECKING:
    from proxy.config_variants import Stop

RULES: Final = ("harm", "futility")
#: Of each arm at least, before it can be called worse.
FEW: Final = 30.0


class Standing(NamedTuple):
    """Numbers of the record, zeros at first. beginning: how often it was begun anew. number: of the order that was
    obeyed last. stopped: 1 + the index of the rule. *_since: since when its rule's condition holds, without a break; 0:
    it does not. u, v: the score of past periods; the counts: where this one began, under shares with this mark."""

    beginning: float = 0.0
    number: float = 0.0
    ordered: float = 0.0
    share: float = 0.0
    configured: float = 0.0
    stopped: float = 0.0
    stopped_at: float = 0.0
    harm_since: float = 0.0
    futile_since: float = 0.0
    u: float = 0.0
    v: float = 0.0
    num: float = 0.0
    good: float = 0.0
    control_num: float = 0.0
    control_good: float = 0.0
    mark: float = 0.0

    @property
    def rule(self) -> str | None:
        """What has stopped it."""
        return RULES[int(self.stopped) - 1] if self.stopped else None

    def share_of(self, configured: float) -> float:
        """Its share, where the configuration says this one."""
        if self.stopped:
            return 0.0
        return self.share if self.ordered and self.configured == configured else configured

    def under(self, configured: float) -> Standing:
        """Where the configuration says this share: an order is over once that has changed, for good."""
        return self._replace(ordered=0.0) if self.ordered and self.configured != configured else self

    def score(self, variant: Counts, control: Counts) -> Score:
        """Of all periods, this one included. The counts are those of now."""
        past = Score(self.u, self.v)
        if self._is_ahead(variant, control):
            return past
        own = Counts(variant.num - self.num, variant.good - self.good)
        return score(own, Counts(control.num - self.control_num, control.good - self.control_good)).plus(past)

    def in_period(self, mark: float, variant: Counts, control: Counts) -> Standing:
        """In the period of shares with this mark; the same if it is in it already."""
        if mark == self.mark and not self._is_ahead(variant, control):
            return self
        u, v = self.score(variant, control) if self.mark else (0.0, 0.0)
        return self._replace(u=u, v=v, num=variant.num, good=variant.good, control_num=control.num,
                             control_good=control.good, mark=mark)  # fmt: skip

    def _is_ahead(self, variant: Counts, control: Counts) -> bool:
        """Whether its period began with more than was counted by now: the control has just begun anew, which its
        variants do next."""
        return control.num < self.control_num or variant.num < self.num

    def with_share(self, share: float, configured: float) -> Standing:
        """With this share by order; what was stopped goes on, and is judged afresh."""
        return self.at_rest()._replace(ordered=1.0, share=share, configured=configured, stopped=0.0, stopped_at=0.0)

    def at_rest(self) -> Standing:
        """While nobody gets it: nothing new is learned, so no condition holds on."""
        return self._replace(harm_since=0.0, futile_since=0.0)

    def judged(self, verdict: Verdict, variant: Counts, control: Counts, stop: Stop, now: float) -> Standing:
        """After a look at its counts."""
        if self.stopped:
            return self
        least = min(variant.num, control.num)
        harms = "harm" in stop.rules and verdict.z < 0.0 and verdict.p < stop.p and least >= FEW
        futile = "futility" in stop.rules and verdict.p > stop.p and least >= stop.min_samples
        held = self._replace(
            harm_since=(self.harm_since or now) if harms else 0.0,
            futile_since=(self.futile_since or now) if futile else 0.0,
        )
        for i, since in enumerate((held.harm_since, held.futile_since)):
            if since and now - since >= stop.after:
                return held._replace(stopped=i + 1.0, stopped_at=now)
        return held


RECORD_SIZE: Final = len(Standing._fields)
