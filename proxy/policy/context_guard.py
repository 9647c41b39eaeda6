"""Whether a prompt and its answer fit into the model's context, said before anything is sent. Pure.

The arithmetic is ``proxy.llm.context``'s. Text that has fewer bytes than there is room is not counted at all; what is,
is counted off the loop where it is long. What another tokenizer than the model's own has counted is taken for more, by
``margin``. A model whose context nobody has told is left to its upstream. Keys whose entry allows ``context`` pass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from proxy.cells import Cells
from proxy.chain import Policy
from proxy.config import Table
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Outcome, Reply
from proxy.llm.context import Need, answer_tokens, most_tokens, too_long, with_margin
from proxy.llm.count import count_prompt, encoder
from proxy.llm.request import LlmRequest
from proxy.policy.env import PolicyEnv
from proxy.units import Percent

NAME = "context_guard"
ALWAYS = False

#: Tokens of prompts, for the histogram.
LENGTH_BOUNDS = (128.0, 512.0, 2048.0, 8192.0, 32768.0)
_OTHER = "other"
_STATUSES = ("ok", "tripped", "exempt", "unknown")
#: What becomes of tokens that were not counted: bytes of text for one, which is about right for English.
_BYTES_PER_TOKEN = 4


class Config(Table):
    context: Annotated[int, Field(ge=1)] | None = None  # tokens, of models that have not told theirs; None: not judged
    reserve: Percent = 0.15  # of the context, kept for an answer whose max_tokens is not named
    margin: Percent = 0.05  # added to what another tokenizer than the model's own has counted
    status: Literal[422, 400] = 422  # of the refusal; 400 is OpenAI's


def build(config: Config, env: PolicyEnv) -> ContextGuard:
    """The policy of one route."""
    encoder()  # ready before the first request needs it
    return ContextGuard(config, env.contexts, _Metrics(env.cells, env.route, env.contexts))


class _Measured(NamedTuple):
    """What is known of a request. context: None: of its model's nobody has told. exact: as its model would count."""

    model: str
    context: int | None
    need: Need
    exact: bool
    field: str  # where the prompt stands


class ContextGuard(Policy):
    """contexts: tokens, by the names of the models that have told them."""

    def __init__(self, config: Config, contexts: Mapping[str, int], metrics: _Metrics) -> None:
        self._config = config
        self._contexts = contexts
        self._metrics = metrics

    def reads_body(self) -> bool:
        return True

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        return None if x.body is None else self._measure(x)

    async def _measure(self, x: Exchange) -> None:
        body = x.body
        assert body is not None
        await body.read_json()
        llm = body.llm
        if llm is None or llm.kind not in ("chat", "completion") or _has_several_prompts(body.json):
            return
        model = x.scratch.get("model") or llm.model
        context = self._contexts.get(model, self._config.context)
        prompt, exact = _bytes(llm) // _BYTES_PER_TOKEN, False
        answer = (0, False)
        if context is not None:
            answer = answer_tokens(context, llm.max_tokens, self._config.reserve)
            if not self._surely_fits(llm, answer[0], context):
                counted = await count_prompt(x)
                exact = counted.exact
                prompt = counted.tokens if exact else with_margin(counted.tokens, self._config.margin)
        field = "messages" if llm.kind == "chat" else "prompt"
        x.scratch[NAME] = _Measured(model, context, Need(prompt, *answer), exact, field)

    def _surely_fits(self, llm: LlmRequest, answer: int, context: int) -> bool:
        most = most_tokens(_bytes(llm) + llm.num_token_ids, len(llm.messages), self._config.margin)
        return most + answer <= context and not llm.num_other_parts and not llm.tools

    def admit(self, x: Exchange, now: float) -> Reply | None:
        measured: _Measured | None = x.scratch.get(NAME)
        if measured is None:
            return None
        context, need = measured.context, measured.need
        if context is None:
            self._metrics.told["unknown"].add()
        elif need.fits(context):
            self._metrics.told["ok"].add()
        elif x.key is not None and x.key.allow.context:
            self._metrics.told["exempt"].add()
        else:
            self._metrics.told["tripped"].add()
            self._metrics.tripped(measured.model)
            kind = Kind.CONTEXT_LENGTH if self._config.status == 422 else Kind.CONTEXT_LENGTH_400
            message = too_long(need, context, exact=measured.exact)
            return refuse(x, kind, message, param=measured.field)
        return None

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        measured: _Measured | None = x.scratch.pop(NAME, None)
        if measured is None:
            return
        usage = x.scratch.get("usage")
        tokens = usage.prompt_tokens if usage is not None and not usage.estimated else measured.need.prompt
        self._metrics.length.observe(float(tokens))


class _Metrics:
    """A route's numbers. Models that have told no context share one label: names are the clients' to make up."""

    def __init__(self, cells: Cells, route: str, models: Iterable[str]) -> None:
        doc = "Requests by what the context guard said of them."
        self.told = {
            status: cells.counter("llm_request_context_length_total", doc, {"status": status}) for status in _STATUSES
        }
        self.length = cells.histogram(
            "llm_context_length_tokens", "Tokens of prompts, as the model or the guard counted them.",
            bounds=LENGTH_BOUNDS,
        )  # fmt: skip
        self._tripped = {
            model: cells.counter(
                "llm_context_tripped_total",
                "Requests that the context guard refused.",
                {"model": model, "route": route},
            )
            for model in (*models, _OTHER)
        }

    def tripped(self, model: str) -> None:
        """Count a refusal."""
        (self._tripped.get(model) or self._tripped[_OTHER]).add()


def _has_several_prompts(document: Any) -> bool:
    """A completion may have: each has a context of its own, and the upstream sees to it."""
    prompt = document.get("prompt") if isinstance(document, dict) else None
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def _bytes(llm: LlmRequest) -> int:
    """UTF-8 bytes of all text in a prompt."""
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in llm.texts)
