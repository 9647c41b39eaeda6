"""Turns on a device: everyone in order, and readers of streams wait no longer than their stall allows."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from engine.arbiter import IDLE_ALLOWANCE_S, Arbiter, Claim, Turn

IDLE = Claim(ready=False, decoding=False, max_stall_s=0.1)
PREFILL = Claim(ready=True, decoding=False, max_stall_s=0.1)
DECODE = Claim(ready=True, decoding=True, max_stall_s=0.1)
BATCH = Claim(ready=True, decoding=False, max_stall_s=math.inf)


def test_nothing_to_do() -> None:
    assert Arbiter().choose([]) is None
    assert Arbiter().choose([IDLE, IDLE]) is None


def test_lanes_take_turns_and_the_idle_are_passed_over() -> None:
    arbiter = Arbiter()
    assert [arbiter.choose([PREFILL, IDLE, BATCH]).lane for _ in range(4)] == [0, 2, 0, 2]  # type: ignore[union-attr]
    assert arbiter.choose([IDLE, BATCH, IDLE]) == Turn(1, IDLE_ALLOWANCE_S)


def test_while_someone_decodes_all_lanes_share_the_stall() -> None:
    arbiter = Arbiter()
    assert arbiter.choose([DECODE]) == Turn(0, 0.1)
    assert arbiter.choose([DECODE, BATCH]) == Turn(1, 0.05)
    assert arbiter.choose([DECODE, DECODE._replace(max_stall_s=0.04), BATCH]) == Turn(2, 0.04 / 3)


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=60))
def test_a_lane_that_stays_ready_waits_for_each_other_lane_at_most_once(rounds: list[list[bool]]) -> None:
    arbiter = Arbiter()
    since: list[list[int]] = [[] for _ in range(4)]
    for ready in rounds:
        turn = arbiter.choose([Claim(each, False, 0.1) for each in ready])
        for lane in range(4):
            if not ready[lane] or (turn is not None and turn.lane == lane):
                since[lane] = []
            elif turn is not None:
                since[lane].append(turn.lane)
                assert len(set(since[lane])) == len(since[lane])
