"""Whether a variant differs from the control, by a two-sided z-test that may be looked at as often as one likes. Pure.

Theory. Of n1 + n0 requests, n1 of them of the variant, s were good. If both are equally good, the variant's good ones
have the mean n1 s / n and the variance n1 n0 s (n - s) / (n^2 (n - 1)) (hypergeometric; Mantel and Haenszel, 1959). The
score U is what there were beyond the mean, V the variance, and z = U / sqrt(V) the z-test of two proportions. Periods
with different shares are added up, U and V each: pooled, a share that grew while everything became worse would look
like a fault of the variant (Simpson's paradox).

Who looks at a z-test again and again finds a "difference" sooner or later. So p is that of the mixture sequential
probability ratio test (Robbins, 1970; Johari, Koomen, Pekelis and Walsh, "Always Valid Inference: Continuous Monitoring
of A/B Tests", Operations Research 70(3), 2022): U is about a Brownian motion with the log odds ratio as drift over the
time V, the ratio of the likelihoods of "some difference" and "none", mixed over log odds ratios from N(0, TAU^2), is

    L = exp(TAU^2 U^2 / (2 (1 + TAU^2 V))) / sqrt(1 + TAU^2 V),

a martingale if there is none, and the chance that it ever reaches 1 / alpha is alpha at most (Ville, 1939). p = 1 / L.

Requests of one user are alike, and so count for fewer than they are. Users fall into groups; how much more the groups
of an arm differ than independent requests would is the dispersion (Pearson), and as Rao and Scott (1992) do, both U and
V are divided by it, where it is more than 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, exp, log1p, sqrt
from typing import Final, NamedTuple

#: Of the log odds ratios that are looked for: 0.3 is 50 % against 57 %, or 98 % against 97.3 %.
TAU: Final = 0.3


class Counts(NamedTuple):
    """Requests, or outcomes, and those of them that were good."""

    num: float
    good: float


class Score(NamedTuple):
    """u: good ones of the variant beyond what the control lets expect; v: their variance."""

    u: float
    v: float

    def plus(self, other: Score) -> Score:
        """Of two periods together."""
        return Score(self.u + other.u, self.v + other.v)


class Verdict(NamedTuple):
    """z: below 0 the variant is worse. p: valid at every look; fixed_p: of a test with one look, to compare."""

    z: float
    p: float
    fixed_p: float


NOTHING: Final = Score(0.0, 0.0)


def score(variant: Counts, control: Counts) -> Score:
    """Of one period."""
    num = variant.num + control.num
    if not variant.num or not control.num:
        return NOTHING
    good = variant.good + control.good
    share = variant.num / num
    return Score(variant.good - share * good, share * (1.0 - share) * good * (num - good) / (num - 1.0))


def dispersion(*arms: Sequence[Counts]) -> float:
    """How much more the groups of each arm differ than independent requests would, 1 at least."""
    squares = 0.0
    freedom = 0
    for groups in arms:
        num, good = sum(each.num for each in groups), sum(each.good for each in groups)
        if not 0.0 < good < num:
            continue
        mean = good / num
        squares += sum(
            (each.good - each.num * mean) ** 2 / (each.num * mean * (1.0 - mean)) for each in groups if each.num
        )
        freedom += sum(1 for each in groups if each.num) - 1
    return max(1.0, squares / freedom) if freedom > 0 else 1.0


def judge(total: Score, dispersed: float = 1.0) -> Verdict:
    """What a score says."""
    u, v = total.u / dispersed, total.v / dispersed
    if v <= 0.0:
        return Verdict(0.0, 1.0, 1.0)
    z = u / sqrt(v)
    tau2 = TAU * TAU
    log_ratio = tau2 * u * u / (2.0 * (1.0 + tau2 * v)) - log1p(tau2 * v) / 2.0
    return Verdict(z, exp(-max(0.0, log_ratio)), two_sided(z))


def two_sided(z: float) -> float:
    """How often a standard normal variate is as far from 0 as z."""
    return erfc(abs(z) / sqrt(2.0))
