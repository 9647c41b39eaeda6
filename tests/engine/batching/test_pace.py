"""What the next run should take, learnt from runs that took what a test says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.arbiter import IDLE_ALLOWANCE_S
from engine.batching.pace import Pace


def test_before_any_run_the_prior_ratio_holds() -> None:
    pace = Pace(run_cost=16)
    assert pace.run_s(2, 16) == pytest.approx(1.5 * pace.run_s(1, 16))


@pytest.mark.parametrize(
    ("run_cost", "rows", "size"),
    [
        pytest.param(1.0, 64, 1, id="items"),
        pytest.param(16.0, 64, 64, id="tokens"),
        pytest.param(1e4, 8, 224 * 224, id="pixels"),
    ],
)
def test_before_any_run_a_usual_batch_is_thought_to_take_less_than_a_turn(
    run_cost: float, rows: int, size: int
) -> None:
    """The guess is of a run, whatever is counted: by the unit, a batch of pictures was thought to take minutes, so each
    ran alone."""
    assert Pace(run_cost).run_s(rows, size) < IDLE_ALLOWANCE_S


def test_before_any_run_nothing_is_gained_by_waiting() -> None:
    pace = Pace(run_cost=1e4)
    assert pace.run_cost_s(4608) == 0.0
    pace.observe(1, 4608, 0.014608)
    assert pace.run_cost_s(4608) == pytest.approx(0.01)
    assert pace.run_cost_s(16) == pytest.approx(0.01)


def test_one_run_sets_the_scale_of_every_bucket() -> None:
    pace = Pace(run_cost=16)
    pace.observe(4, 21, 0.1)
    assert pace.run_s(4, 21) == pytest.approx(0.1)
    assert pace.run_s(1, 4) == pytest.approx(0.02)
    assert pace.seconds_per_unit == pytest.approx(0.1 / 84)


@given(st.floats(1e-4, 1e-1), st.floats(1e-5, 1e-2), st.integers(1, 512), st.integers(0, 5))
def test_learns_the_line_of_a_bucket(b: float, a: float, size: int, seed: int) -> None:
    pace = Pace(run_cost=16)
    for turn in range(200):
        rows = 1 + (7 * turn + seed) % 16
        pace.observe(rows, size, b + a * rows)
    for rows in (1, 8, 16):
        assert pace.run_s(rows, size) == pytest.approx(b + a * rows, rel=0.15)


def test_learns_that_long_rows_gain_nothing_from_company() -> None:
    pace = Pace(run_cost=16)
    for turn in range(100):
        rows = 1 + turn % 4
        pace.observe(rows, 16, 0.005 + 0.0024 * rows)
        pace.observe(rows, 128, 0.022 * rows)
    assert pace.run_cost_s(16) == pytest.approx(0.005, rel=0.2)
    assert pace.run_cost_s(128) < 0.002


def test_forgets_how_it_was() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe(1, 1, 0.1)
    for _ in range(200):
        pace.observe(1, 1, 0.2)
    assert pace.run_s(1, 1) == pytest.approx(0.2, rel=0.02)


def test_a_run_that_others_held_up_counts_a_little() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe(1, 1, 0.01)
    pace.observe(1, 1, 10.0)
    assert pace.run_s(1, 1) < 0.012


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 4096), st.floats(1e-6, 10)), min_size=1, max_size=40))
def test_expects_something_positive_and_finite_and_more_of_more(runs: list[tuple[int, int, float]]) -> None:
    pace = Pace(run_cost=16)
    for rows, size, elapsed_s in runs:
        pace.observe(rows, size, elapsed_s)
    for rows, size, _ in runs:
        assert 0 < pace.run_s(rows, size) < 1e6
        assert pace.run_s(rows + 1, size) >= pace.run_s(rows, size)
        assert pace.run_cost_s(size) >= 0
