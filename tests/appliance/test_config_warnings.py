"""What is served although it cannot do anything: told as warnings."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from appliance.keys import add_key, revoke_key
from proxy.keys import Allowed
from tests.appliance.config_files import LISTENER, ConfigFiles

NOW = datetime(2026, 1, 31, tzinfo=UTC)
UPSTREAMS = "upstreams: {far: {servers: ['http://10.0.0.5']}}\n"
MODEL_ROUTES = """
model_routes:
  big: {upstreams: [{to: far}], context: 1000}
  small: {upstreams: [{to: far}], aliases: [tiny]}
"""


def warnings(place: ConfigFiles, text: str) -> list[str]:
    return [f"{each.key}: {each.message}" for each in place.load(LISTENER + text).warnings]


def route(to: str, policies: str) -> str:
    return f"routes: [{{to: {to}, policies: {policies}}}]\n"


@pytest.mark.parametrize(
    ("to", "guard", "says"),
    [
        ("far", "{}", "nobody has told the context of the models of far, whose requests pass unjudged; set `context`"),
        ("{models: [big, small]}", "{}", "nobody has told the context of small, whose requests pass unjudged"),
        ("far", "{context: 100}", None),
        ("{models: [big]}", "{}", None),
        ("{models: [big, small]}", "{context: 100}", None),
    ],
)
def test_a_guard_that_judges_nobody(place: ConfigFiles, to: str, guard: str, says: str | None) -> None:
    told = warnings(place, UPSTREAMS + MODEL_ROUTES + route(to, f"{{context_guard: {guard}}}"))
    if says is None:
        assert told == []
    else:
        [warning] = told
        assert warning.startswith(f"routes[0].policies.context_guard: {says}")


def test_a_guard_of_the_engine_knows_its_models(place: ConfigFiles) -> None:
    sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab_size", "max_chunk", "top_k")
    place.model_folder("m", chat={**dict.fromkeys(sizes, 1), "context": 400, "eos_ids": [0]})
    models = "models: {threads: 1, m: {path: m}}\n"
    assert warnings(place, models + route("engine", "{context_guard: {}}")) == []
    [warning] = warnings(place, models + route("engine", "{context_guard: {window: {max_len: 341, stride: 9}}}"))
    assert "context_guard.window.max_len: a window of 341 tokens is more than a context of 400 has room for" in warning
    assert warnings(place, models + route("engine", "{context_guard: {window: {max_len: 340, stride: 9}}}")) == []


@pytest.mark.parametrize(
    ("to", "context"), [("far", "context: 100, "), ("{models: [big]}", "context: 5000, "), ("{models: [big]}", "")]
)
def test_a_window_that_never_fits(place: ConfigFiles, to: str, context: str) -> None:
    guard = f"{{context_guard: {{{context}window: {{max_len: 900, stride: 9}}}}}}"
    [warning] = warnings(place, UPSTREAMS + MODEL_ROUTES + route(to, guard))
    assert "routes[0].policies.context_guard.window.max_len: a window of 900 tokens is more than" in warning


def test_keys_for_models_and_upstreams_that_are_not_there(place: ConfigFiles) -> None:
    file = place.root / "keys.yaml"
    add_key(file, "a", NOW, allow=Allowed(models=("big", "nosuch"), upstreams=("fr",)))
    add_key(file, "b", NOW, allow=Allowed(models=("sm*", "tiny", "x*", "nosuch"), upstreams=("far", "*", "engine")))
    add_key(file, "c", NOW, allow=Allowed(models=("gone",)))
    revoke_key(file, "c", NOW)
    auth = "{auth: {keys: keys.yaml}}"
    text = UPSTREAMS + MODEL_ROUTES + route("{models: [big, small]}", auth)
    place_of_keys = "routes[0].policies.auth.keys: keys.yaml: "
    assert sorted(warnings(place, text)) == [
        f"{place_of_keys}a, b: there is no model named 'nosuch'; known: big, small, tiny",
        f"{place_of_keys}a: there is no upstream named 'fr'; did you mean 'far'?",
        f"{place_of_keys}b: there is no model named 'x*'; known: big, small, tiny",
    ]
    [warning] = warnings(place, UPSTREAMS + route("far", auth))  # whose models are known to it alone
    assert "there is no upstream named 'fr'" in warning
