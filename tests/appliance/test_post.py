"""A post: when its process is tried again."""

from __future__ import annotations

from appliance.post import Limits, Post, State

LIMITS = Limits()


def test_the_first_restart_is_immediate_and_then_the_delay_doubles_up_to_a_bound() -> None:
    post = Post("proxy-1", "proxy")
    delays_s = []
    for child in range(10):
        post.started(child, 0.0, LIMITS)
        delays_s.append(post.failed("exited", 0.0, LIMITS))
    assert delays_s == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert post.num_restarts == 10


def test_a_process_that_served_for_a_while_starts_again_with_no_delay() -> None:
    post = Post("proxy-1", "proxy")
    for child in range(5):
        post.started(child, 0.0, LIMITS)
        post.failed("exited", 0.0, LIMITS)
    post.started(6, 10.0, LIMITS)
    post.entered(State.SERVING, 11.0, LIMITS)
    assert post.failed("exited", 11.0 + LIMITS.stable_s, LIMITS) == 0.0


def test_heartbeats_count_only_once_it_has_started() -> None:
    post = Post("engine-1", "engine", 1)
    post.started(1, 0.0, LIMITS)
    post.heard(5.0, LIMITS)
    assert post.due_at == LIMITS.start_engine_s
    post.entered(State.SERVING, 6.0, LIMITS)
    post.heard(8.0, LIMITS)
    assert post.due_at == 8.0 + LIMITS.silence_s
