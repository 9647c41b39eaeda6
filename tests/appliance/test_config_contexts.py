"""What the edge knows of how much the box's own models take."""

from __future__ import annotations

from tests.appliance.config_files import LISTENER, ConfigFiles

ROUTES = "routes: [{to: engine, match: {path: /v1/*}}]\n"


def _sized(place: ConfigFiles, name: str, context: int, **changes: object) -> None:
    sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab_size", "max_chunk", "top_k")
    place.model_folder(name, chat={**dict.fromkeys(sizes, 1), "context": context, "eos_ids": [0]}, **changes)


def test_a_models_folder_says_how_much_it_takes_and_the_configuration_may_say_less(place: ConfigFiles) -> None:
    _sized(place, "models/large", 8192)
    _sized(place, "models/small", 2048)
    text = LISTENER + ROUTES + "models: {large: {path: models/large, context: 4096}, small: {path: models/small}}\n"
    assert place.load(text).proxy.engine_contexts == {"large": 4096, "small": 2048}


def test_models_of_the_repository_are_known_under_their_names(place: ConfigFiles) -> None:
    _sized(place, "repo/one", 512)
    _sized(place, "repo/two", 1024)
    place.file("repo/notes.txt", "no model")
    place.file("repo/broken/model.yaml", "format: [")
    text = LISTENER + ROUTES + "models: {repository: repo, two: {context: 900}}\n"
    assert place.load(text).proxy.engine_contexts == {"one": 512, "two": 900}


def test_who_has_no_models_knows_of_none(place: ConfigFiles) -> None:
    text = LISTENER + "upstreams: {a: {servers: ['http://10.0.0.5']}}\nroutes: [{to: a}]\n"
    assert place.load(text).proxy.engine_contexts == {}
