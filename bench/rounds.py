"""Rounds in turn: each peer once, then each again, so that what drifts on a shared machine meets all of them alike."""

from __future__ import annotations

import statistics
import time
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


def tabulate(
    measures: Mapping[str, Mapping[str, Callable[[], float]]], num_rounds: int, *, label: str = "peer"
) -> list[Row]:
    """One row per entry of ``measures`` with the median of each of its figures; in a round, a figure of all peers in
    turn comes before the next figure. A figure that an entry does not have is None."""
    names = list(dict.fromkeys(name for figures in measures.values() for name in figures))
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(num_rounds):
        for name in names:
            for who, figures in measures.items():
                if name in figures:
                    taken.setdefault((who, name), []).append(figures[name]())
    return [
        {label: who, **{name: statistics.median(taken[who, name]) if (who, name) in taken else None for name in names}}
        for who in measures
    ]


def repeated(work: Callable[[], object], num_each: int, seconds: float) -> Figures:
    """{per_s, one_p50_ms (of a call)} of ``work`` done again and again, ``num_each`` things at a time."""
    taken_s: list[float] = []
    begun_at = now = time.perf_counter()
    while now < begun_at + seconds:
        work()
        before, now = now, time.perf_counter()
        taken_s.append(now - before)
    return {"per_s": num_each * len(taken_s) / (now - begun_at), "one_p50_ms": 1000 * statistics.median(taken_s)}


def medians(figures: list[Figures]) -> Figures:
    """The median of each figure; all entries have the first one's keys."""
    return {key: statistics.median(each[key] for each in figures) for key in figures[0]}


def column(rows: list[Row], figure: str, *, label: str = "peer") -> dict[str, float]:
    """By name, one figure of each row."""
    return {str(row[label]): float(row[figure]) for row in rows}
