"""Rotations keep what is computed and spread what is large."""

from __future__ import annotations

import numpy as np
import pytest

from engine.importers.rotations import hadamard, neighbours, rotation


@pytest.mark.parametrize("size", [1, 2, 3, 12, 64, 96, 576, 1000])
def test_a_rotation_is_orthogonal_and_always_the_same(size: int) -> None:
    turn = rotation(size)
    np.testing.assert_allclose(turn @ turn.T, np.eye(size), atol=1e-5)
    np.testing.assert_array_equal(turn, rotation(size))


@pytest.mark.parametrize("size", [64, 96, 576])
def test_one_large_column_is_spread_over_all(size: int) -> None:
    for column in (0, size // 2, size - 1):
        spread = np.abs(np.eye(size, dtype=np.float32)[column] @ rotation(size))
        assert spread.max() < 3 / np.sqrt(size)


def test_neighbours_are_a_power_of_two_that_divides_the_columns() -> None:
    assert [neighbours(columns) for columns in (1536, 96, 48, 7)] == [64, 32, 16, 1]
    np.testing.assert_allclose(hadamard(16) @ hadamard(16), np.eye(16), atol=1e-12)
