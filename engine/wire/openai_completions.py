"""``POST /v1/completions``: prompts in, what the model writes after each out."""

from __future__ import annotations

import time
import uuid

from engine.http.message import Request, Response
from engine.http.router import Route, post
from engine.http.stream import Stream
from engine.llm.chat import ChatModel
from engine.llm.prompts import Prompt
from engine.llm.standing import Standing
from engine.serving import Serving
from engine.wire.body import read_object
from engine.wire.generation import Generation, places_for
from engine.wire.notes import notes_on, to_headers
from engine.wire.openai_answer import Reply
from engine.wire.openai_completion_request import CompletionRequest, parse_completion_request
from engine.wire.openai_forms import CompletionForm
from engine.wire.openai_respond import respond
from engine.wire.standing import read_standing


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def create(request: Request) -> Response | Stream:
        arrived_at = time.monotonic()
        asked = parse_completion_request(await read_object(request, serving))
        standing = read_standing(request.headers, arrived_at, streams=asked.stream)
        async with serving.use(asked.model, ChatModel) as model:
            with places_for(serving, model, len(asked.prompts) * asked.recipe.n):
                return await _answer(serving, model, asked, standing, request)

    return [post("/v1/completions", create)]


async def _answer(
    serving: Serving, model: ChatModel, asked: CompletionRequest, standing: Standing, request: Request
) -> Response | Stream:
    recipe = asked.recipe
    prompts = [await _encode(model, asked, prompt, where) for where, prompt in asked.prompts]
    notes = notes_on(prompts, recipe, model.context)
    echoes = [model.text_of(prompt.tokens) if asked.echo else "" for prompt in prompts for _ in range(recipe.n)]
    form = CompletionForm(model.spell, echoes)
    id_ = f"cmpl-{uuid.uuid4().hex}"
    reply = Reply(id_, model.name, int(time.time()), form, usage=asked.include_usage, notes=notes)
    generation = Generation(serving, model, prompts, recipe, standing, may_park=asked.stream)
    return await respond(generation, reply, request, to_headers(notes, asked.ignored), stream=asked.stream)


async def _encode(model: ChatModel, asked: CompletionRequest, prompt: str | list[int], where: str) -> Prompt:
    room = asked.recipe.max_tokens or 1
    if isinstance(prompt, str):
        return await model.prompts.of_text(prompt, where, room=room, cut=asked.truncate)
    return model.prompts.of_tokens(prompt, where, room=room, cut=asked.truncate)
