"""The test that may be looked at as often as one likes: what it calls different by mistake, and what it finds."""

from __future__ import annotations

from math import sqrt
from random import Random

import pytest

from proxy.variants.sequential import Counts, Score, dispersion, judge, score, two_sided

ALPHA = 0.05
NUM_LOOKS = 1000


def least_p(seed: int, rate: float, *, share: float, step: int, change: float = 0.0) -> tuple[float, float]:
    """(the least p of all looks, the least of the plain test) of an experiment that is looked at NUM_LOOKS times."""
    draws = Random(seed)
    variant, control = [0, 0], [0, 0]
    least = fixed = 1.0
    for _ in range(NUM_LOOKS):
        for _ in range(step):
            arm, good = (variant, rate + change) if draws.random() < share else (control, rate)
            arm[0] += 1
            arm[1] += draws.random() < good
        verdict = judge(score(Counts(*variant), Counts(*control)))
        least, fixed = min(least, verdict.p), min(fixed, verdict.fixed_p)
    return least, fixed


@pytest.mark.parametrize(("rate", "share"), [(0.5, 0.5), (0.9, 0.2), (0.97, 0.1)])
def test_a_thousand_looks_find_no_more_than_alpha_where_there_is_nothing(rate: float, share: float) -> None:
    num = 200
    looks = [least_p(seed, rate, share=share, step=2) for seed in range(num)]
    mistaken = sum(p <= ALPHA for p, _ in looks) / num
    fooled = sum(p <= ALPHA for _, p in looks) / num
    assert mistaken <= ALPHA + 3 * sqrt(ALPHA * (1 - ALPHA) / num)
    assert fooled > 0.2  # what the correction is for


def test_a_difference_is_found() -> None:
    found = [least_p(seed, 0.9, share=0.2, step=20, change=-0.04)[0] for seed in range(20)]
    assert max(found) <= ALPHA


def test_the_score_is_the_z_test_of_two_proportions() -> None:
    verdict = judge(score(Counts(1000, 850), Counts(4000, 3600)))
    pooled = 4450 / 5000
    plain = (0.85 - 0.9) / sqrt(pooled * (1 - pooled) * (1 / 1000 + 1 / 4000))
    assert verdict.z == pytest.approx(plain, rel=1e-3)
    assert verdict.fixed_p == pytest.approx(two_sided(plain), rel=1e-2)
    assert verdict.fixed_p < verdict.p < ALPHA
    better = judge(score(Counts(1000, 950), Counts(4000, 3600)))
    assert better.z > 0


def test_nothing_is_said_of_nothing() -> None:
    for variant, control in [
        ((0, 0), (10, 5)),
        ((10, 5), (0, 0)),
        ((10, 10), (10, 10)),
        ((10, 0), (10, 0)),
        ((1, 1), (0, 0)),
    ]:
        assert judge(score(Counts(*variant), Counts(*control))) == (0.0, 1.0, 1.0)


def test_a_share_that_grew_while_all_became_worse_is_no_fault_of_the_variant() -> None:
    """Simpson's paradox: pooled, the variant looks bad; period by period it does as the control."""
    good_times = Counts(100, 95), Counts(9900, 9405)
    bad_times = Counts(2000, 1400), Counts(8000, 5600)
    pooled = judge(score(Counts(2100, 1495), Counts(17900, 15005)))
    assert pooled.p < 1e-6
    apart = judge(score(*good_times).plus(score(*bad_times)))
    assert apart.p == 1.0


def test_requests_of_few_users_count_for_fewer() -> None:
    alike = [Counts(100, 90)] * 16
    assert dispersion(alike, alike) == 1.0
    apart = [Counts(100, 100)] * 8 + [Counts(100, 80)] * 8
    assert dispersion(apart, apart) == pytest.approx(100 * 16 * 0.01 / 0.09 / 15)
    total = score(Counts(1600, 1440), Counts(1600, 1488))
    assert judge(total, dispersion(apart, apart)).p > judge(total).p
    assert judge(total, 4.0).z == pytest.approx(judge(total).z / 2)
    assert dispersion([Counts(0, 0)] * 16, [Counts(10, 10)] * 16) == 1.0


def test_users_that_differ_do_not_fool_it() -> None:
    """Each user's requests all end alike, 200 a user: by requests alone any two arms seem to differ."""
    num, mistaken, fooled = 200, 0, 0
    for seed in range(num):
        draws = Random(seed)
        arms = [[[0, 0] for _ in range(16)] for _ in range(2)]
        for _ in range(200):
            arm, group = arms[draws.random() < 0.2], draws.randrange(16)
            arm[group][0] += 200
            arm[group][1] += 200 if draws.random() < 0.8 else 0
        control, variant = ([Counts(*group) for group in arm] for arm in arms)
        total = score(*(Counts(sum(g.num for g in arm), sum(g.good for g in arm)) for arm in (variant, control)))
        mistaken += judge(total, dispersion(variant, control)).p <= ALPHA
        fooled += judge(total).p <= ALPHA
    assert mistaken / num <= ALPHA + 3 * sqrt(ALPHA * (1 - ALPHA) / num)
    assert fooled / num > 0.5


def test_scores_add_up() -> None:
    assert Score(1.0, 2.0).plus(Score(-3.0, 4.0)) == (-2.0, 6.0)
