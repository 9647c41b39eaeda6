"""What is said of variants that do not fit their route."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.config_routes import Loc, cross_check
from tests.proxy.make import proxy_config

UPSTREAMS = {"app": {"servers": ["http://127.0.0.1:1"]}, "new": {"servers": ["http://127.0.0.1:2"]}}
MODELS = {"m": {"upstreams": [{"to": "app"}]}, "trial": {"upstreams": [{"to": "new"}]}}
BY_MODEL = {"to": {"models": ["m"]}}


def config(route: dict[str, Any], change: dict[str, Any], **more: Any) -> Any:
    variants = {"of": {"b": {"share": "10%", **change}}, **more.pop("variants", {})}
    policies = {"variants": variants, **more}
    return proxy_config(
        upstreams=UPSTREAMS, model_routes=MODELS, routes=[{"match": {"path": "/v1/*"}, **route, "policies": policies}]
    )


@pytest.mark.parametrize(
    ("route", "change", "variants", "loc", "message"),
    [
        ({"to": "app"}, {"to": "ne"}, {}, ("of", "b", "to"), "there is no upstream named 'ne'; did you mean 'new'?"),
        ({"to": "app"}, {"to": "engine"}, {}, ("of", "b", "to"), "there is no engine: no models are configured"),
        (BY_MODEL, {"to": "app"}, {}, ("of", "b", "to"),
         "the route goes by models; say a `model` that only this upstream serves"),
        (BY_MODEL, {"model": "trail"}, {}, ("of", "b", "model"),
         "there is no model route named 'trail'; did you mean 'trial'?"),
        (BY_MODEL, {"model": "trial"}, {"models": ["n"]}, ("models", 0),
         "there is no model of this route named 'n'; known: m"),
        ({"respond": {"status": 200}}, {"model": "m"}, {}, (),
         "the route answers by itself, so there is nothing to vary"),
    ],
)  # fmt: skip
def test_what_does_not_fit(
    route: dict[str, Any], change: dict[str, Any], variants: dict[str, Any], loc: Loc, message: str
) -> None:
    at = ("routes", 0, "policies", "variants", *loc)
    assert cross_check(config(route, change, variants=variants)) == [(at, message)]


def test_outcomes_are_told_on_the_route_by_post_by_somebody_who_is_known() -> None:
    table = {"outcomes": {"path": "/outcomes"}}
    route = {"to": "app", "match": {"path": "/v1/*", "methods": ["GET"]}}
    said = [text for _, text in cross_check(config(route, {"to": "new"}, variants=table))]
    assert said == [
        "/outcomes is not within this route's match.path, /v1/*",
        "outcomes are told by POST, which this route's match.methods leaves out",
        "anybody could tell them: the route has neither auth nor basic_auth",
    ]
    table = {"outcomes": {"path": "/v1/outcomes"}}
    assert not cross_check(config({"to": "app"}, {"to": "new"}, variants=table, auth={"keys": "k"}))


def test_all_that_variants_go_to_may_serve_the_route() -> None:
    plain = config({"to": "app"}, {"to": "new"})
    assert plain.targets_of(plain.routes[0]) == ("app", "new")
    by_model = config(BY_MODEL, {"model": "trial"})
    assert by_model.models_of(by_model.routes[0]) == ("m", "trial")
    assert by_model.targets_of(by_model.routes[0]) == ("app", "new")
