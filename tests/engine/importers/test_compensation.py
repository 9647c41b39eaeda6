"""Rounded weights answer the inputs that were seen nearly as the weights do, and any others no worse than they must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.importers.compensation import DAMPING, PIECE_ROWS, Compensation

Floats = NDArray[np.float32]


def weights(seed: int, rows: int, columns: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def inputs_of(seed: int, columns: int, directions: int) -> Floats:
    """As a model's are: most of what they hold lies in few directions."""
    noise = weights(seed + 2, 200, columns) / np.float32(9)
    return weights(seed, 200, directions) @ weights(seed + 1, directions, columns) + noise


def loss(numbers: Floats, inputs: Floats, compensation: Compensation) -> float:
    """The mean square by which answers to the inputs change."""
    integers, scales = compensation.round_rows(numbers)
    return float(np.mean((inputs @ (numbers - integers * scales[:, None]).T) ** 2))


ALONE = np.zeros((0, 96), np.float32)


@pytest.mark.parametrize("directions", [4, 16])
def test_answers_change_much_less_than_by_rounding_each_weight_alone(directions: int) -> None:
    numbers, inputs = weights(0, 64, 96), inputs_of(1, 96, directions)
    assert loss(numbers, inputs, Compensation(inputs)) < loss(numbers, inputs, Compensation(ALONE)) / 4


def test_inputs_of_the_same_kind_that_were_not_seen_gain_as_well() -> None:
    numbers, inputs = weights(0, 64, 96), inputs_of(1, 96, 8)
    unseen = inputs[100:]
    assert loss(numbers, unseen, Compensation(inputs[:100])) < loss(numbers, unseen, Compensation(ALONE)) / 4


def test_without_inputs_each_weight_is_within_half_a_step_also_when_a_row_is_nothing() -> None:
    numbers = weights(0, 8, 96)
    numbers[3] = 0
    integers, scales = Compensation(ALONE).round_rows(numbers)
    assert (np.abs(integers * scales[:, None] - numbers) <= scales[:, None] * 0.5001).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    rows=st.integers(1, 9),
    columns=st.integers(1, 80),
    scale=st.sampled_from([0.0, 1e-20, 1.0, 1e6]),
)
def test_whatever_was_seen_integers_keep_within_their_bounds(seed: int, rows: int, columns: int, scale: float) -> None:
    seen = np.float32(scale) * weights(seed, 5, columns)
    integers, scales = Compensation(seen).round_rows(weights(seed + 1, rows, columns))
    assert integers.dtype == np.int8
    assert integers.shape == (rows, columns)
    assert np.abs(integers.astype(int)).max() <= 127
    assert np.isfinite(scales).all()
    assert (scales > 0).all()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**20), num_seen=st.integers(1, 90), columns=st.integers(1, 90), directions=st.integers(1, 9)
)
def test_what_columns_make_good_is_what_the_moments_factorised_say(
    seed: int, num_seen: int, columns: int, directions: int
) -> None:
    inputs = inputs_of(seed, columns, directions)[:num_seen]
    compensation = Compensation(inputs)
    moments = (inputs.T @ inputs).astype(np.float64)
    moments[np.diag_indices(columns)] += DAMPING * np.trace(moments) / columns
    upper = np.linalg.cholesky(moments[::-1, ::-1])[::-1, ::-1]
    wanted = np.triu(upper / np.diag(upper), 1)
    found = np.triu(compensation._inputs.T @ compensation._shares, 1)
    assert found == pytest.approx(wanted, abs=2e-4)


def test_rows_are_rounded_alike_in_however_many_pieces() -> None:
    numbers, inputs = weights(0, PIECE_ROWS + 3, 40), inputs_of(1, 40, 4)
    integers, scales = Compensation(inputs).round_rows(numbers)
    for row in (0, PIECE_ROWS - 1, PIECE_ROWS, PIECE_ROWS + 2):
        alone, scale = Compensation(inputs).round_rows(numbers[row : row + 1])
        assert (alone[0] == integers[row]).mean() > 0.9  # sums of floats in another order
        assert scale[0] == scales[row]
