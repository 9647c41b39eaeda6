"""Model routes: names, aliases, and the order in which upstreams are asked."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config_models import ModelRoute as Table
from proxy.llm.request import view_request
from proxy.model_routes import MAX_TARGETS, ModelRoutes, Target, prefix_of, prefix_share


def routes(served: tuple[str, ...] | None = None, **tables: dict[str, Any]) -> ModelRoutes:
    return ModelRoutes(
        {name: Table.model_validate_json(json.dumps(table)) for name, table in tables.items()},
        served if served is not None else tuple(tables),
    )


def order(known: ModelRoutes, name: str, seed: int = 1, **how: Any) -> list[str]:
    route = known.find(name)
    assert route is not None
    draws = Random(seed)
    return [f"{each.upstream}:{each.model}" for each in known.plan(route, lambda _: 1.0 - draws.random(), **how)]


CHAT = {"aliases": ["gpt-4o"], "upstreams": [{"to": "engine"}, {"to": "vllm", "model": "llama", "priority": -1}]}
SMALL = {"upstreams": [{"to": "engine", "model": "tiny"}]}


def test_an_alias_is_the_model_and_what_is_not_served_is_not_known() -> None:
    known = routes(("chat",), chat=CHAT, small=SMALL)
    assert known.find("gpt-4o") is known.find("chat")
    assert known.find("small") is None
    assert known.names() == ("chat", "gpt-4o")


def test_higher_priorities_first_then_the_fallbacks_each_upstream_once() -> None:
    known = routes(("chat",), chat={**CHAT, "fallback": ["small", "twin"]}, small=SMALL,
                   twin={"upstreams": [{"to": "vllm", "model": "llama"}]})  # fmt: skip
    assert order(known, "chat") == ["engine:chat", "vllm:llama", "engine:tiny"]


def test_while_degraded_the_lighter_model_comes_first() -> None:
    known = routes(("chat",), chat={**CHAT, "degrade_to": "small"}, small=SMALL)
    assert order(known, "chat") == ["engine:chat", "vllm:llama"]
    assert order(known, "chat", degraded=True) == ["engine:tiny", "engine:chat", "vllm:llama"]


def test_an_upstream_that_was_asked_for_is_the_only_one() -> None:
    known = routes(chat={**CHAT, "fallback": ["small"]}, small=SMALL)
    assert order(known, "chat", only="vllm") == ["vllm:llama"]
    assert order(known, "chat", only="other") == []


def test_a_request_asks_so_many_upstreams_and_no_more() -> None:
    many = {"upstreams": [{"to": f"u{i}"} for i in range(16)]}
    assert len(order(routes(many=many), "many")) == MAX_TARGETS


def test_equals_come_first_as_often_as_their_weights_say() -> None:
    known = routes(chat={"upstreams": [{"to": "a", "weight": 3}, {"to": "b"}]})
    first = Counter(order(known, "chat", seed)[0] for seed in range(2000))
    assert first["a:chat"] == pytest.approx(1500, abs=100)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(1, 20), min_size=2, max_size=6))
def test_a_beginning_has_one_order_and_loses_only_what_left(prefix: int, weights: list[int]) -> None:
    targets = [{"to": f"u{i}", "weight": weight} for i, weight in enumerate(weights)]
    share = prefix_share(prefix)

    def plan(kept: list[dict[str, Any]]) -> list[str]:
        known = routes(chat={"upstreams": kept})
        route = known.find("chat")
        assert route is not None
        return [target.upstream for target in known.plan(route, share)]

    whole = plan(targets)
    assert plan(targets) == whole
    assert plan([each for each in targets if each["to"] != whole[0]]) == whole[1:]


def test_turns_of_a_conversation_begin_alike() -> None:
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a weir?"}]
    later = [*first, {"role": "assistant", "content": "A dam."}, {"role": "user", "content": "And a sluice?"}]
    other = [first[0], {"role": "user", "content": "What is a mill?"}]
    views = [view_request("/v1/chat/completions", {"messages": each}) for each in (first, later, other)]
    one, two, three = (prefix_of(view) for view in views if view is not None)
    assert one == two
    assert one != three


@pytest.mark.parametrize(("num_characters", "alike"), [(1100, False), (2048, True)])
def test_questions_under_one_system_prompt_are_spread_unless_it_is_long(num_characters: int, alike: bool) -> None:
    system = {"role": "system", "content": "s" * num_characters}
    views = [
        view_request("/v1/chat/completions", {"messages": [system, {"role": "user", "content": f"question {i}"}]})
        for i in range(20)
    ]
    assert (len({prefix_of(view) for view in views if view is not None}) == 1) is alike


def test_no_more_of_a_prompt_is_looked_at_than_its_beginning() -> None:
    class Message(dict[str, Any]):
        num_looked_at = 0

        def get(self, name: str, default: Any = None) -> Any:
            Message.num_looked_at += 1
            return super().get(name, default)

    view = view_request("/v1/chat/completions", {"messages": [{"role": "system", "content": []}] * 100_000})
    assert view is not None
    view.messages = tuple(map(Message, view.messages))
    prefix_of(view)
    assert 0 < Message.num_looked_at < 2000
    parts = [{"type": "text", "text": "a" * 1_000_000}, {"type": "image_url", "image_url": {"url": "x"}}]
    views = [
        view_request("/v1/chat/completions", {"messages": [{"role": "user", "content": each}]})
        for each in (parts, "a" * 5000, "b")
    ]
    with_parts, long, other = (prefix_of(each) for each in views if each is not None)
    assert with_parts == long != other


def test_shares_are_never_zero() -> None:
    target = Target("r", "u", "m")
    assert all(0.0 < prefix_share(prefix)(target) <= 1.0 for prefix in range(1000))
