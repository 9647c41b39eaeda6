"""Rounds in turn: each peer once, then each again, so that what drifts on a shared machine meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from bench.report import Row

Figures = dict[str, float]


def interleave(measures: Mapping[str, Callable[[], Figures]], num_rounds: int, *, label: str = "peer") -> list[Row]:
    """One row per entry of ``measures``: its name under ``label`` and the median of each figure over all rounds."""
    rounds: dict[str, list[Figures]] = {name: [] for name in measures}
    for _ in range(num_rounds):
        for name, measure in measures.items():
            rounds[name].append(measure())
    return [{label: name, **medians(figures)} for name, figures in rounds.items()]


def medians(figures: list[Figures]) -> Figures:
    """The median of each figure; all entries have the first one's keys."""
    return {key: statistics.median(each[key] for each in figures) for key in figures[0]}


def column(rows: list[Row], figure: str, *, label: str = "peer") -> dict[str, float]:
    """By name, one figure of each row."""
    return {str(row[label]): float(row[figure]) for row in rows}
