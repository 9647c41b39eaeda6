"""The supervisor and reloads, as a conversation."""

from __future__ import annotations

import pytest

from appliance.events import (
    Adopt,
    Answer,
    Beat,
    Build,
    Built,
    Commit,
    Discard,
    Drain,
    Exited,
    Fatal,
    Forget,
    Load,
    Loaded,
    LoadFailed,
    Plan,
    Refused,
    ReloadAsked,
    Serving,
    Spawn,
    StartEngine,
    TellEngine,
    Ticked,
)
from appliance.supervisor import RESTARTING
from tests.appliance.supervisor_play import LOCAL, PLAIN, faults, local, logged, notified, plain

OTHER = Plan(workers=2, drain_s=30.0, models="b")


class TestReload:
    def test_all_build_then_all_commit(self) -> None:
        play = plain()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(PLAIN) << Build(1, 2, 0, True) << Build(2, 2, 0, True)
        play >> Built(1, 2)
        play >> Built(2, 2) << Adopt(2, 0) << Commit(1, 2) << Commit(2, 2)
        play >> Serving(1, 2)
        play >> Serving(2, 2) << Answer(7)
        assert notified(play)[-2:] == ["reloading", "ready"]
        assert play.core.statistics().reloads.num_ok == 1

    def test_J04_a_broken_file_changes_nothing_and_names_each_problem(self) -> None:
        play = plain()
        play >> ReloadAsked(7) << Load()
        problems = ("headrace.yaml:3:1: unknown key", "headrace.yaml:9:4: no such upstream")
        play >> LoadFailed(problems) << Answer(7, problems)
        assert all(problem in logged(play) for problem in problems)
        statistics = play.core.statistics()
        assert (statistics.revision, statistics.reloads.num_failed) == (1, 1)
        assert statistics.faults == ()
        assert notified(play)[-2:] == ["reloading", "ready"]

    def test_J04_one_refusal_and_all_discard(self) -> None:
        play = plain()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(PLAIN) << Build(1, 2, 0, True) << Build(2, 2, 0, True)
        play >> Built(1, 2)
        play >> Refused(2, 2, ("bad certificate",)) << Discard(1, 2) << Discard(2, 2) << Forget()
        play << Answer(7, ("bad certificate",))

    def test_a_second_refusal_is_late_and_harms_nobody(self) -> None:
        play = plain()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(PLAIN) << Build(1, 2, 0, True) << Build(2, 2, 0, True)
        play >> Refused(1, 2, ("bad",)) << Discard(1, 2) << Discard(2, 2) << Forget() << Answer(7, ("bad",))
        play >> Refused(2, 2, ("bad",))

    def test_a_worker_that_dies_of_a_new_configuration_is_a_refusal(self) -> None:
        play = plain()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(PLAIN) << Build(1, 2, 0, True) << Build(2, 2, 0, True)
        problem = "proxy-1 was killed by SIGSEGV"
        play >> Exited(1, -11) << Discard(2, 2) << Forget() << Answer(7, (problem,))
        play << Spawn(3, "proxy-1", "proxy") << Build(3, 1, 0, False)

    def test_a_worker_that_dies_between_commit_and_serving_does_not_hold_the_reload_up(self) -> None:
        play = plain()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(PLAIN) << Build(1, 2, 0, True) << Build(2, 2, 0, True)
        play >> Built(1, 2)
        play >> Built(2, 2) << Adopt(2, 0) << Commit(1, 2) << Commit(2, 2)
        play >> Serving(1, 2)
        play >> Exited(2, -9) << Spawn(3, "proxy-2", "proxy") << Build(3, 2, 0, False) << Answer(7)

    def test_a_worker_that_starts_meanwhile_is_built_again_from_what_was_committed(self) -> None:
        play = plain()
        play >> Exited(2, -9) << Spawn(3, "proxy-2", "proxy") << Build(3, 1, 0, False)
        play >> ReloadAsked() << Load()
        play >> Loaded(PLAIN) << Build(1, 2, 0, True)
        play >> Built(1, 2) << Adopt(2, 0) << Commit(1, 2) << Build(3, 2, 0, False)
        play >> Serving(1, 2)
        play >> Built(3, 1)
        play >> Built(3, 2) << Commit(3, 2)

    def test_a_worker_that_comes_to_serve_while_the_others_build_is_built_again_too(self) -> None:
        play = plain()
        play >> Exited(2, -9) << Spawn(3, "proxy-2", "proxy") << Build(3, 1, 0, False)
        play >> ReloadAsked(7) << Load()
        play >> Loaded(PLAIN) << Build(1, 2, 0, True)
        play >> Built(3, 1) << Commit(3, 1)
        play >> Serving(3, 1)
        play >> Built(1, 2) << Adopt(2, 0) << Commit(1, 2) << Build(3, 2, 0, False)
        play >> Serving(1, 2)
        play >> Built(3, 2) << Commit(3, 2)
        play >> Serving(3, 2) << Answer(7)

    def test_a_worker_that_never_answers_ends_the_reload_in_time(self) -> None:
        play = plain()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(PLAIN) << Build(1, 2, 0, True) << Build(2, 2, 0, True)
        play >> Built(1, 2)
        for _ in range(12):
            play.after(5) >> Beat(1)
            play >> Beat(2)
        problem = "proxy-2: the configuration was not taken within 60 s"
        play >> Ticked() << Discard(1, 2) << Discard(2, 2) << Forget() << Answer(7, (problem,))

    def test_J01_twenty_reloads_while_one_goes_on_are_one_more(self) -> None:
        play = plain()
        play >> ReloadAsked(1) << Load()
        for ticket in range(2, 22):
            play >> ReloadAsked(ticket)
        play >> LoadFailed(("bad",)) << Answer(1, ("bad",)) << Load()
        play >> LoadFailed(("worse",))
        for ticket in range(2, 22):
            play << Answer(ticket, ("worse",))

    def test_new_models_load_beside_the_old_engine_which_drains_after_the_commit(self) -> None:
        play = local()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(OTHER) << Spawn(4, "engine-2", "engine") << StartEngine(4, 2, True)
        play << Build(2, 2, 2, True) << Build(3, 2, 2, True)
        play >> Built(2, 2)
        play >> Built(3, 2)
        assert faults(play) == ""
        play >> Serving(4) << Adopt(2, 2)
        play << Commit(2, 2) << TellEngine(2, True) << Commit(3, 2) << TellEngine(3, True)
        play >> Serving(2, 2)
        play >> Serving(3, 2) << Drain(1, 30.0) << Answer(7)
        play >> Exited(1, 0)
        assert [post.name for post in play.core.statistics().posts] == ["proxy-1", "proxy-2", "engine-2"]

    def test_a_new_engine_that_cannot_boot_rolls_back(self) -> None:
        play = local()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(OTHER) << Spawn(4, "engine-2", "engine") << StartEngine(4, 2, True)
        play << Build(2, 2, 2, True) << Build(3, 2, 2, True)
        play >> Fatal(4, "model.onnx is corrupt")
        problem = "engine-2 failed: model.onnx is corrupt"
        play >> Exited(4, 78) << Discard(2, 2) << Discard(3, 2) << Forget() << Answer(7, (problem,))
        assert faults(play) == ""

    def test_a_refusal_sends_the_new_engine_away(self) -> None:
        play = local()
        play >> ReloadAsked(7) << Load()
        play >> Loaded(OTHER) << Spawn(4, "engine-2", "engine") << StartEngine(4, 2, True)
        play << Build(2, 2, 2, True) << Build(3, 2, 2, True)
        play >> Refused(2, 2, ("bad",))
        play << Discard(2, 2) << Discard(3, 2) << Drain(4, 0.0) << Forget() << Answer(7, ("bad",))
        play >> Exited(4, 0)
        play >> ReloadAsked() << Load()
        play >> Loaded(OTHER) << Spawn(5, "engine-3", "engine") << StartEngine(5, 3, True)
        play << Build(2, 3, 3, True) << Build(3, 3, 3, True)

    def test_without_models_the_engine_leaves(self) -> None:
        play = local()
        play >> ReloadAsked() << Load()
        play >> Loaded(PLAIN) << Build(2, 2, 0, True) << Build(3, 2, 0, True)
        play >> Built(2, 2)
        play >> Built(3, 2) << Adopt(2, 0) << Commit(2, 2) << Commit(3, 2)
        play >> Serving(2, 2)
        play >> Serving(3, 2) << Drain(1, 30.0)

    def test_a_reload_does_not_wait_for_an_engine_that_is_down(self) -> None:
        play = local()
        play >> Exited(1, -9)
        play << TellEngine(2, False, RESTARTING) << TellEngine(3, False, RESTARTING)
        play << Spawn(4, "engine-1", "engine") << StartEngine(4, 1, False)
        play >> ReloadAsked() << Load()
        play >> Loaded(LOCAL) << Build(2, 2, 1, True) << Build(3, 2, 1, True)
        play >> Built(2, 2)
        play >> Built(3, 2) << Adopt(2, 1)
        play << Commit(2, 2) << TellEngine(2, False, RESTARTING)
        play << Commit(3, 2) << TellEngine(3, False, RESTARTING)

    def test_a_reload_tries_at_once_what_waits_for_its_next_attempt(self) -> None:
        play = local()
        play >> Exited(1, -9) << TellEngine(2, False, RESTARTING) << TellEngine(3, False, RESTARTING)
        play << Spawn(4, "engine-1", "engine") << StartEngine(4, 1, False)
        play >> Fatal(4, "engine-1.sock: cannot listen there: No such file or directory")
        play >> Exited(4, 1) << TellEngine(2, False, RESTARTING) << TellEngine(3, False, RESTARTING)
        play >> ReloadAsked() << Load()
        play >> Loaded(LOCAL) << Build(2, 2, 1, True) << Build(3, 2, 1, True)
        play >> Built(2, 2)
        play >> Built(3, 2) << Adopt(2, 1)
        play << Commit(2, 2) << TellEngine(2, False, RESTARTING)
        play << Commit(3, 2) << TellEngine(3, False, RESTARTING)
        play >> Serving(2, 2)
        play >> Serving(3, 2)
        assert play.core.wake_at() == play.now
        play >> Ticked() << Spawn(5, "engine-1", "engine") << StartEngine(5, 1, False)

    @pytest.mark.parametrize(("workers", "actions"), [
        (3, [Spawn(3, "proxy-3", "proxy"), Build(3, 2, 0, False)]),
        (1, [Drain(2, 30.0)]),
    ])  # fmt: skip
    def test_the_number_of_workers_follows(self, workers: int, actions: list[object]) -> None:
        play = plain()
        play >> ReloadAsked() << Load()
        play >> Loaded(Plan(workers, 30.0)) << Build(1, 2, 0, True) << Build(2, 2, 0, True)
        play >> Built(1, 2)
        play >> Built(2, 2) << Adopt(2, 0) << Commit(1, 2) << Commit(2, 2)
        play >> Serving(1, 2)
        play >> Serving(2, 2)
        for action in actions:
            play << action
