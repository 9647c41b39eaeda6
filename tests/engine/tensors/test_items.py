"""What rows of a request cost, and into how many items it is cut."""

from typing import Any

import numpy as np
import pytest

from engine.tensor_facts import TensorFacts, TensorModelFacts
from engine.tensors.items import cut, row_size

FACTS = TensorModelFacts(
    inputs=(
        TensorFacts(name="line", datatype="FP32", shape=(-1, 3, 48, -1)),
        TensorFacts(name="ids", datatype="INT64", shape=(-1, -1)),
    ),
    outputs=(TensorFacts(name="y", datatype="FP32", shape=(-1, 2)),),
)


@pytest.mark.parametrize(
    ("shapes", "items", "tokens", "pixels"),
    [
        ({"line": (2, 3, 48, 320), "ids": (2, 7)}, 1, 320, 48 * 320),
        ({"line": (0, 3, 48, 1280), "line.image": (1, 48, 160, 3), "ids": (1, 7)}, 1, 7, 48 * 160),
        ({"line": (1, 3, 48, 16), "line.image": (0, 48, 1280, 3), "ids": (1, 99)}, 1, 99, 48 * 16),
        ({"ids": (3, 9)}, 1, 9, 9),
    ],
)
def test_a_row_costs_what_varies(shapes: Any, items: int, tokens: int, pixels: int) -> None:
    feeds = {name: np.empty(shape) for name, shape in shapes.items()}
    assert row_size(feeds, FACTS, "items") == items
    assert row_size(feeds, FACTS, "tokens") == tokens
    assert row_size(feeds, FACTS, "pixels") == pixels


def test_every_part_of_a_request_costs_as_much() -> None:
    parts = cut({"ids": np.empty((7, 9))}, 7, 3, 9)
    assert [(each.rows, each.size) for each in parts] == [(3, 9), (3, 9), (1, 9)]
    assert len({each.shape for each in parts}) == 1
