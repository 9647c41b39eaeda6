"""The supervisor as a conversation: >> what happens << what it does about it."""

from __future__ import annotations

from math import inf

from appliance.events import (
    Adopt,
    Answer,
    Beat,
    Build,
    Built,
    Commit,
    Drain,
    Exit,
    Exited,
    Fatal,
    Forget,
    Kill,
    Listen,
    Load,
    Loaded,
    Plan,
    Refused,
    ReloadAsked,
    Serving,
    Spawn,
    StartEngine,
    StopAsked,
    StopListening,
    TellEngine,
    Ticked,
    Trouble,
)
from appliance.supervisor import RESTARTING, UNRESPONSIVE
from tests.appliance.supervisor_play import LOCAL, PLAIN, begin, faults, local, logged, notified, plain


class TestStart:
    def test_proxies_are_spawned_at_once_and_listen_when_all_are_built(self) -> None:
        play = plain()
        assert notified(play) == ["status", "ready"]
        assert faults(play) == ""

    def test_proxies_wait_built_until_the_engine_serves(self) -> None:
        play = local()
        assert notified(play)[-1] == "ready"

    def test_a_child_that_can_never_boot_ends_the_start(self) -> None:
        play = begin()
        play >> Loaded(LOCAL)
        play << Spawn(1, "engine-1", "engine") << StartEngine(1, 1, True)
        play << Spawn(2, "proxy-1", "proxy") << Build(2, 1, 1, True)
        play << Spawn(3, "proxy-2", "proxy") << Build(3, 1, 1, True)
        play >> Fatal(1, "model 'chat': weights.bin is missing")
        play >> Exited(1, 78) << Drain(2, 0.0) << Drain(3, 0.0) << StopListening()
        assert "engine-1 failed: model 'chat': weights.bin is missing" in logged(play)
        play >> Exited(2, 0)
        play >> Exited(3, 0) << Exit(78)

    def test_a_refused_first_configuration_ends_the_start(self) -> None:
        play = begin()
        play >> Loaded(Plan(1, 30.0)) << Spawn(1, "proxy-1", "proxy") << Build(1, 1, 0, True)
        play >> Refused(1, 1, ("upstream app: no such host",)) << Drain(1, 0.0) << StopListening()
        assert "upstream app: no such host" in logged(play)
        play >> Exited(1, 0) << Exit(78)

    def test_a_child_that_crashes_is_tried_again_and_not_for_ever(self) -> None:
        play = begin()
        play >> Loaded(Plan(1, 30.0)) << Spawn(1, "proxy-1", "proxy") << Build(1, 1, 0, True)
        play >> Exited(1, -11) << Spawn(2, "proxy-1", "proxy") << Build(2, 1, 0, True)
        for child, delay_s in ((2, 0.5), (3, 1.0), (4, 2.0)):
            play >> Exited(child, -11)
            play.after(delay_s) >> Ticked()
            play << Spawn(child + 1, "proxy-1", "proxy") << Build(child + 1, 1, 0, True)
        play >> Exited(5, -11) << StopListening() << Exit(78)
        assert "proxy-1 did not start in 5 attempts; the last one was killed by SIGSEGV" in logged(play)

    def test_a_crash_after_the_build_is_built_again_before_the_commit(self) -> None:
        play = begin()
        play >> Loaded(PLAIN)
        play << Spawn(1, "proxy-1", "proxy") << Build(1, 1, 0, True)
        play << Spawn(2, "proxy-2", "proxy") << Build(2, 1, 0, True)
        play >> Built(1, 1)
        play >> Exited(1, -9) << Spawn(3, "proxy-1", "proxy") << Build(3, 1, 0, True)
        play >> Built(2, 1)
        play >> Built(3, 1) << Listen() << Adopt(1, 0) << Commit(3, 1) << Commit(2, 1)

    def test_a_start_that_hangs_is_aborted(self) -> None:
        play = begin()
        play >> Loaded(Plan(1, 30.0)) << Spawn(1, "proxy-1", "proxy") << Build(1, 1, 0, True)
        play.after(60) >> Ticked() << Kill(1, "SIGABRT")
        play.after(2) >> Ticked() << Kill(1, "SIGKILL")
        play >> Exited(1, -9) << Spawn(2, "proxy-1", "proxy") << Build(2, 1, 0, True)


class TestRestart:
    def test_a_killed_worker_is_replaced_at_once_and_the_other_is_left_alone(self) -> None:
        play = plain()
        play >> Exited(1, -9) << Spawn(3, "proxy-1", "proxy") << Build(3, 1, 0, False)
        assert "proxy-1 was killed by SIGKILL; it is started again now" in logged(play)
        assert faults(play) == "proxy-1 is starting: was killed by SIGKILL"
        play >> Built(3, 1) << Commit(3, 1)
        play >> Serving(3, 1)
        assert faults(play) == ""

    def test_the_second_time_there_is_a_delay(self) -> None:
        play = plain()
        play >> Exited(1, 1) << Spawn(3, "proxy-1", "proxy") << Build(3, 1, 0, False)
        play >> Exited(3, 1)
        assert play.core.wake_at() == play.now + 0.5
        play.after(0.5) >> Ticked() << Spawn(4, "proxy-1", "proxy") << Build(4, 1, 0, False)

    def test_O05_a_dead_engine_is_told_to_the_proxies_at_once_and_restarted_at_once(self) -> None:
        play = local()
        play >> Exited(1, -9)
        play << TellEngine(2, False, RESTARTING) << TellEngine(3, False, RESTARTING)
        play << Spawn(4, "engine-1", "engine") << StartEngine(4, 1, False)
        assert faults(play) == "engine-1 is starting: was killed by SIGKILL"
        play >> Serving(4) << TellEngine(2, True) << TellEngine(3, True)
        assert faults(play) == ""

    def test_O05_a_silent_engine_is_aborted_then_killed_and_replaced(self) -> None:
        play = local()
        for _ in range(10):
            play.after(1) >> Beat(2)
            play >> Beat(3)
        play >> Ticked()
        play << Kill(1, "SIGABRT") << TellEngine(2, False, UNRESPONSIVE) << TellEngine(3, False, UNRESPONSIVE)
        play.after(2) >> Ticked() << Kill(1, "SIGKILL")
        play >> Exited(1, -9) << TellEngine(2, False, RESTARTING) << TellEngine(3, False, RESTARTING)
        play << Spawn(4, "engine-1", "engine") << StartEngine(4, 1, False)
        assert "engine-1 was aborted: no heartbeat for 10 s; it is started again now" in logged(play)

    def test_O05_an_engine_in_trouble_is_down_before_it_is_aborted_and_may_recover(self) -> None:
        play = local()
        why = "the runner has been inside one run for 31 s"
        play >> Trouble(1, why) << TellEngine(2, False, UNRESPONSIVE) << TellEngine(3, False, UNRESPONSIVE)
        assert faults(play) == f"engine-1 is {why}"
        play >> Trouble(1, why)
        play >> Beat(1) << TellEngine(2, True) << TellEngine(3, True)

    def test_trouble_is_no_heartbeat(self) -> None:
        play = local()
        why = "stuck"
        play >> Trouble(1, why) << TellEngine(2, False, UNRESPONSIVE) << TellEngine(3, False, UNRESPONSIVE)
        for _ in range(10):
            play.after(1) >> Trouble(1, why)
            play >> Beat(2)
            play >> Beat(3)
        play >> Ticked() << Kill(1, "SIGABRT")

    def test_a_replacement_learns_that_the_engine_is_down(self) -> None:
        play = local()
        play >> Exited(1, -9)
        play << TellEngine(2, False, RESTARTING) << TellEngine(3, False, RESTARTING)
        play << Spawn(4, "engine-1", "engine") << StartEngine(4, 1, False)
        play >> Exited(2, -9) << Spawn(5, "proxy-1", "proxy") << Build(5, 1, 1, False)
        play >> Built(5, 1) << Commit(5, 1) << TellEngine(5, False, RESTARTING)

    def test_a_replacement_that_cannot_build_is_tried_again_later(self) -> None:
        play = plain()
        play >> Exited(1, -9) << Spawn(3, "proxy-1", "proxy") << Build(3, 1, 0, False)
        play >> Refused(3, 1, ("no memory",)) << Kill(3, "SIGKILL")
        play >> Exited(3, -9)
        assert "cannot build what its predecessor served: no memory; it is started again in 0.5 s" in logged(play)

    def test_after_the_start_a_child_that_cannot_boot_is_tried_again(self) -> None:
        play = plain()
        play >> Exited(1, 78) << Spawn(3, "proxy-1", "proxy") << Build(3, 1, 0, False)

    def test_a_late_word_of_a_dead_process_is_not_its_successors(self) -> None:
        play = plain()
        play >> Exited(1, -9) << Spawn(3, "proxy-1", "proxy") << Build(3, 1, 0, False)
        play >> Built(1, 1)
        play >> Serving(1, 1)
        assert "proxy-1 is starting" in faults(play)

    def test_a_supervisor_that_did_not_run_does_not_blame_its_children(self) -> None:
        play = plain()
        play.after(300) >> Ticked()
        play.after(9) >> Beat(1)
        play >> Beat(2)


class TestEnd:
    def test_D08_proxies_drain_first_and_the_end_comes_as_soon_as_all_are_idle(self) -> None:
        play = local()
        play >> StopAsked() << Drain(2, 30.0) << Drain(3, 30.0) << StopListening()
        assert notified(play)[-1] == "stopping"
        assert faults(play).startswith("headrace is stopping")
        play.after(2) >> Exited(2, 0)
        play >> Exited(3, 0) << Drain(1, 28.0)
        play >> Exited(1, 0) << Exit(0)

    def test_D08_what_outlives_the_limit_is_killed(self) -> None:
        play = plain()
        play >> StopAsked() << Drain(1, 30.0) << Drain(2, 30.0) << StopListening()
        play >> Exited(2, 0)
        play.after(30.5) >> Ticked() << Kill(1, "SIGKILL")
        play >> Exited(1, -9) << Exit(0)

    def test_D08_a_second_signal_ends_at_once(self) -> None:
        play = plain()
        play >> StopAsked() << Drain(1, 30.0) << Drain(2, 30.0) << StopListening()
        play >> StopAsked() << Kill(1, "SIGKILL") << Kill(2, "SIGKILL") << Exit(130)

    def test_a_stop_while_it_starts(self) -> None:
        play = begin()
        play >> Loaded(Plan(1, 30.0)) << Spawn(1, "proxy-1", "proxy") << Build(1, 1, 0, True)
        play >> StopAsked() << Drain(1, 0.0) << StopListening()
        play >> Built(1, 1)
        play >> Exited(1, 0) << Exit(0)

    def test_J02_a_stop_while_it_reloads(self) -> None:
        play = plain()
        play >> ReloadAsked(7) << Load()
        play >> ReloadAsked(8)
        problem = ("headrace is stopping",)
        play >> StopAsked() << Answer(7, problem) << Answer(8, problem)
        play << Drain(1, 30.0) << Drain(2, 30.0) << StopListening()
        play >> Loaded(PLAIN) << Forget()
        play >> ReloadAsked(9) << Answer(9, problem)

    def test_a_child_that_waits_to_be_restarted_does_not_hold_the_end_up(self) -> None:
        play = begin()
        play >> Loaded(Plan(1, 30.0)) << Spawn(1, "proxy-1", "proxy") << Build(1, 1, 0, True)
        play >> Exited(1, 1) << Spawn(2, "proxy-1", "proxy") << Build(2, 1, 0, True)
        play >> Exited(2, 1)
        play >> StopAsked() << StopListening() << Exit(0)

    def test_after_the_end_nothing_is_due(self) -> None:
        play = begin()
        play >> Loaded(Plan(1, 30.0)) << Spawn(1, "proxy-1", "proxy") << Build(1, 1, 0, True)
        play >> StopAsked() << Drain(1, 0.0) << StopListening()
        play >> Exited(1, 0) << Exit(0)
        assert play.core.wake_at() == inf
