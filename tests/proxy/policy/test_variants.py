"""Variants at work in a chain: who a user is, and what is told when one is stopped."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from proxy.cells import Cells, collect
from proxy.config_variants import Config
from proxy.exchange import Exchange
from proxy.policy import PolicyEnv, States, variants
from proxy.policy.variants import Variants, spell_stop, variants_of
from proxy.shared.layout import Geometry
from proxy.shared.table import SharedTable
from proxy.variants.experiment import Stopped
from proxy.variants.sequential import Counts, Verdict
from proxy.variants.tally import Ended
from tests.proxy.make import COMPLETE, Fields, chain, exchange, serve

SMALL = Geometry(limits=1, keys=1, permits=1, records=16, tallies=16, windows=1, window_keys=1, columns=4, answers=64)
TRIAL = {"share": "20%", "headers": {"set": {"X-Trial": "1"}}}


def policy(told: list[dict[str, Any]] | None = None, cells: Cells | None = None, **config: Any) -> Variants:
    table = Config.model_validate_json(json.dumps({"of": {"b": TRIAL}, **config}))
    notify = told.append if told is not None else None
    shared = SharedTable.alone(SMALL)
    return variants.build(table, PolicyEnv("r", {}, {}, States(), cells or Cells(), None, shared=shared, notify=notify))


def user(served: Variants, headers: Fields | None = None, **facts: Any) -> str:
    x = exchange("/x", headers, **facts)
    assert served.admit(x, 1.0) is None
    found: str = x.scratch["variants"].user
    return found


@pytest.mark.parametrize(
    ("by", "headers", "facts", "who"),
    [
        ("api_key", [], {"key_id": "ann"}, "ann"),
        ("api_key", [], {}, "203.0.113.7"),
        ("api_key", [], {"client": "2001:db8::1:2:3:4"}, "2001:db8::"),
        ("client", [], {"key_id": "ann"}, "203.0.113.7"),
        ({"header": "X-User"}, [("X-User", "u1")], {"key_id": "ann"}, "u1"),
        ({"header": "X-User"}, [("X-User", "")], {"key_id": "ann"}, "ann"),
        ({"cookie": "uid"}, [("Cookie", "a=b; uid=u2")], {}, "u2"),
        ({"cookie": "uid"}, [("Cookie", "a=b")], {}, "203.0.113.7"),
    ],
)
def test_who_a_user_is(by: Any, headers: Fields, facts: dict[str, Any], who: str) -> None:
    assert user(policy(user=by), headers, **facts).startswith(who)


def test_the_access_log_names_the_variant() -> None:
    lines: list[bytes] = []
    served = chain({"variants": {"of": {"b": TRIAL}, "user": {"header": "X-User"}}}, lines=lines)
    for i in range(100):
        serve(served, exchange("/x", [("X-User", f"u{i}")]))
    assert {json.loads(line)["variant"] for line in lines} == {"b", "control"}


def test_the_answer_tells_the_variant_and_the_request_has_its_fields() -> None:
    served = chain({"variants": {"of": {"b": TRIAL}, "user": {"header": "X-User"}}})
    given: dict[str, list[tuple[bytes, bytes]]] = {}
    for i in range(60):
        x = exchange("/x", [("X-User", f"user-{i}")])
        head = serve(served, x)
        given[(head.get(b"headrace-variant") or b"").decode()] = [field for field in x.add if field[0] == b"X-Trial"]
        assert head.get(b"cache-control") == b"private"
    assert given == {"control": [], "b": [(b"X-Trial", b"1")]}
    assert set(variants_of([served.policies])) == {"r"}


def test_what_never_went_to_an_upstream_counts_for_nobody() -> None:
    served = policy()
    x: Exchange = exchange("/x")
    served.admit(x, 1.0)
    served.settle(x, COMPLETE, 2.0)
    assert [row["requests"] for row in served.experiment.show(3.0)] == [0, 0]
    x = exchange("/x", upstream="app", admitted_at=1.0, first_byte_at=1.5)
    served.admit(x, 1.0)
    served.settle(x, COMPLETE, 2.0)
    served.settle(x, COMPLETE, 2.0)
    assert sum(row["requests"] for row in served.experiment.show(3.0)) == 1


def test_times_are_histograms_by_variant() -> None:
    buffer = bytearray(1 << 18)
    served = policy(cells=Cells(buffer))
    x = exchange("/x", upstream="app", admitted_at=1.0, first_byte_at=1.1, first_token_at=1.2)
    served.admit(x, 1.0)
    arm = x.scratch["variants"].arm.name
    served.settle(x, COMPLETE, 3.0)
    families = {family.name: family for family in collect([buffer])}
    for name, seconds in (("headrace_variant_answer_seconds", 2.0), ("headrace_variant_first_token_seconds", 0.2)):
        sums = {each.labels["variant"]: each.value for each in families[name].samples if each.name == f"{name}_sum"}
        assert sums == {"control": 0.0, "b": 0.0} | {arm: pytest.approx(seconds)}


def test_a_stop_is_logged_counted_and_an_event(caplog: pytest.LogCaptureFixture) -> None:
    told: list[dict[str, Any]] = []
    cells = Cells()
    served = policy(told, cells, stop={"after": "1m"})
    experiment = served.experiment
    served.look(1.0)
    share = cells.gauge("headrace_variant_share", "", {"route": "r", "variant": "b"}, combine="max")
    assert share.value == 0.2
    for i in range(400):
        experiment.ended(experiment.control, f"user-{i}", Ended(True, 0.1))
        experiment.ended(experiment.variants[0], f"user-{i}", Ended(i % 2 == 0, 0.1))
    with caplog.at_level(logging.WARNING, "headrace.proxy"):
        served.look(10.0)
        served.look(70.0)
    [line] = caplog.messages
    assert line.startswith("route r: variant b stopped: harm (200 of 400 good, control 400 of 400, z = -")
    [event] = told
    assert {**event, "text": ""} == {"kind": "variant", "text": "", "route": "r", "variant": "b", "rule": "harm"}
    assert event["text"] == line
    stops = cells.counter("headrace_variant_stops_total", "", {"route": "r", "variant": "b", "rule": "harm"})
    assert (stops.value, share.value) == (1.0, 0.0)


def test_a_stop_in_a_line() -> None:
    stopped = Stopped("r", "b", "harm", Verdict(-3.21, 0.0123, 0.001), Counts(1000.0, 900.0), Counts(9000.0, 8910.0))
    assert spell_stop(stopped) == (
        "variant b stopped: harm (900 of 1000 good, control 8910 of 9000, z = -3.21, p = 0.012); "
        "its users have the control now"
    )
