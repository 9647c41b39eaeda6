"""What a chat request may say, and the 400 that names the field when it may not."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import Kind, RequestError
from engine.llm.recipe import Recipe
from engine.llm.sampling import Sampling
from engine.wire.openai_request import ChatRequest, parse_chat_request

USER = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat_request({"model": "m", "messages": [USER], **fields})


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert caught.value.kind.status == 400
    return caught.value


def test_defaults_are_those_of_the_api() -> None:
    request = parse()
    assert request.recipe == Recipe(Sampling(temperature=1.0))
    assert (request.stream, request.include_usage, request.truncate, request.ignored) == (False, False, False, ())


def test_L05_an_explicit_null_is_an_absent_field() -> None:
    names = (
        "temperature top_p max_tokens max_completion_tokens stop seed n tools stream stream_options user top_k logprobs"
        " top_logprobs logit_bias presence_penalty frequency_penalty min_p min_tokens stop_token_ids truncate"
    )
    nulls = dict.fromkeys(names.split())
    assert parse(**nulls) == parse()
    message = {"role": "assistant", "content": "x", "tool_calls": None, "name": None}
    assert parse(messages=[message]).messages == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [USER, {"role": "foo", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{**USER, "name": 5}]}, "messages[0].name"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 1000}, "n"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"truncate": "auto"}, "truncate"),
        ({"seed": "1"}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": list("abcde")}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stream": "true"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
        ({"stream_options": [], "stream": True}, "stream_options"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "include_usage"),
    ],
)
def test_L01_L08_L10_L11_L19_a_wrong_value_is_a_400_that_names_it(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"reasoning_effort": "high"},
        {"best_of": 2},
        {"no_such_thing": 1},
    ],
)
def test_what_would_change_the_answer_and_is_not_supported_is_refused(fields: dict[str, Any]) -> None:
    error = refused(**fields)
    assert error.kind is Kind.UNSUPPORTED_FIELD
    assert error.param == next(iter(fields))


def test_what_cannot_change_the_answer_is_ignored_and_named() -> None:
    fields = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "parallel_tool_calls": False}
    assert parse(**fields).ignored == ("user", "metadata", "store", "service_tier", "parallel_tool_calls")
    nothing = {
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "logprobs": False,
        "top_logprobs": 0,
        "tools": [],
    }
    assert parse(**nothing, response_format={"type": "text"}).ignored == ()


def test_L10_every_form_of_message_becomes_one() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = parse(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "10"},
            {"role": "assistant", "content": ""},
            {"role": "assistant"},
        ]
    )
    assert request.messages == [
        {"role": "system", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "10", "tool_call_id": "c1"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
    ]


def test_the_newer_name_of_max_tokens_is_the_same_field() -> None:
    assert parse(max_completion_tokens=7).recipe.max_tokens == parse(max_tokens=7).recipe.max_tokens == 7
    assert parse(max_completion_tokens=7, max_tokens=7).recipe.max_tokens == 7


def test_everything_that_can_be_asked_is_in_the_recipe() -> None:
    request = parse(
        temperature=0.5,
        top_k=-1,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2.0,
        logit_bias={"5": -100, "7": 0.5},
        logprobs=True,
        top_logprobs=20,
        min_tokens=2,
        max_tokens=3,
        seed=-1,
        stop="x",
        stop_token_ids=[9],
        ignore_eos=True,
        n=8,
        truncate=True,
    )
    assert request.truncate
    assert request.recipe == Recipe(
        Sampling(
            temperature=0.5,
            top_p=0.9,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=-2,
            frequency_penalty=2,
            logit_bias={5: -100, 7: 0.5},
            min_tokens=2,
            logprobs=20,
        ),
        seed=-1,
        max_tokens=3,
        stops=("x",),
        stop_token_ids=(9,),
        ignore_eos=True,
        n=8,
    )
    assert parse(logprobs=True).recipe.sampling.logprobs == 0
