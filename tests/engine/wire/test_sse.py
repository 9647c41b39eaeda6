"""What waits for a slow reader: bounded, more for one that takes much at once, and nothing is lost or doubled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.wire.sse import LEAST_WAITING, MOST_WAITING, Mailbox, Window


def test_the_window_grows_for_a_reader_that_comes_late_and_shrinks_once_it_keeps_up() -> None:
    window = Window()
    sizes = []
    for _ in range(5):
        window.taken(window.size)
        sizes.append(window.size)
    assert sizes == [32, 64, 128, 128, 128]
    for _ in range(200):
        window.taken(1)
    assert window.size == LEAST_WAITING


@given(st.lists(st.integers(0, 300), max_size=300))
def test_the_window_keeps_to_its_bounds(takes: list[int]) -> None:
    window = Window()
    for num_events in takes:
        window.taken(num_events)
        assert LEAST_WAITING <= window.size <= MOST_WAITING


async def test_a_mailbox_says_once_that_it_is_full_and_once_that_it_was_emptied() -> None:
    said: list[str] = []
    mailbox = Mailbox(on_full=lambda: said.append("full"), on_emptied=lambda: said.append("emptied"))
    events = list(range(LEAST_WAITING + 3))
    for event in events:
        mailbox.put(event)
    assert said == ["full"]
    assert await mailbox.take() == events
    assert said == ["full", "emptied"]
    mailbox.put(1)
    assert await mailbox.take() == [1]
    assert await mailbox.take(0.0) == []
    assert said == ["full", "emptied"]
