"""Who is unloaded and what the others may take: what always holds, and the cases that one would ask about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.residency import Need, Resident, allotments, idle_too_long, to_unload


def resident(number: int, weights: int = 10, **facts: float) -> Resident:
    return Resident(number, Need(weights), **{"num_users": 0, "used_at": 0.0, **facts})  # type: ignore[arg-type]


needs = st.builds(Need, st.integers(1, 50), st.integers(0, 20))
fleets = st.lists(
    st.builds(
        Resident,
        st.uuids().map(int),
        needs,
        st.integers(0, 2),
        st.floats(0, 100),
        st.none() | st.floats(1, 50),
    ),
    max_size=6,
)


def test_nobody_goes_while_there_is_room() -> None:
    assert to_unload(Need(10), 30, [resident(1), resident(2)]) == []


def test_the_least_recently_used_goes_first_and_no_more_than_it_takes() -> None:
    new, old, older = resident(1, used_at=3), resident(2, used_at=1), resident(3, used_at=0, num_users=1)
    models = [new, old, older]
    assert to_unload(Need(10), 30, models) == [2]
    assert to_unload(Need(20), 30, models) == [2, 1]
    assert to_unload(Need(21), 30, models) is None


@given(needs, st.integers(0, 200), fleets)
def test_what_is_chosen_is_idle_suffices_and_is_needed(need: Need, budget: int, fleet: list[Resident]) -> None:
    chosen = to_unload(need, budget, fleet)
    left = {each.number: each for each in fleet}
    if chosen is None:
        busy = sum(each.need.total for each in fleet if each.num_users)
        assert busy + need.total > budget
        return
    going = [left.pop(number) for number in chosen]
    assert not any(each.num_users for each in going)
    free = budget - sum(each.need.total for each in left.values())
    assert not going or free - going[-1].need.total < need.total <= free
    stayed = [each.used_at for each in left.values() if not each.num_users]
    assert not going or all(at >= going[-1].used_at for at in stayed)


@given(st.integers(0, 500), fleets)
def test_allotments_are_a_context_each_and_pass_the_budget_only_for_that(budget: int, fleet: list[Resident]) -> None:
    shares = allotments(budget, fleet)
    assert set(shares) == {each.number for each in fleet if each.need.context}
    assert all(shares[each.number] >= each.need.context for each in fleet if each.need.context)
    needed = sum(each.need.total for each in fleet)
    taken = sum(each.need.weights for each in fleet) + sum(shares.values())
    assert taken <= max(budget, needed)
    assert not shares or taken > max(budget, needed) - len(shares)  # nothing but a remainder is left over


def test_idle_models_go_when_their_time_is_over_and_used_ones_never() -> None:
    models = [
        resident(1, idle_unload_s=10),
        resident(2, idle_unload_s=60),
        resident(3, idle_unload_s=10, num_users=1),
        resident(4),
    ]
    assert idle_too_long(9.9, models) == []
    assert idle_too_long(10, models) == [1]
    assert idle_too_long(1e9, models) == [1, 2]
