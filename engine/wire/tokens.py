"""``POST /tokenize``, ``/detokenize`` and ``/apply-template``: what a chat model makes of words, without an answer.

The names are those of vLLM and, for the template, of llama.cpp's server. Text is read as in a completion, so that it
never becomes a control token; messages as in a chat completion.
"""

from __future__ import annotations

from typing import Any

import orjson

from engine.errors import invalid
from engine.http.message import Request, Response
from engine.http.router import Route, post
from engine.llm.chat import ChatModel
from engine.llm.prompts import Prompt
from engine.serving import Serving
from engine.wire.body import read_object
from engine.wire.openai_answer import MEDIA_TYPE
from engine.wire.openai_fields import boolean, present, refuse_unsupported
from engine.wire.openai_messages import parse_messages
from engine.wire.openai_recipe import is_token_ids

_NEUTRAL = {"add_special_tokens": (True,), "add_generation_prompt": (True,)}


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def tokenize(request: Request) -> Response:
        fields = await _read(request, serving, "prompt", "messages", "return_token_strs")
        spelt = boolean(fields, "return_token_strs", False)
        async with serving.use(fields.get("model"), ChatModel) as model:
            tokens = (await _encode(model, fields)).tokens
        strings = [model.spell(token)[0] for token in tokens] if spelt else None
        count = {"count": len(tokens), "max_model_len": model.context}
        return _json({**count, "tokens": tokens, "token_strs": strings})

    async def detokenize(request: Request) -> Response:
        fields = await _read(request, serving, "tokens")
        tokens = fields.get("tokens")
        if not is_token_ids(tokens):
            raise invalid("tokens must be a list of token ids", "tokens")
        async with serving.use(fields.get("model"), ChatModel) as model:
            model.prompts.check_ids(tokens, "tokens")
            return _json({"prompt": model.text_of(tokens)})

    async def apply_template(request: Request) -> Response:
        fields = await _read(request, serving, "messages")
        messages = parse_messages(fields.get("messages"))
        async with serving.use(fields.get("model"), ChatModel) as model:
            return _json({"prompt": model.prompts.render(messages)})

    return [
        post("/tokenize", tokenize),
        post("/detokenize", detokenize),
        post("/apply-template", apply_template),
    ]


async def _read(request: Request, serving: Serving, *known: str) -> dict[str, Any]:
    fields = present(await read_object(request, serving))
    refuse_unsupported(fields, ("model", *known), _NEUTRAL)
    return fields


async def _encode(model: ChatModel, fields: dict[str, Any]) -> Prompt:
    if ("prompt" in fields) == ("messages" in fields):
        raise invalid("send either prompt or messages", "prompt")
    if "messages" in fields:
        return await model.prompts.of_messages(parse_messages(fields["messages"]), room=0)
    if not isinstance(fields["prompt"], str):
        raise invalid("prompt must be a string", "prompt")
    return await model.prompts.of_text(fields["prompt"], "prompt", room=0)


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), MEDIA_TYPE)
