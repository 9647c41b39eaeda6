"""Where a device's time goes, and that the sum is right."""

from __future__ import annotations

import pytest

from engine.occupancy import Occupancy


def test_time_is_inside_runs_or_on_the_host_and_sleep_is_neither() -> None:
    occupancy = Occupancy(0.0)
    occupancy.slept(10.0)
    occupancy.worked(10.5, 0.4)
    occupancy.worked(11.5, 0.9)
    occupancy.slept(20.0)
    occupancy.worked(21.0, 1.0)
    assert occupancy.run_s == pytest.approx(2.3)
    assert occupancy.host_s == pytest.approx(0.2)
