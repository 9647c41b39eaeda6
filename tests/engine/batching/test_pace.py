"""What the next run should take."""

import pytest

from engine.batching.pace import RUN_COST, Pace


def test_takes_the_first_run_at_its_word_and_smooths_from_there() -> None:
    pace = Pace()
    pace.observe(4, 21, 0.1)
    assert pace.seconds_per_unit == pytest.approx(1e-3)
    assert pace.run_s(8, 10) == pytest.approx(1e-3 * (RUN_COST + 80))
    pace.observe(4, 21, 0.2)
    assert pace.seconds_per_unit == pytest.approx(1.2e-3)
