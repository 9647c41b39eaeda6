"""Whether a prompt and its answer fit into the model's context, said before anything is sent; or made to fit.

The arithmetic is ``proxy.llm.context``'s. Of several prompts, or inputs of embeddings, the longest is judged: each has
a context of its own. Text that has fewer bytes than there is room is not counted at all; what is, is counted off the
loop where it is long. What another tokenizer than the model's own has counted is taken for more, by ``margin``. A model
whose context nobody has told is left to its upstream, and so is a kind of request that is not known here; one that is
and cannot be read is refused (``proxy.llm.unreadable``). Keys whose entry allows ``context`` pass.

A route may ask for ``truncate`` or ``window`` instead of a refusal (``proxy.llm.truncate``). The answer then tells how
many tokens went (``proxy.llm.notes``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

from proxy import config_llm
from proxy.cells import Cells
from proxy.chain import Policy
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Head, Outcome, Reply
from proxy.llm.context import Need, answer_tokens, most_tokens, too_long, with_margin
from proxy.llm.count import (
    CounterOf,
    PromptTokens,
    count_at_once,
    count_longest,
    count_prompt,
    counter_beside,
    counters_of,
)
from proxy.llm.fitting import Truncate, Window
from proxy.llm.request import LlmKind, LlmRequest
from proxy.llm.shorter import NAME as SHORTER
from proxy.llm.shorter import Shorter, find_shorter
from proxy.llm.summarise import Summarise
from proxy.llm.unreadable import is_encoded, unreadable
from proxy.policy.env import PolicyEnv

NAME: Final = "context_guard"
ALWAYS: Final = False

#: Tokens of prompts, for the histogram.
LENGTH_BOUNDS: Final[tuple[float, ...]] = (128.0, 512.0, 2048.0, 8192.0, 32768.0)
_OTHER: Final = "other"
_STATUSES: Final = ("ok", "tripped", "truncated", "unsummarised", "exempt", "unknown", "unreadable")
#: Where the prompt stands, by the kind of request.
_FIELDS: Final[dict[LlmKind, str]] = {"chat": "messages", "completion": "prompt", "embedding": "input"}
#: Of a conversation that no truncation makes fit.
_KEPT = "What the system says, tools and their calls are not cut here, nor is the last turn left out."
#: What becomes of tokens that were not counted: bytes of text for one, which is about right for English.
_BYTES_PER_TOKEN: Final = 4


Config = config_llm.ContextGuard


def build(config: Config, env: PolicyEnv) -> ContextGuard:
    """The policy of one route."""
    counter_of = counters_of(env.counters, counter_beside(env.beside))
    summaries = config.window.summaries if config.window is not None else None
    last = Summarise(summaries, env.cells, env.route) if summaries is not None else None
    return ContextGuard(config, env.contexts, counter_of, _Metrics(env.cells, env.route, env.contexts), last)


class _Measured:
    """What is known of a request. context: None: of its model's nobody has told. exact: as its model would count.
    field: where the prompt stands; what: of that was measured. shorter: what is sent instead."""

    __slots__ = ("context", "exact", "field", "model", "need", "shorter", "what")

    def __init__(self, model: str, context: int | None, need: Need, field: str, what: str) -> None:
        self.model = model
        self.context = context
        self.need = need
        self.exact = False
        self.field = field
        self.what = what
        self.shorter: Shorter | None = None


class ContextGuard(Policy):
    """contexts: tokens, by the names of the models that have told them. last: what makes summaries."""

    def __init__(
        self,
        config: Config,
        contexts: Mapping[str, int],
        counter_of: CounterOf,
        metrics: _Metrics,
        last: Policy | None = None,
    ) -> None:
        self._last = last
        self._config = config
        self._contexts = contexts
        self._counter_of = counter_of
        self._metrics = metrics

    def reads_body(self) -> bool:
        return True

    def last(self) -> Policy | None:
        return self._last

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        if x.body is None:
            return None
        return self._measure(x) if x.body.json_at_once() else self._read(x)

    async def _read(self, x: Exchange) -> None:
        assert x.body is not None
        await x.body.read_json()
        work = self._measure(x)
        if work is not None:
            await work

    def _measure(self, x: Exchange) -> Awaitable[None] | None:
        """Measure the prompt that was read; what must be awaited for that."""
        body = x.body
        assert body is not None
        llm, document = body.llm, body.json
        field = _FIELDS.get(llm.kind) if llm is not None and not is_encoded(x) else None
        if llm is None or field is None or not isinstance(document, dict):
            return None
        asked = document.get(field)
        if not isinstance(asked, str | list):
            return None  # there is none, or one that is known to the upstream alone
        prompts = asked if isinstance(asked, list) and _are_several(asked, llm.kind) else None
        what = field.removesuffix("s") if llm.kind != "chat" else "prompt"
        model: str = x.scratch.get("model") or llm.model
        context = self._contexts.get(model, self._config.context)
        answer = (0, False)
        if context is not None and llm.kind != "embedding":
            answer = answer_tokens(context, llm.max_tokens, self._config.reserve)
        what = what if prompts is None else f"longest {what}"
        size = _bytes(llm) + llm.num_token_ids if prompts is None else max([_size(each) for each in prompts])
        need = Need(size // _BYTES_PER_TOKEN, answer[0], answer[1])
        measured = _Measured(model, context, need, field, what)
        if context is None or self._surely_fits(llm, size, answer[0], context):
            return self._judge(x, measured)
        counted = count_at_once(x, self._counter_of) if prompts is None else None
        if counted is None:
            return self._count(x, measured, prompts)
        self._take(measured, counted)
        return self._judge(x, measured)

    async def _count(self, x: Exchange, measured: _Measured, prompts: list[Any] | None) -> None:
        if prompts is not None:
            counted = await count_longest(x, prompts, self._counter_of)
        else:
            counted = await count_prompt(x, self._counter_of)
        self._take(measured, counted)
        work = self._judge(x, measured)
        if work is not None:
            await work

    def _take(self, measured: _Measured, counted: PromptTokens) -> None:
        tokens = counted.tokens
        measured.need.prompt = tokens if counted.exact else with_margin(tokens, self._config.margin)
        measured.exact = counted.exact

    def _judge(self, x: Exchange, measured: _Measured) -> Awaitable[None] | None:
        """Take note of it; what must be awaited where a shorter prompt is wanted."""
        context, how = measured.context, self._config.truncate or self._config.window
        if how is not None and context is not None and not measured.need.fits(context) and not _is_exempt(x):
            return self._shorten(x, measured, context, how)
        x.scratch[NAME] = measured
        return None

    async def _shorten(self, x: Exchange, measured: _Measured, context: int, how: Truncate | Window) -> None:
        """With a shorter prompt, if that can be."""
        answer, margin = measured.need.answer, self._config.margin
        shorter = await find_shorter(x, measured.field, context, answer, margin, how, self._counter_of)
        x.scratch[SHORTER] = measured.shorter = shorter
        x.scratch[NAME] = measured

    def _surely_fits(self, llm: LlmRequest, size: int, answer: int, context: int) -> bool:
        """size: bytes and token ids of the prompt, or of the longest."""
        most = most_tokens(size, len(llm.messages), self._config.margin)
        return most + answer <= context and not llm.num_other_parts and not llm.tools

    def admit(self, x: Exchange, now: float) -> Reply | None:
        measured: _Measured | None = x.scratch.get(NAME)
        if measured is None:
            return self._unjudged(x)
        context, need = measured.context, measured.need
        if context is None:
            self._metrics.told["unknown"].add()
        elif measured.shorter is not None:
            if measured.shorter.plan is None:  # else it is known at the end whether there are summaries
                self._metrics.told["truncated"].add()
            measured.shorter.begin(x)
        elif need.fits(context):
            self._metrics.told["ok"].add()
        elif _is_exempt(x):
            self._metrics.told["exempt"].add()
        else:
            self._metrics.told["tripped"].add()
            self._metrics.tripped(measured.model)
            kind = Kind.CONTEXT_LENGTH if self._config.status == 422 else Kind.CONTEXT_LENGTH_400
            message = too_long(need, context, exact=measured.exact, what=measured.what, kept=self._kept(measured.field))
            return refuse(x, kind, message, param=measured.field)
        return None

    def _kept(self, field: str) -> str | None:
        """What a refusal says of what is not cut, where something is."""
        if self._config.truncate is None:
            return None if self._config.window is None else ""
        return _KEPT if field == "messages" else ""

    def _unjudged(self, x: Exchange) -> Reply | None:
        """Of a request whose prompt was not found."""
        body = x.body
        if body is None or body.refusal is not None or not body.data:
            return None  # nothing was read
        if _is_exempt(x):
            self._metrics.told["exempt"].add()
            return None
        reply = unreadable(x)
        self._metrics.told["unknown" if reply is None else "unreadable"].add()
        return reply

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        measured: _Measured | None = x.scratch.get(NAME)
        if measured is not None and measured.shorter is not None:
            measured.shorter.tell(head)

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        measured: _Measured | None = x.scratch.pop(NAME, None)
        if measured is None:
            return
        if measured.shorter is not None and measured.shorter.plan is not None:
            self._metrics.told["truncated" if measured.shorter.cut is not None else "unsummarised"].add()
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


def _is_exempt(x: Exchange) -> bool:
    return x.key is not None and x.key.allow.context


def _are_several(asked: list[Any], kind: LlmKind) -> bool:
    """Whether these are several prompts, or one, as token ids or as messages."""
    return kind != "chat" and len(asked) > 1 and not isinstance(asked[0], int)


def _bytes(llm: LlmRequest) -> int:
    """UTF-8 bytes of all text in a prompt."""
    return sum(map(_size, llm.texts))


def _size(prompt: Any) -> int:
    """UTF-8 bytes of a text, or token ids: a prompt has no more tokens."""
    if isinstance(prompt, str):
        return len(prompt) if prompt.isascii() else len(prompt.encode("utf-8", "replace"))
    return len(prompt) if isinstance(prompt, list) else 0
