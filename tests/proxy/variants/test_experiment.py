"""An experiment in a box of several workers: what is counted, which shares hold, and when a rule stops a variant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from proxy.config_variants import Config
from proxy.shared.layout import Geometry
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable
from proxy.variants.assignment import group_of
from proxy.variants.experiment import JUDGE_S, Arm, Experiment, Stopped
from proxy.variants.sequential import Counts
from proxy.variants.standing import FEW
from proxy.variants.tally import Ended

SMALL = Geometry(limits=1, keys=1, permits=1, records=16, tallies=16, windows=1, window_keys=1, columns=4, answers=64)
GOOD, BAD, GONE = Ended(True, 0.2), Ended(False, 0.1), Ended(None, 3.0)
PATH = "/v1/chat"


def table(**more: Any) -> Config:
    of = more.pop("of", {"b": {"share": "20%", "to": "new"}})
    return Config.model_validate_json(json.dumps({"of": of, **more}))


def alone(**more: Any) -> tuple[Experiment, list[Stopped]]:
    told: list[Stopped] = []
    experiment = Experiment("r", table(**more), SharedTable.alone(SMALL), told.append)
    experiment.look(1.0)
    return experiment, told


@contextmanager
def workers(num: int, **more: Any) -> Iterator[tuple[list[Experiment], list[Stopped], SharedTableOwner]]:
    owner, told = SharedTableOwner(SMALL), list[Stopped]()
    tables = [SharedTable.attached(owner.fd, owner.enter()) for _ in range(num)]
    for each in tables:
        each.look()
    yield [Experiment("r", table(**more), each, told.append) for each in tables], told, owner
    owner.close()


def serve(experiment: Experiment, num: int, fails: dict[str, float], seed: int = 0, first: int = 0) -> None:
    """So many requests of a user each, of which those of an arm fail so often."""
    draws = Random(seed)
    for i in range(first, first + num):
        user = f"user-{i}"
        arm = experiment.choose(user, PATH)
        experiment.ended(arm, user, BAD if draws.random() < fails.get(arm.name, 0.01) else GOOD)


def row(experiment: Experiment, name: str = "b", now: float = 1.0) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in experiment.show(now) if each["variant"] == name)
    return found


def test_what_ends_is_counted_for_the_arm_and_shown() -> None:
    experiment, _ = alone()
    b = experiment.variants[0]
    for ended in (GOOD, Ended(True, 0.4, 0.1, 0.3, (10, 20)), BAD, GONE):
        experiment.ended(b, "u", ended)
    experiment.told(b, group_of("u"), True)
    experiment.told(b, group_of("v"), False)
    shown = row(experiment)
    assert shown["share"] == 0.2
    assert [shown[key] for key in ("requests", "good", "gone", "outcomes", "good_outcomes")] == [3, 2, 1, 2, 1]
    assert [shown[key] for key in ("answer_s", "first_byte_s", "first_token_s")] == [0.3, 0.1, 0.3]
    assert [shown[key] for key in ("prompt_tokens", "completion_tokens")] == [10, 20]
    control = row(experiment, "control")
    assert (control["share"], control["requests"], control["answer_s"]) == (0.8, 0, None)
    assert shown["verdict"] == "no difference yet"


def test_all_workers_count_together_and_a_dead_one_takes_nothing_away() -> None:
    with workers(3) as (box, _, owner):
        for worker in box:
            for _ in range(5):
                worker.ended(worker.variants[0], "u", GOOD)
        owner.left(1)
        assert row(box[0])["requests"] == 15
        column = owner.enter()
        assert column == 1  # the successor goes on in its row
        successor = Experiment("r", table(), SharedTable.attached(owner.fd, column), lambda _: None)
        successor.ended(successor.variants[0], "u", GOOD)
        assert row(box[2])["requests"] == 16


def test_a_share_is_set_for_all_workers_at_once_and_once() -> None:
    with workers(2) as (box, _, _owner):
        one, other = box
        users = [f"user-{i}" for i in range(2000)]
        before = [other.choose(user, PATH).name for user in users]
        assert one.order("set", "b", 0.05, 7.0, 2.0) is None
        assert other.order("set", "b", 0.05, 7.0, 2.0) is None
        assert row(other)["share"] == 0.05
        after = [other.choose(user, PATH).name for user in users]
        assert {(a, b) for a, b in zip(before, after, strict=True) if a != b} == {("b", "control")}
        assert one.order("set", "b", 0.1, 6.0, 2.0) is None  # an older order, heard late
        assert row(one)["share"] == 0.05
        assert one.order("set", "b", 0.5, 8.0, 2.0) == "the share of b must be 1% to 20%; with 0% nobody gets it"
        assert one.order("set", "c", 0.1, 9.0, 2.0) == "r has no variant 'c'; it has b"


def test_an_ordered_share_holds_until_the_configuration_says_another() -> None:
    shared = SharedTable.alone(SMALL)

    def configured(share: str) -> Experiment:
        return Experiment("r", table(of={"b": {"share": share, "to": "new"}}), shared, lambda _: None)

    experiment = configured("20%")
    experiment.order("set", "b", 0.05, 1.0, 1.0)
    assert configured("20%").shares() == [0.05]
    other = configured("10%")
    assert other.shares() == [0.1]
    other.look(1.0)
    assert configured("20%").shares() == [0.2]  # nor does it come back with the share that was configured then
    crowd = {name: {"share": "10%", "to": "new"} for name in "cdefghi"}
    experiment.order("set", "b", 0.2, 2.0, 1.0)
    beside = Experiment(
        "r", table(of={"b": {"share": "20%", "to": "new"}} | dict(list(crowd.items())[:4])), shared, print
    )
    assert beside.shares() == [0.2, 0.1, 0.1, 0.1, 0.1]
    more = Experiment("r", table(of={"b": {"share": "10%", "to": "new"}} | crowd), shared, print)
    assert more.shares() == [0.1] * 8  # 20% beside seven others cannot be


def test_what_changes_something_else_begins_anew_and_the_others_go_on() -> None:
    shared = SharedTable.alone(SMALL)
    of = {"b": {"share": "10%", "to": "new"}, "c": {"share": "10%", "to": "other"}}
    before = Experiment("r", table(of=of), shared, print)
    for arm in before.variants:
        before.ended(arm, "u", GOOD)
    after = Experiment("r", table(of=of | {"b": {"share": "10%", "to": "newer"}}), shared, print)
    assert [each["requests"] for each in after.show(1.0)] == [0, 0, 1]


def test_harm_stops_after_it_has_lasted() -> None:
    experiment, told = alone()
    serve(experiment, 3000, {"b": 0.3})
    experiment.look(10.0)
    assert row(experiment)["verdict"] == "worse"
    for now in range(15, 310, 5):
        experiment.look(float(now))
    assert not told
    experiment.look(310.0)
    [stop] = told
    assert (stop.route, stop.variant, stop.rule) == ("r", "b", "harm")
    assert stop.verdict.z < 0
    shown = row(experiment, now=330.0)
    assert (shown["share"], shown["stopped"], shown["stopped_for_s"]) == (0.0, "harm", 20.0)
    assert {experiment.choose(f"user-{i}", PATH).name for i in range(100)} == {"control"}
    experiment.look(320.0)
    assert len(told) == 1
    assert experiment.order("set", "b", 0.02, 1.0, 331.0) is None
    assert row(experiment)["stopped"] is None
    experiment.look(336.0)
    assert len(told) == 1  # the five minutes begin again


def test_harm_that_passes_does_not_stop() -> None:
    experiment, told = alone()
    serve(experiment, 1500, {"b": 0.1})
    experiment.look(10.0)
    assert experiment.variants[0].standing.harm_since == 10.0
    serve(experiment, 40_000, {}, first=1500)
    experiment.look(200.0)
    assert experiment.variants[0].standing.harm_since == 0.0
    experiment.look(400.0)
    assert not told


def test_a_few_requests_decide_nothing() -> None:
    experiment, told = alone()
    b, control = experiment.variants[0], experiment.control
    for _ in range(int(FEW) - 1):
        experiment.ended(b, "u", BAD)
        experiment.ended(control, "v", GOOD)
    for now in (10.0, 400.0):
        experiment.look(now)
    assert not told


def test_futility_stops_what_shows_no_difference_once_there_is_enough() -> None:
    experiment, told = alone(stop={"min_samples": 500, "after": "1m"})
    serve(experiment, 1000, {})
    for now in (10.0, 100.0):
        experiment.look(now)
    assert not told  # 200 of the variant's are not enough
    serve(experiment, 4000, {}, first=1000)
    for now in (110.0, 165.0):
        experiment.look(now)
    assert not told
    experiment.look(170.0)
    assert [stop.rule for stop in told] == ["futility"]


def test_rules_that_are_not_wanted_stop_nothing() -> None:
    experiment, told = alone(stop={"rules": [], "min_samples": 1})
    serve(experiment, 3000, {"b": 0.3})
    for now in (10.0, 1000.0):
        experiment.look(now)
    assert not told


def test_better_is_no_harm() -> None:
    experiment, told = alone(stop={"rules": ["harm"]})
    serve(experiment, 3000, {"control": 0.3})
    for now in (10.0, 1000.0):
        experiment.look(now)
    assert row(experiment)["verdict"] == "better"
    assert not told


def test_one_of_several_workers_tells_of_a_stop() -> None:
    with workers(3) as (box, told, owner):
        for worker in box:
            worker.look(1.0)
        for i, worker in enumerate(box):
            serve(worker, 1000, {"b": 0.3}, seed=i, first=1000 * i)
        for now in (10.0, 200.0, 320.0, 330.0):
            for worker in box:
                worker.look(now)
        assert len(told) == 1
        owner.left(0)
        assert [each.shares() for each in box] == [[0.0]] * 3


def test_outcomes_are_the_goal_where_that_is_said() -> None:
    experiment, told = alone(goal="outcome", outcomes={"path": "/o"})
    serve(experiment, 3000, {"b": 0.3})
    experiment.look(10.0)
    assert row(experiment)["verdict"] == "no difference yet"
    for i in range(1000):
        arm = experiment.choose(f"user-{i}", PATH)
        experiment.told(arm, group_of(f"user-{i}"), arm is experiment.control or i % 3 == 0)
    experiment.look(20.0)
    experiment.look(320.0)
    assert [stop.rule for stop in told] == ["harm"]


def test_a_share_that_grew_while_all_became_worse_does_not_stop() -> None:
    experiment, told = alone(of={"b": {"share": "1%", "to": "new"}}, stop={"rules": ["harm"]})
    serve(experiment, 20_000, {"b": 0.02, "control": 0.02})
    experiment.look(10.0)
    experiment.order("set", "b", 0.2, 1.0, 20.0)
    serve(experiment, 20_000, {"b": 0.3, "control": 0.3}, first=20_000)
    for now in (30.0, 400.0):
        experiment.look(now)
    shown, control = row(experiment), row(experiment, "control")
    assert shown["good"] / shown["requests"] < control["good"] / control["requests"] - 0.1
    assert shown["verdict"] == "no difference yet"
    assert not told


def test_a_reset_forgets_counts_orders_and_stops_in_all_workers() -> None:
    with workers(2) as (box, told, _owner):
        one, other = box
        for worker in box:
            worker.look(1.0)
            serve(worker, 2000, {"b": 0.3})
        one.look(10.0)
        one.look(320.0)
        assert len(told) == 1
        token_id = other.control.id
        assert other.find(token_id) is not None
        for worker in box:
            assert worker.order("reset", None, 0.0, 5.0, 330.0) is None
        assert [row(each, name)["requests"] for each in box for name in ("b", "control")] == [0] * 4
        assert (row(one)["share"], row(one)["stopped"]) == (0.2, None)
        assert other.find(token_id) is None
        serve(other, 100, {})
        assert row(one)["requests"] + row(one, "control")["requests"] == 100
        one.order("reset", "b", 0.0, 6.0, 340.0)
        assert row(other)["requests"] == 0
        assert row(other, "control")["requests"] > 0
        one.look(350.0)
        assert row(one)["p"] == 1.0


def test_a_control_that_has_just_begun_anew_says_nothing_of_its_variants() -> None:
    experiment, _ = alone()
    serve(experiment, 3000, {})
    experiment.order("set", "b", 0.1, 1.0, 10.0)  # another period, which begins with these counts
    standing = experiment.variants[0].standing
    assert standing.control_num > 2000
    variant, control = Counts(standing.num + 100, standing.good), Counts(10, 10)
    assert standing.score(variant, control) == (standing.u, standing.v)
    again = standing.in_period(standing.mark, variant, control)
    assert (again.num, again.control_num) == (variant.num, 10)  # and is judged from here


def test_a_token_is_of_one_routes_variant_alone() -> None:
    shared = SharedTable.alone(SMALL)
    one, other = (Experiment(route, table(), shared, print) for route in ("r", "s"))
    assert one.find(one.variants[0].id) is one.variants[0]
    assert other.find(one.variants[0].id) is None


def test_it_is_judged_now_and_then_and_not_at_every_sweep() -> None:
    experiment, _ = alone()
    serve(experiment, 3000, {"b": 0.3})
    experiment.look(1.0 + JUDGE_S / 2)
    assert experiment.variants[0].standing.harm_since == 0.0
    experiment.look(1.0 + JUDGE_S)
    assert experiment.variants[0].standing.harm_since == 1.0 + JUDGE_S


def test_a_variant_changes_something_and_the_goal_is_told_by_somebody() -> None:
    for wrong, says in [
        ({"of": {"b": {"share": "10%"}}}, "it is as the control is; say `to`, `model` or `headers`"),
        ({"of": {"control": {"share": "10%", "to": "x"}}}, "choose another name"),
        ({"of": {"b": {"share": "30%", "to": "x"}}}, "the share of b must be 1% to 20%"),
        ({"of": {c: {"share": "20%", "to": "x"} for c in "abcde"}}, "100% together; 20% at least are the control's"),
        ({"goal": "outcome"}, "goal is outcome, but nobody tells any"),
    ]:
        with pytest.raises(ValueError, match=says.replace("(", r"\(")):
            table(**wrong)


def test_arms_tell_their_names() -> None:
    experiment, _ = alone()
    assert isinstance(experiment.control, Arm)
    assert [arm.name for arm in (experiment.control, *experiment.variants)] == ["control", "b"]
