"""Who gets which variant: always the same one, and when shares change exactly those move who must."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.balance_hash import hash_of
from proxy.variants.assignment import MAX_SHARE, MAX_VARIANTS, NUM_GROUPS, choose, group_of, why_not

USERS = [f"user-{i}" for i in range(1000)]
PATH = "/v1/chat/completions"


def seeds(names: list[str]) -> list[int]:
    return [hash_of(name) for name in names]


def arms(names: list[str], shares: list[float]) -> list[str]:
    """Of all users, the name of each one's arm."""
    own = seeds(names)
    chosen = [choose(user, PATH, own, shares) for user in USERS]
    return [names[index] if index >= 0 else "control" for index in chosen]


@st.composite
def experiments(draw: st.DrawFn) -> tuple[list[str], list[float]]:
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=6), min_size=1, max_size=MAX_VARIANTS, unique=True))
    most = min(MAX_SHARE, 1 / len(names))
    return names, [draw(st.floats(0.0, most)) for _ in names]


@given(experiments(), st.data())
def test_a_share_that_changes_moves_as_many_as_it_changes_by_and_only_between_it_and_the_control(
    experiment: tuple[list[str], list[float]], data: st.DataObject
) -> None:
    names, shares = experiment
    index = data.draw(st.integers(0, len(names) - 1))
    other = list(shares)
    other[index] = data.draw(st.floats(0.0, min(MAX_SHARE, 1 / len(names))))
    before, after = arms(names, shares), arms(names, other)
    moved = {(a, b) for a, b in zip(before, after, strict=True) if a != b}
    grows = other[index] > shares[index]
    assert moved <= {("control", names[index]) if grows else (names[index], "control")}
    num_moved = sum(a != b for a, b in zip(before, after, strict=True))
    change = abs(other[index] - shares[index])
    assert abs(num_moved / len(USERS) - change) <= 5 * (change * (1 - change) / len(USERS)) ** 0.5 + 6e-3


@given(experiments())
def test_each_has_its_share_whatever_the_order_of_the_variants(experiment: tuple[list[str], list[float]]) -> None:
    names, shares = experiment
    given = arms(names, shares)
    assert given == arms(names[::-1], shares[::-1])
    counts = Counter(given)
    for name, share in zip(names, shares, strict=True):
        assert abs(counts[name] / len(USERS) - share) <= 5 * (share * (1 - share) / len(USERS)) ** 0.5 + 6e-3


@given(experiments(), st.data())
def test_a_variant_that_is_removed_takes_nobody_from_another_to_a_third(
    experiment: tuple[list[str], list[float]], data: st.DataObject
) -> None:
    """Who may get another variant still may get that one, or gets the control."""
    names, shares = experiment
    if len(names) < 2:
        return
    index = data.draw(st.integers(0, len(names) - 1))
    rest = [name for name in names if name != names[index]]
    left = [share for i, share in enumerate(shares) if i != index]
    for before, after in zip(arms(names, shares), arms(rest, left), strict=True):
        if before not in ("control", names[index]):
            assert after in (before, "control")


def test_paths_of_one_user_are_drawn_apart_and_groups_have_nothing_to_do_with_variants() -> None:
    own = seeds(["a", "b"])
    by_path = [choose("user-1", f"/v1/{i}", own, [0.2, 0.2]) for i in range(500)]
    assert len(set(by_path)) == 3
    groups = Counter(group_of(user) for user in map(str, range(10_000)) if choose(user, PATH, own, [0.2, 0.2]) == 0)
    assert len(groups) == NUM_GROUPS
    assert max(groups.values()) < 3 * min(groups.values())


@pytest.mark.parametrize(
    ("share", "others", "says"),
    [
        (0.2, [], None),
        (0.01, [0.2, 0.2, 0.2], None),
        (0.0, [0.1] * 8, None),
        (0.005, [], "the share of b must be 1% to 20%; with 0% nobody gets it"),
        (0.21, [], "the share of b must be 1% to 20%; with 0% nobody gets it"),
        (0.13, [0.01] * 7, "the share of b must be 1% to 12.5% (8 variants divide"),
        (0.2, [0.2, 0.2, 0.21], "the variants' shares are 81% together; 20% at least are the control's"),
    ],
)  # fmt: skip
def test_shares_that_cannot_be(share: float, others: list[float], says: str | None) -> None:
    found = why_not("b", share, others)
    assert found == says if says is None else (found or "").startswith(says)
