"""What steps take, measured while others disturb: a warm run counts, a disturbed one is run again."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.llm import calibrate
from engine.llm.decoder import RowLogits, RowWork
from engine.model_folder import ModelError
from tests.fakes_engine import FakeDecoder


class Played(FakeDecoder):
    """A decoder whose runs take what was said beforehand."""

    def __init__(self, *takes_s: float, **sizes: int) -> None:
        super().__init__(**sizes)
        self.now = 0.0
        self.takes_s = list(takes_s)

    def run(self, rows: Sequence[RowWork]) -> list[list[RowLogits]]:
        self.now += self.takes_s.pop(0)
        return super().run(rows)


def measured(decoder: Played, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: decoder.now))
    return calibrate.measure_cost(decoder)


def test_the_first_run_of_each_shape_is_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Played(0.9, 0.18, 0.9, 0.05, 0.9, 0.02)
    cost = measured(decoder, monkeypatch)
    assert [cost.decode_s(rows) for rows in (1, 2, 3, 4)] == pytest.approx([0.02, 0.03, 0.04, 0.05])
    assert cost.read_s(16) == pytest.approx(0.16)
    assert not decoder.takes_s
    assert not decoder.held


def test_a_run_that_is_slower_than_a_cold_one_was_disturbed_and_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Played(0.2, 0.9, 0.18, 0.06, 0.9, 0.9, 0.9, 0.03, 0.02)
    cost = measured(decoder, monkeypatch)
    assert cost.decode_s(4) == pytest.approx(0.06)  # it is not waited for a quiet moment for ever
    assert cost.read_s(16) == pytest.approx(0.16)
    assert not decoder.takes_s


def test_a_chunk_is_no_longer_than_the_decoder_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Played(*[0.25] * 6, context=8, slots=1)
    measured(decoder, monkeypatch)
    assert decoder.runs[0] == [(0, 8)]


def test_a_decoder_that_cannot_run_says_why() -> None:
    def fail(rows: Any) -> None:
        raise RuntimeError("no such shape")

    with pytest.raises(ModelError, match="no such shape"):
        calibrate.measure_cost(FakeDecoder(before_run=fail))
