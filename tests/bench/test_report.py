"""Tables, medians and ratios."""

from __future__ import annotations

from bench.first_token import percentile
from bench.report import Report, ratio, table
from bench.rounds import column, interleave


def test_rounds_go_in_turn_and_rows_hold_medians() -> None:
    order: list[str] = []
    figures = {"a": iter([1.0, 9.0, 2.0]), "b": iter([5.0, 5.0, 50.0])}

    def measure(name: str) -> dict[str, float]:
        order.append(name)
        return {"speed": next(figures[name])}

    rows = interleave({"a": lambda: measure("a"), "b": lambda: measure("b")}, 3)
    assert order == ["a", "b"] * 3
    assert rows == [{"peer": "a", "speed": 2.0}, {"peer": "b", "speed": 5.0}]
    assert column(rows, "speed") == {"a": 2.0, "b": 5.0}


def test_a_ratio_to_a_peer_that_is_not_here_is_none_and_left_out_of_the_document() -> None:
    assert ratio(3.0, None) is None
    assert ratio(3.0, 2.0) == 1.5
    report = Report("x", "how", {}, [], {"is": 1.5, "is_not": None})
    assert report.document()["ratios"] == {"is": 1.5}


def test_a_table_aligns_names_left_and_numbers_right() -> None:
    assert table([{"peer": "nginx", "rate": 31943.4}, {"peer": "x", "rate": 0.5}]).splitlines() == [
        "peer    rate",
        "nginx  31943",
        "x        0.5",
    ]


def test_a_percentile_is_a_sample() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7.0], 0.99) == 7.0
