"""What an operator is told and promised: levels, timeouts, the SLO, misfits, a line for each run, numbers."""

import itertools
import logging
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batching.journal import Journal, Window
from engine.batching.misfit import Misfit, Run
from engine.batching.settings import DEFAULTS, BatchingSettings, LevelSettings
from engine.batching.slo import Slo
from engine.batching.tally import Tally

WINDOW = Window(5, 4, "window", 2000.0, 1900, 12000)


def test_what_is_not_said_is_the_folders_else_the_default() -> None:
    said = BatchingSettings(max_batch=4).over(BatchingSettings(8, 0.001, cost="tokens")).over(DEFAULTS)
    assert (said.max_batch, said.window_s, said.policy, said.cost, said.log) == (
        4,
        0.001,
        "adaptive",
        "tokens",
        "second",
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch": 0},
        {"window_s": -0.1},
        {"slo_p99_s": 0.0},
        {"levels": (LevelSettings(queue=0), LevelSettings(), LevelSettings())},
        {"levels": (LevelSettings(), LevelSettings(), LevelSettings(timeout_s=0.0))},
    ],
)
def test_settings_out_of_range_are_errors(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        BatchingSettings(**settings)  # type: ignore[arg-type]


def test_waiting_that_breaks_the_slo_shuts_the_window_until_it_would_not() -> None:
    slo = Slo(0.1)
    changes = [slo.observe(0.11, held_s=0.02) for _ in range(10)]
    assert changes.index(True) == 2  # more than one in a hundred of the last two hundred
    assert sum(changes) == 1
    assert slo.shut
    reopened = next(turn for turn in itertools.count() if slo.observe(0.05, held_s=0.0))
    assert not slo.shut
    assert 100 < reopened < 1000


def test_what_is_slow_without_waiting_is_not_the_windows_fault() -> None:
    slo = Slo(0.1)
    assert not any(slo.observe(0.3, held_s=0.01) for _ in range(1000))
    assert slo.num_broken == 0


def run(rows: int = 1, *, pending: int | None = None, held_s: float = 0.0, idle_s: float = 0.0) -> Run:
    return Run(rows, rows if pending is None else pending, 16, held_s, idle_s, full_run_s=0.04)


def test_windows_that_close_with_one_or_two_are_named_once() -> None:
    misfit = Misfit()
    named = [kind for _ in range(100) for kind in misfit.observe(run(2, held_s=0.002))]
    assert named == ["small_windows"]
    assert misfit.present == {"small_windows": True, "spikes": False}
    for _ in range(200):
        assert misfit.observe(run(12, held_s=0.002)) == []
    assert not misfit.present["small_windows"]


def test_small_runs_that_were_not_waited_for_are_no_misfit() -> None:
    misfit = Misfit()
    assert not any(misfit.observe(run(1, idle_s=0.5)) for _ in range(1000))


def test_gaps_that_alternate_with_spikes_are_named() -> None:
    misfit = Misfit()
    named = []
    for _ in range(100):
        named += misfit.observe(run(16, pending=80, idle_s=1.0))
        for left in (64, 48, 32, 16):
            named += misfit.observe(run(16, pending=left))
    assert named == ["spikes"]


def test_a_steady_load_is_no_misfit() -> None:
    misfit = Misfit()
    for turn in range(1000):
        assert misfit.observe(run(1 + turn % 16, pending=turn % 40 + 16, idle_s=0.001 * (turn % 3))) == []


def test_each_run_has_its_line_or_as_many_as_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    every, second, none = Journal("a", "every"), Journal("b", "second"), Journal("c", "none")
    for turn in range(25):
        for journal in (every, second, none):
            journal.window(WINDOW, now=turn * 0.1)
    lines = [record.getMessage() for record in caplog.records]
    assert [len([line for line in lines if f"model {name}:" in line]) for name in "abc"] == [25, 3, 0]
    assert lines[0] == (
        "model a: window_id=1 pending_requests=5 actual_batch_size=4 trigger=window trigger_threshold=2000"
        " waited_us=1900 latency_us=12000 skipped=0"
    )
    last = next(line for line in reversed(lines) if "model b" in line)
    assert re.search(r"window_id=21 .* skipped=9$", last)


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 1)), max_size=50))
def test_runs_are_counted_by_their_size_in_bounded_many_kinds(runs: list[tuple[int, float]]) -> None:
    tally = Tally()
    for rows, seconds in runs:
        tally.ran(rows, seconds)
    assert sum(each.count for each in tally.by_rows.values()) == tally.num_runs == len(runs)
    assert math.isclose(sum(each.seconds for each in tally.by_rows.values()), tally.run_s, abs_tol=1e-9)
    assert len(tally.by_rows) <= 16 + 9
