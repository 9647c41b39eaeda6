"""What a language model's work costs: reserved in tokens before a request is sent, settled by what it has used. Pure.

Reserved is the prompt, as counted, and for each answer what ``max_tokens`` asks for, up to a cap. Where the body is not
read, or is none that can be, it is guessed from path, size and priority: the more urgent, the less is put aside for a
guess. The limits of the route's ``rate_limit`` that bound tokens and all budgets must have room, else nothing is taken.

Settled is always, whatever became of the request: by the usage that the upstream tells, in its JSON or at the end of
its stream, which is asked for it where the client has not (and does not see it then). An upstream that tells nothing,
that dies or whose client leaves has used the prompt and what it has shown by then. What was reserved too much is given
back; what was too little is owed, up to ``debt``. A worker that is killed settles nothing: its reservations count as
used and are forgiven as time passes, like any request's, so nothing is given twice and nothing is lost for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from proxy import config_llm
from proxy.answer_filter import add_filter
from proxy.budgets import Budgets, build_budgets
from proxy.cells import Cells
from proxy.chain import Policy
from proxy.exchange import Ending, Exchange, Head, Outcome, Reply
from proxy.llm.context import SENT, USED
from proxy.llm.count import CounterOf, PromptTokens, count_at_once, count_prompt, counter_beside, counters_of
from proxy.llm.request import LlmKind, LlmRequest, kind_of
from proxy.llm.usage import Usage, asking_for_usage
from proxy.llm.usage_filter import BYTES_PER_TOKEN, UsageFilter
from proxy.policy.env import PolicyEnv
from proxy.policy.rate_limit import give_back
from proxy.policy.token_limits import TokenLimits, build_token_limits
from proxy.usage_log import UsageLog, UsageRecord

NAME: Final = "tokens"
ALWAYS: Final = False
#: What the other policies find in ``x.scratch`` when they settle: a Usage.
USAGE: Final = "usage"

#: Of a body of unknown length, where it is not read.
GUESSED_BYTES: Final = 16 << 10
#: How much of ``answer`` is put aside for an answer of unknown length, by priority. What is guessed too low is owed
#: later; what is guessed too high may refuse a request for nothing, which shall not happen to the urgent ones.
GUESSED_SHARE: Final = {"high": 0.5, "normal": 1.0, "low": 2.0}
_ANSWERED: Final[frozenset[LlmKind]] = frozenset({"chat", "completion"})
_MAX_MODEL: Final = 128  # characters of a name that a client has made up


Config = config_llm.Tokens


def build(config: Config, env: PolicyEnv) -> Tokens:
    """The policy of one route."""
    counter_of = counters_of(env.counters, counter_beside(env.beside))
    metrics = _Metrics(env.cells, env.route)
    return Tokens(config, env.route, counter_of, build_token_limits(env), build_budgets(env), env.usage_log, metrics)


class _Use:
    """One request's. prompt, answers: tokens reserved; kind, model: what it asks for. most: tokens that its answers may
    have, where it says so."""

    __slots__ = ("answer_filter", "answers", "kind", "model", "most", "prompt", "wall_at")

    def __init__(self, kind: LlmKind, model: str, prompt: int, answers: int, most: int | None = None) -> None:
        self.kind = kind
        self.model = model
        self.prompt = prompt
        self.answers = answers
        self.most = most
        self.answer_filter = UsageFilter()
        self.wall_at = 0.0


class Tokens(Policy):
    def __init__(
        self,
        config: Config,
        route: str,
        counter_of: CounterOf,
        limits: TokenLimits | None,
        budgets: Budgets | None,
        usage_log: UsageLog | None,
        metrics: _Metrics,
    ) -> None:
        self._config = config
        self._route = route
        self._counter_of = counter_of
        self._limits = limits
        self._budgets = budgets
        self._usage_log = usage_log
        self._metrics = metrics

    def reads_body(self) -> bool:
        return self._config.read > 0

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        if x.body is None or (x.content_length is not None and x.content_length > self._config.read):
            return None
        if kind_of(x.path) == "other" and "json" not in x.fields.get("Content-Type", "").lower():
            return None  # an upload, which goes on as it comes
        if not x.body.json_at_once():
            return self._read(x)
        return self._count(x)

    async def _read(self, x: Exchange) -> None:
        assert x.body is not None
        await x.body.read_json()
        work = self._count(x)
        if work is not None:
            await work

    def _count(self, x: Exchange) -> Awaitable[None] | None:
        """Count the body that was read; what must be awaited for that."""
        llm = x.body.llm if x.body is not None else None
        if llm is not None:
            counted = count_at_once(x, self._counter_of)
            if counted is None:
                return self._count_long(x, llm)
            self._counted(x, llm, counted)
        return None

    async def _count_long(self, x: Exchange, llm: LlmRequest) -> None:
        self._counted(x, llm, await count_prompt(x, self._counter_of))

    def _counted(self, x: Exchange, llm: LlmRequest, counted: PromptTokens) -> None:
        most = llm.max_tokens * llm.n if llm.max_tokens is not None else None
        x.scratch[NAME] = _Use(llm.kind, llm.model, counted.tokens, self._reserve(llm), most)

    def _reserve(self, llm: LlmRequest) -> int:
        """Tokens of all answers."""
        config = self._config
        wanted = llm.max_tokens
        if wanted is None:
            wanted = config.answer if llm.kind in _ANSWERED else 0
        return min(wanted, config.max_answer) * llm.n

    def admit(self, x: Exchange, now: float) -> Reply | None:
        if not x.has_body and (x.method != "POST" or kind_of(x.path) == "other"):
            return None
        use: _Use | None = x.scratch.get(NAME)
        if use is None:
            use = x.scratch[NAME] = self._guess(x)
        use.wall_at = x.wall_at + now - x.started_at
        reply = self._take(x, use, now)
        if reply is not None:
            del x.scratch[NAME]
            return reply
        self._listen(x, use)
        return None

    def _guess(self, x: Exchange) -> _Use:
        """What a request may cost whose body nobody has read, or understood: who limits tokens is not to be passed by
        a body that only the upstream can read. Nothing, where the path is for no kind of request that is known."""
        kind = kind_of(x.path)
        num_bytes = x.content_length if x.content_length is not None else GUESSED_BYTES if x.has_body else 0
        share = GUESSED_SHARE.get(x.scratch.get("priority", "normal"), 1.0)
        answer = min(int(self._config.answer * share), self._config.max_answer)
        prompt = -(-num_bytes // BYTES_PER_TOKEN) if kind != "other" else 0
        return _Use(kind, "", prompt, answer if kind in _ANSWERED else 0)

    def _take(self, x: Exchange, use: _Use, now: float) -> Reply | None:
        limits, budgets, tokens = self._limits, self._budgets, use.prompt + use.answers
        reply = limits.admit(x, tokens, now) if limits is not None else None
        if reply is None and budgets is not None:
            reply = budgets.admit(x, tokens, now, use.wall_at)
            if reply is not None:
                give_back(x, now)
                if limits is not None:
                    limits.cancel(x, now)
        return reply

    def _listen(self, x: Exchange, use: _Use) -> None:
        """See to it that the answer tells its usage."""
        x.drop.add(b"accept-encoding")  # so that it can be read
        x.add.append((b"Accept-Encoding", b"identity"))
        body = x.body
        llm = body.llm if body is not None else None
        if self._config.include_usage and llm is not None and llm.stream and not llm.include_usage:
            assert body is not None
            if llm.kind in _ANSWERED and body.data is not None and isinstance(body.json, dict):
                asking = asking_for_usage(body.data, body.json)
                if asking is not None:
                    body.replace(asking)
                    use.answer_filter.takes_out = True
        add_filter(x, use.answer_filter)

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        if self._limits is not None:
            self._limits.respond(x, head, now)
        if self._budgets is not None:
            self._budgets.respond(x, head, now)

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        use: _Use | None = x.scratch.pop(NAME, None)
        if use is None:
            return
        usage = _with_before(_used(x, use, outcome), x.scratch.get(USED)) if use.wall_at else None
        tokens = usage.total_tokens if usage is not None else 0
        if self._limits is not None:
            self._limits.settle(x, tokens, now, self._config.debt)
        if self._budgets is not None:
            self._budgets.settle(x, tokens, now)
        if usage is None:
            return
        x.scratch[USAGE] = usage
        self._metrics.used(usage)
        if self._usage_log is not None:
            self._usage_log.record(self._record(x, use, usage, outcome))

    def _record(self, x: Exchange, use: _Use, usage: Usage, outcome: Outcome) -> UsageRecord:
        key, served = x.key, x.served_by
        return UsageRecord(
            use.wall_at,
            x.key_id or "",
            key.tenant if key is not None else "",
            key.team if key is not None else "",
            (served.route if served is not None else "") or use.model[:_MAX_MODEL],
            x.upstream,
            self._route,
            outcome.status,
            *usage,
        )


def _used(x: Exchange, use: _Use, outcome: Outcome) -> Usage | None:
    """What a request has used; None: nothing that anybody knows of."""
    seen = use.answer_filter
    if seen.usage is not None:
        return seen.usage
    known = use.prompt or use.kind != "other"
    sent: PromptTokens | None = x.scratch.get(SENT)
    prompt = sent.tokens if sent is not None else use.prompt
    if not seen.status:
        return Usage(prompt, 0, 0, True) if known and _may_have_begun(x, outcome) else None
    if seen.status >= 400 or seen.failed or not known:
        return None
    shown = seen.completion_tokens if use.kind in _ANSWERED else 0
    return Usage(prompt, shown if use.most is None else min(shown, use.most), 0, True)


def _with_before(usage: Usage | None, before: tuple[int, int, int] | None) -> Usage | None:
    """With what requests of our own have used that were made for this one: (prompt, completion, cached) tokens."""
    if before is None:
        return usage
    prompt, completion, cached, estimated = usage or Usage(0, 0)
    return Usage(prompt + before[0], completion + before[1], cached + before[2], estimated)


def _may_have_begun(x: Exchange, outcome: Outcome) -> bool:
    """Whether the upstream had the whole request when its client gave up, before any answer."""
    if not x.connected_at:
        return False
    if outcome.ending is not Ending.CLIENT_GONE:
        return outcome.ending is Ending.REFUSED and outcome.reason == "deadline"
    return (x.body is not None and x.body.data is not None) or x.bytes_in >= (x.content_length or 0)


class _Metrics:
    """A route's numbers."""

    def __init__(self, cells: Cells, route: str) -> None:
        doc = "Tokens of language models, by route, and as prompt or completion."
        self._prompt, self._completion = (
            cells.counter("llm_tokens_total", doc, {"route": route, "kind": kind}) for kind in ("prompt", "completion")
        )
        self._cached = cells.counter(
            "llm_cached_tokens_total", "Tokens of prompts that the upstream did not read anew.", {"route": route}
        )
        doc = "Requests that used tokens, by who told how many: the upstream, or nobody, so that it was estimated."
        self._told, self._estimated = (
            cells.counter("llm_usage_requests_total", doc, {"route": route, "told_by": who})
            for who in ("upstream", "estimate")
        )

    def used(self, usage: Usage) -> None:
        """Count one request."""
        self._prompt.add(usage.prompt_tokens)
        self._completion.add(usage.completion_tokens)
        self._cached.add(usage.cached_tokens)
        (self._estimated if usage.estimated else self._told).add()
