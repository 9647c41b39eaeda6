"""``POST /v1/chat/completions``: messages in, one or more messages of the assistant out."""

from __future__ import annotations

import time
import uuid

from engine.http.message import Request, Response
from engine.http.router import Route, post
from engine.http.stream import Stream
from engine.llm.chat import ChatModel
from engine.llm.standing import Standing
from engine.serving import Serving
from engine.wire.body import read_object
from engine.wire.generation import Generation, places_for
from engine.wire.notes import notes_on, to_headers
from engine.wire.openai_answer import Reply
from engine.wire.openai_forms import ChatForm
from engine.wire.openai_request import ChatRequest, parse_chat_request
from engine.wire.openai_respond import respond
from engine.wire.standing import read_standing


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def create(request: Request) -> Response | Stream:
        arrived_at = time.monotonic()
        asked = parse_chat_request(await read_object(request, serving))
        standing = read_standing(request.headers, arrived_at, streams=asked.stream)
        async with serving.use(asked.model, ChatModel) as model:
            with places_for(serving, model, asked.recipe.n):
                return await _answer(serving, model, asked, standing, request)

    return [post("/v1/chat/completions", create)]


async def _answer(
    serving: Serving, model: ChatModel, asked: ChatRequest, standing: Standing, request: Request
) -> Response | Stream:
    recipe = asked.recipe
    prompt = await model.prompts.of_messages(asked.messages, room=recipe.max_tokens or 1, cut=asked.truncate)
    notes = notes_on([prompt], recipe, model.context)
    form = ChatForm(model.spell)
    id_ = f"chatcmpl-{uuid.uuid4().hex}"
    reply = Reply(id_, model.name, int(time.time()), form, usage=asked.include_usage, notes=notes)
    generation = Generation(serving, model, [prompt], recipe, standing, may_park=asked.stream)
    return await respond(generation, reply, request, to_headers(notes, asked.ignored), stream=asked.stream)
