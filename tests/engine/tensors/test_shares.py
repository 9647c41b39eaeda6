"""Every payload runs once, in order, and no instance gets much more than its share."""

from hypothesis import given
from hypothesis import strategies as st

from engine.tensors.shares import shares


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 8))
def test_payloads_are_divided_whole(rows: list[int], num_instances: int) -> None:
    parts = shares(rows, num_instances)
    assert 1 <= len(parts) <= num_instances
    assert [index for part in parts for index in range(len(rows))[part]] == list(range(len(rows)))
    heaviest = max(sum(rows[part]) for part in parts)
    assert all(rows[part] for part in parts)
    assert heaviest <= sum(rows) / num_instances + 2 * max(rows)


def test_equal_payloads_are_divided_equally() -> None:
    assert [len(range(16)[part]) for part in shares([1] * 16, 4)] == [4, 4, 4, 4]
    assert [len(range(3)[part]) for part in shares([1] * 3, 2)] == [2, 1]
