"""Variants of a route side by side: each user gets one of them, and it is counted how it does. Pure.

A variant sends its requests to another upstream, for another model, or with other fields; ``proxy.variants`` says who
gets which, what is counted, and when a rule stops one. What a policy refuses counts for nobody; what an upstream does,
its breaker or its limits included, for the variant that was to be used. Where models are told apart, only requests that
name one take part. The answer says which variant it is of, and to outer caches that it is for this user alone. With
``outcomes`` it also carries a token, by which its client may tell later, once, what became of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from proxy import config_variants
from proxy.cells import Cells
from proxy.chain import Policy
from proxy.client_address import counted_as
from proxy.config import HashOf
from proxy.config_variants import CONTROL
from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Head, Outcome, Reply
from proxy.gcra import Terms
from proxy.model_routes import ModelRoutes, Target
from proxy.policy.by_model import CHOICE, INSTEAD
from proxy.policy.env import Notify, PolicyEnv
from proxy.policy.headers import compile_changes
from proxy.shared.limit import SharedLimit
from proxy.upstream.balance_hash import cookie_of
from proxy.variants.assignment import group_of
from proxy.variants.experiment import Arm, Experiment, Stopped
from proxy.variants.standing import RULES
from proxy.variants.tally import Ended
from proxy.variants.token import Token, read, sign

log = logging.getLogger("headrace.proxy")

NAME: Final = "variants"
ALWAYS: Final = False
#: Under which the access log finds the variant's name.
LOGGED: Final = "variant"
_OUTCOME_BYTES: Final = 4096
_OUR_FAULT: Final = frozenset({Ending.INTERNAL, Ending.CLIENT_ERROR})


Config = config_variants.Config


def build(config: Config, env: PolicyEnv) -> Variants:
    """The policy of one route. Raises ValueError if the common table has no room for what it counts."""
    metrics = _Metrics(env.cells, env.route, config, env.notify)
    experiment = Experiment(env.route, config, env.shared, metrics.stopped)
    outcomes = config.outcomes
    once = None
    if outcomes is not None:
        once = env.shared.limit(f"outcomes {env.route}", Terms(1, outcomes.within, 1))
    return Variants(experiment, config, env.models, env.shared.secret(NAME), once, env.draw_hex, metrics)


class _Use:
    """A request's arm."""

    __slots__ = ("arm", "user")

    def __init__(self, arm: Arm, user: str) -> None:
        self.arm = arm
        self.user = user


class Variants(Policy):
    """models: of a route by models. secret: signs tokens. once: which tokens have told their outcome."""

    def __init__(
        self,
        experiment: Experiment,
        config: Config,
        models: ModelRoutes | None,
        secret: bytes,
        once: SharedLimit | None,
        draw_hex: Callable[[int], str],
        metrics: _Metrics,
    ) -> None:
        self.experiment = experiment
        self.metrics = metrics
        self._models = models
        self._asked = frozenset(config.models)
        self._reads_models = config.reads_models or models is not None
        self._user_by = config.user
        self._outcomes = config.outcomes
        self._secret = secret
        self._once = once
        self._draw_hex = draw_hex
        self._headers = {name: compile_changes(variant.headers) for name, variant in config.of.items()}

    def reads_body(self) -> bool:
        return self._reads_models or self._outcomes is not None

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        if x.body is None:
            return None
        if self._is_outcome(x):
            return _read(x, _OUTCOME_BYTES)
        if not self._reads_models:
            return None
        if not x.body.json_at_once():
            return self._read(x)
        self._see_model(x)
        return None

    async def _read(self, x: Exchange) -> None:
        assert x.body is not None
        await x.body.read_json()
        self._see_model(x)

    def _see_model(self, x: Exchange) -> None:
        llm = x.body.llm if x.body is not None else None
        if llm is None or (self._models is not None and x.fields.get(CHOICE)):
            return  # it asks nothing of a model, or chooses by itself
        name: str | None = llm.model
        if self._models is not None:
            found = self._models.asked(llm.model)
            name = found.name if found is not None else None
        if name is None or (self._asked and name not in self._asked):
            return
        variant = self._assign(x).config
        if self._models is not None and variant is not None and variant.model is not None:
            x.scratch[INSTEAD] = self._models.beside(variant.model)

    def _assign(self, x: Exchange) -> Arm:
        user = self._user_of(x)
        arm = self.experiment.choose(user, x.path)
        x.scratch[NAME] = _Use(arm, user)
        return arm

    def _user_of(self, x: Exchange) -> str:
        by, value = self._user_by, None
        if isinstance(by, HashOf):
            value = x.fields.get(by.header) if by.header else cookie_of(x.fields.get("Cookie", ""), by.cookie or "")
        elif by == "client":
            value = counted_as(x.client)
        return value or x.key_id or counted_as(x.client)

    def admit(self, x: Exchange, now: float) -> Reply | None:
        if self._is_outcome(x):
            return self._hear(x, now)
        if not self._reads_models:
            self._assign(x)
        use: _Use | None = x.scratch.get(NAME)
        if use is None:
            return None
        variant = use.arm.config
        if variant is not None:
            add, drop = self._headers[use.arm.name]
            x.drop |= drop
            x.add += add
        if self._models is None and (self._reads_models or (variant is not None and variant.to is not None)):
            assert x.route is not None
            to = variant.to if variant is not None else None
            x.targets = (Target("", to or x.route.upstream, (variant.model if variant is not None else None) or ""),)
        return None

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        use: _Use | None = x.scratch.get(NAME)
        if use is None or (head.status >= 400 and not x.upstream):
            return  # refused here, before it came to any: who may not use a model learns nothing of its variants
        head.headers.append((b"headrace-variant", use.arm.name.encode()))
        if self._outcomes is not None and x.first_byte_at:
            token = Token(use.arm.id, int(now), group_of(use.user), bytes.fromhex(self._draw_hex(8)))
            head.headers.append((b"headrace-outcome", sign(token, x.key_id or "", self._secret).encode()))
        if x.method in ("GET", "HEAD"):
            caching = head.get(b"cache-control") or b""
            if b"private" not in caching and b"no-store" not in caching:
                head.headers.append((b"Cache-Control", b"private"))

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        use: _Use | None = x.scratch.pop(NAME, None)
        if use is None:
            return
        x.scratch[LOGGED] = use.arm.name
        if not x.upstream or outcome.ending in _OUR_FAULT:
            return
        good: bool | None = outcome.ending is Ending.COMPLETE and outcome.status < 400
        if outcome.ending is Ending.CLIENT_GONE:
            good = None
        elif outcome.ending is Ending.REFUSED and outcome.status < 500:
            return
        began = x.admitted_at
        usage = x.scratch.get("usage")
        ended = Ended(
            good,
            now - began,
            x.first_byte_at - began if x.first_byte_at else None,
            x.first_token_at - began if x.first_token_at else None,
            (usage.prompt_tokens, usage.completion_tokens) if usage is not None else None,
        )
        self.experiment.ended(use.arm, use.user, ended)
        self.metrics.ended(use.arm.name, ended)

    def look(self, now: float) -> None:
        """From time to time: judge, if that is due, and show the shares."""
        self.experiment.look(now)
        self.metrics.shares(self.experiment.shares())

    # Outcomes

    def _is_outcome(self, x: Exchange) -> bool:
        return self._outcomes is not None and x.path == self._outcomes.path and x.method == "POST"

    def _hear(self, x: Exchange, now: float) -> Reply:
        assert self._outcomes is not None
        assert self._once is not None
        body = x.body.json if x.body is not None else None
        text, good = (body.get("token"), body.get("good")) if isinstance(body, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(good, bool):
            message = (
                'Send {"token": "...", "good": true} or false, with the token that the field headrace-outcome of the '
                "answer had."
            )
            return refuse(x, Kind.BAD_REQUEST, message)
        token = read(text, x.key_id or "", self._secret)
        arm = self.experiment.find(token.arm) if token is not None else None
        if token is None or arm is None or now - token.at > self._outcomes.within:
            message = (
                f"This token is none of an answer to this API key in the last {self._outcomes.within:g} s, or what it "
                "belongs to has begun anew."
            )
            return refuse(x, Kind.BAD_REQUEST, message, code="invalid_outcome_token", param="token")
        if self._once.decide(text, now) < 0.0:
            return refuse(x, Kind.CONFLICT, "An outcome counts once: this one was told.", code="outcome_already_told")
        self.experiment.told(arm, token.group, good)
        self.metrics.told(arm.name, good)
        return Reply(204, ((b"Cache-Control", b"no-store"),))


async def _read(x: Exchange, limit_bytes: int) -> None:
    assert x.body is not None
    await x.body.read_json(limit_bytes)


class _Metrics:
    """Of one route's variants."""

    def __init__(self, cells: Cells, route: str, config: Config, notify: Notify | None = None) -> None:
        self._notify = notify
        arms = (CONTROL, *config.of)
        requests = "Requests that went to an upstream, by the variant that their user has and how they ended."
        outcomes = "Outcomes that clients have told, by variant."
        self._ended = {
            (arm, good): cells.counter(
                "headrace_variant_requests_total", requests, {"route": route, "variant": arm, "result": result}
            )
            for arm in arms
            for good, result in ((True, "good"), (False, "failed"), (None, "gone"))
        }
        self._told = {
            (arm, good): cells.counter(
                "headrace_variant_outcomes_total", outcomes, {"route": route, "variant": arm, "result": result}
            )
            for arm in arms
            for good, result in ((True, "good"), (False, "bad"))
        }
        self._shares = [
            cells.gauge(
                "headrace_variant_share", "Share of the users that have a variant.",
                {"route": route, "variant": arm}, combine="max",
            )
            for arm in config.of
        ]  # fmt: skip
        self._answers, self._first_tokens = (
            {arm: cells.histogram(name, doc, {"route": route, "variant": arm}) for arm in arms}
            for name, doc in (
                ("headrace_variant_answer_seconds", "Time until a good answer was sent, by variant."),
                ("headrace_variant_first_token_seconds", "Time to the first token of a streamed answer, by variant."),
            )
        )
        self._stops = {
            (arm, rule): cells.counter(
                "headrace_variant_stops_total", "Variants that a rule has stopped.",
                {"route": route, "variant": arm, "rule": rule},
            )
            for arm in config.of
            for rule in RULES
        }  # fmt: skip

    def ended(self, arm: str, ended: Ended) -> None:
        """Count a request."""
        self._ended[arm, ended.good].add()
        if ended.good:
            self._answers[arm].observe(ended.answer_s)
        if ended.first_token_s is not None:
            self._first_tokens[arm].observe(ended.first_token_s)

    def told(self, arm: str, good: bool) -> None:
        """Count an outcome."""
        self._told[arm, good].add()

    def shares(self, shares: list[float]) -> None:
        """Show the shares of now."""
        for gauge, share in zip(self._shares, shares, strict=True):
            gauge.set(share)

    def stopped(self, stopped: Stopped) -> None:
        """What a stop is told to: the metric, the log, and those who follow the box's events."""
        self._stops[stopped.variant, stopped.rule].add()
        text = f"route {stopped.route}: {spell_stop(stopped)}"
        log.warning("%s", text)
        if self._notify is not None:
            facts = {"route": stopped.route, "variant": stopped.variant, "rule": stopped.rule}
            self._notify({"kind": "variant", "text": text, **facts})


def spell_stop(stopped: Stopped) -> str:
    """A stop in a line: ``variant b stopped: harm (880 of 1000 good, control 8910 of 9000, z = -21.53, p = 1e-90)``."""
    own, control = stopped.of_variant, stopped.of_control
    return (
        f"variant {stopped.variant} stopped: {stopped.rule} ({own.good:.0f} of {own.num:.0f} good, control "
        f"{control.good:.0f} of {control.num:.0f}, z = {stopped.verdict.z:.2f}, p = {stopped.verdict.p:.2g}); "
        "its users have the control now"
    )


def variants_of(chains: Iterable[tuple[Policy, ...]]) -> dict[str, Variants]:
    """Those among the policies of routes, by route."""
    return {each.experiment.route: each for chain in chains for each in chain if isinstance(each, Variants)}
