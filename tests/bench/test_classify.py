"""Servers are compared only where they say the same of every picture; the ratios of a run."""

from __future__ import annotations

import pytest

from bench.classify import TOLERANCE, Class, difference, ratios

SFW, NSFW = Class("sfw", 0.9), Class("nsfw", 0.6)


def test_the_largest_difference_of_scores_is_told() -> None:
    found = [Class("sfw", 0.9 + TOLERANCE / 2), Class("nsfw", 0.6 - TOLERANCE / 4)]
    assert difference(found, [SFW, NSFW]) == pytest.approx(TOLERANCE / 2)


@pytest.mark.parametrize("other", [Class("nsfw", 0.9), Class("sfw", 0.9 + 1.1 * TOLERANCE), Class("sfw", float("nan"))])
def test_another_label_or_score_voids_the_run(other: Class) -> None:
    with pytest.raises(SystemExit, match="picture 1"):
        difference([NSFW, other], [NSFW, SFW])


def test_ratios_take_the_best_peer_and_leave_out_who_is_not_there() -> None:
    rows = [
        {"who": "Headrace", "per_s": 60.0, "p99_ms": 900.0, "one_p50_ms": 30.0},
        {"who": "mosec", "per_s": 50.0, "p99_ms": 900.0, "one_p50_ms": 50.0},
        {"who": "LitServe", "per_s": 40.0, "p99_ms": 900.0, "one_p50_ms": 50.0},
        {"who": "FastAPI, unbatched", "per_s": 30.0, "p99_ms": 900.0, "one_p50_ms": 30.0},
        {"who": "bare loop, 1 rows", "per_s": 40.0, "one_p50_ms": 25.0},
        {"who": "bare loop, 8 rows", "per_s": 48.0, "one_p50_ms": 160.0},
    ]
    assert ratios(rows) == {
        "classify_vs_best_peer": 1.2,
        "classify_vs_unbatched": 2.0,
        "classify_vs_bare": 1.25,
        "classify_one_p50_ms": 30.0,
    }
    alone = ratios([rows[0], *rows[4:]])
    assert alone["classify_vs_best_peer"] is alone["classify_vs_unbatched"] is None
