"""The official client against the whole appliance, over TLS, with its CA."""

from __future__ import annotations

import json
import math

import openai
import pytest
from openai import OpenAI

from tests.e2e.appliance import CHAT, EMBEDDING, Appliance, openai_client, wait_for
from tests.e2e.conftest import Start

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


def test_greedy_chat_knows_the_capital_of_france(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=CHAT, messages=CAPITAL, temperature=0, max_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_whole_answer_says_and_ends_with_usage(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=CHAT, messages=CAPITAL, temperature=0, max_tokens=40)
    chunks = list(
        client.chat.completions.create(
            model=CHAT,
            messages=CAPITAL,
            temperature=0,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *said, last = chunks
    assert "".join(c.choices[0].delta.content or "" for c in said) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in said if c.choices[0].finish_reason] == ["stop"]
    assert last.choices == []
    assert last.usage == whole.usage


def test_choices_have_texts_of_their_own_and_log_probabilities_that_add_up(client: OpenAI) -> None:
    story = [{"role": "user", "content": "Tell me a story."}]
    ask = {"model": CHAT, "messages": story, "n": 3, "seed": 7, "max_tokens": 12}
    answer = client.chat.completions.create(**ask, logprobs=True, top_logprobs=5)
    again = client.chat.completions.create(**ask)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 3
    assert [choice.index for choice in again.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 36
    for choice, text in zip(answer.choices, texts, strict=True):
        assert bytes(byte for entry in choice.logprobs.content for byte in entry.bytes).decode(errors="ignore") == text
        for entry in choice.logprobs.content:
            best = [other.logprob for other in entry.top_logprobs]
            assert best == sorted(best, reverse=True)
            assert math.fsum(math.exp(logprob) for logprob in best) <= 1 + 1e-5
            assert entry.logprob <= best[0]


def test_a_completion_goes_on_where_its_prompt_ends(client: OpenAI) -> None:
    ask = {"model": CHAT, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 5}
    whole = client.completions.create(**ask, echo=True)
    streamed = client.completions.create(**ask, stream=True)
    assert whole.choices[0].text.startswith("The capital of France is Paris")
    assert ask["prompt"] + "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_embeddings_by_default_in_base64_are_the_floats(client: OpenAI) -> None:
    texts = ["a cat sat on the mat", "a kitten is on the rug", "the stock market fell"]
    packed = client.embeddings.create(model=EMBEDDING, input=texts)
    plain = client.embeddings.create(model=EMBEDDING, input=texts, encoding_format="float")
    vectors = [item.embedding for item in packed.data]
    assert [item.index for item in packed.data] == [0, 1, 2]
    assert vectors == [pytest.approx(item.embedding, abs=1e-6) for item in plain.data]
    assert all(len(v) == 384 and math.isclose(math.hypot(*v), 1, abs_tol=1e-3) for v in vectors)
    cat, kitten, market = vectors
    assert product(cat, kitten) > product(cat, market) + 0.3
    assert packed.usage.total_tokens == packed.usage.prompt_tokens > 0


def product(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_both_models_are_listed(client: OpenAI) -> None:
    assert {CHAT, EMBEDDING} <= {model.id for model in client.models.list()}


def test_an_unknown_model_is_a_404_that_says_so(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=CAPITAL)
    assert caught.value.code == "model_not_found"
    assert CHAT in caught.value.message  # what there is instead


def test_a_wrong_type_is_a_400_that_names_the_parameter(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=CHAT, messages=CAPITAL, temperature="hot")
    assert caught.value.param == "temperature"


def test_a_prompt_beyond_the_context_is_a_422_with_its_code(client: OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "word " * 12_000}])
    assert caught.value.code == "context_length_exceeded"


def test_without_the_ca_the_client_refuses(appliance: Appliance) -> None:
    stranger = OpenAI(base_url=f"{appliance.url}/v1", api_key="none", max_retries=0)
    with stranger, pytest.raises(openai.APIConnectionError) as caught:
        stranger.models.list()
    assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value.__cause__)


def test_a_key_is_asked_for_where_the_route_has_keys(start: Start, tmp_path) -> None:
    keys = tmp_path / "keys.yaml"
    configuration = f"""
listeners:
  - address: 127.0.0.1:{{port}}
    tls: {{{{certificates: [{{{{cert: {{tls}}/localhost.pem, key: {{tls}}/localhost.key}}}}]}}}}
models:
  {EMBEDDING}: {{{{path: {{models}}/{EMBEDDING}}}}}
routes:
  - {{{{match: {{{{path: /*}}}}, to: engine, policies: {{{{auth: {{{{keys: {keys}}}}}}}}}}}}}
"""
    keys.write_text("keys: []\n")
    running = start(configuration)
    key = running.run("keys", "add", "--id", "laptop", "--file", str(keys)).stdout.strip()
    assert key not in keys.read_text()
    running.run("reload", "--wait", "-c", str(running.file))
    with openai_client(running, "hr_wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with openai_client(running, key) as friend:
        assert [model.id for model in friend.models.list()] == [EMBEDDING]


def test_a_client_that_leaves_frees_its_slot(appliance: Appliance, client: OpenAI) -> None:
    """Sixteen slots: more abandoned streams than that, and the next question is still answered at once."""
    body = {"model": CHAT, "messages": CAPITAL, "max_tokens": 4000, "stream": True, "temperature": 1.5, "stop": None}
    for _ in range(20):
        with appliance.stream("/v1/chat/completions", json.dumps(body).encode()) as stream:
            assert stream.readline().startswith(b"data: ")
    wait_for(lambda: busy_slots(appliance) == 0, "all slots to be free")
    answer = client.chat.completions.create(model=CHAT, messages=CAPITAL, temperature=0, max_tokens=20)
    assert "Paris" in answer.choices[0].message.content


def busy_slots(appliance: Appliance) -> float:
    """Sequences that the engine holds now, as the metrics say."""
    line = f'headrace_engine_running{{model="{CHAT}"}} '
    return next(float(each.removeprefix(line)) for each in appliance.metrics().splitlines() if each.startswith(line))
