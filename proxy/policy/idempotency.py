"""A request with an idempotency key is carried out once; whoever repeats it gets the answer that was kept. Pure.

POST and PATCH only: other methods are idempotent by themselves, and their key is ignored. What a key belongs to is the
route and the API key or user, else the client's address. A claim is a permit of the shared table: of all requests with
one key, in all workers, one has it, and the others get 409 until its answer is complete; then they wait for that to be
kept (``proxy.idempotency.claim``). A worker that dies gives its claims back.

An answer is kept when it is complete and would be the same again (``is_final``), before its last byte passes: what a
client has been given whole is given again, whichever worker dies next. So is what was complete when its client left:
it was carried out. Not kept are 5xx, 429, what somebody may not, what broke off, what says in an event that it failed,
and what its client left in the middle of, as that breaks the upstream's work off: they leave the key free. One that is
too large to be kept is remembered as such: its request is refused from then on rather than carried out twice.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable
from typing import Final

from proxy import config_idempotency
from proxy.answer_filter import add_filter
from proxy.cells import Counter
from proxy.chain import Policy
from proxy.client_address import counted_as
from proxy.config_idempotency import File
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Head, Outcome, Reply
from proxy.idempotency.answer import StoredAnswer, is_final
from proxy.idempotency.claim import Claim
from proxy.idempotency.key import BadKey, key_of, place_of
from proxy.idempotency.reading import fingerprint_at_once, read_fingerprint
from proxy.idempotency.recorder import Recorder
from proxy.idempotency.sqlite_store import SqliteStore
from proxy.idempotency.store import AnswerStore, MemoryStore, StoreError
from proxy.policy.env import PolicyEnv
from proxy.shared.permits import Permits
from proxy.units import spell_size

NAME: Final = "idempotency"
ALWAYS: Final = False

RETRY_AFTER_S: Final = 1.0  # how long the first one still takes is not known; a second is soon
_METHODS: Final = frozenset(("POST", "PATCH"))
_OUTCOMES: Final = ("kept", "replayed", "in_flight", "reused", "too_large", "not_kept", "dropped")


Config = config_idempotency.Idempotency


def build(config: Config, env: PolicyEnv) -> Idempotency:
    """The policy of one route. Raises ValueError if the file's directory cannot be written to."""
    outcomes = {
        outcome: env.cells.counter(
            "headrace_idempotency_total",
            "Requests with an idempotency key, by what became of them or their answer.",
            {"route": env.route, "outcome": outcome},
        )
        for outcome in _OUTCOMES
    }
    claims, ends = env.shared.permits(NAME), env.shared.permits(f"{NAME} ends")
    return Idempotency(config, env.route, claims, ends, _store(config, env, outcomes["dropped"]), outcomes)


def _store(config: Config, env: PolicyEnv, dropped: Counter) -> AnswerStore:
    file = config.store
    if not isinstance(file, File):
        return MemoryStore(env.shared.answers(), dropped.add)
    directory = os.path.dirname(file.path)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ValueError(f"idempotency.store.path: {directory} is no directory that headrace may write to")
    key = (NAME, file.path, file.size, file.entries)
    return env.states.get(
        key, lambda: SqliteStore(file.path, file.size, file.entries, dropped.add, env.shared.journal())
    )


class _Use:
    """One request's key. claim: of the key's place, once it was asked for. is_kept: its answer was put."""

    __slots__ = ("claim", "fingerprint", "head", "is_kept", "key", "recorder", "unreadable", "wrong")

    def __init__(self, key: bytes, wrong: str = "") -> None:
        self.key = key
        self.wrong = wrong  # why the key cannot be used
        self.fingerprint = b""
        self.claim: Claim | None = None
        self.unreadable = False  # nobody can say what is kept under the key
        self.recorder: Recorder | None = None
        self.head: Head | None = None
        self.is_kept = False


class Idempotency(Policy):
    def __init__(
        self,
        config: Config,
        route: str,
        claims: Permits,
        ends: Permits,
        store: AnswerStore,
        outcomes: dict[str, Counter],
    ) -> None:
        self._config = config
        self._route = route
        self._claims = claims
        self._ends = ends
        self._store = store
        self._outcomes = outcomes

    def reads_body(self) -> bool:
        return True

    def behind(self) -> Policy | None:
        return Lookup(self._config.ttl, self._config.answer, self._store, self._outcomes)

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        """Read the body of a request with a key, for its fingerprint."""
        if x.method not in _METHODS:
            return None
        try:
            key = key_of(x.headers)
        except BadKey as error:
            x.scratch[NAME] = _Use(b"", str(error))
            return None
        if key is None:
            return None
        x.scratch[NAME] = use = _Use(key)
        found = fingerprint_at_once(x)
        if found is None:
            return self._read(x, use)
        use.fingerprint = found
        return None

    async def _read(self, x: Exchange, use: _Use) -> None:
        use.fingerprint = await read_fingerprint(x)

    def admit(self, x: Exchange, now: float) -> Reply | None:
        use: _Use | None = x.scratch.get(NAME)
        if use is None:
            return None
        if use.wrong:
            return refuse(x, Kind.BAD_REQUEST, use.wrong, code="invalid_idempotency_key")
        whose = f"key {x.key_id}" if x.key_id is not None else f"client {counted_as(x.client)}"
        use.claim = Claim(self._claims, self._ends, place_of(self._route, whose, use.key), _wall(x, now))
        use.claim.take()
        return None

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        """Keep the head as it is here: earlier policies add to it what they add to the replayed one, too."""
        use: _Use | None = x.scratch.get(NAME)
        if use is not None and use.recorder is not None:
            use.head = Head(head.status, list(head.headers))

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        """Give the claim back, if whoever keeps the answer does not."""
        use: _Use | None = x.scratch.pop(NAME, None)
        if use is None:
            return
        if use.recorder is not None:
            use.recorder.forget()  # it holds what holds it
            if not use.is_kept:
                self._outcomes["not_kept"].add()
        if use.claim is not None and not use.is_kept:
            use.claim.give_back()


class Lookup(Policy):
    """The second part: what is kept under the key is looked up before anything is spent on the request, and kept if
    nothing is. What is read from a file is read off the event loop. Without the claim an answer is waited for, if it is
    about to be kept."""

    def __init__(self, ttl_s: float, answer_bytes: int, store: AnswerStore, outcomes: dict[str, Counter]) -> None:
        self._ttl_s = ttl_s
        self._answer_bytes = answer_bytes
        self._store = store
        self._outcomes = outcomes

    def gathers_late(self) -> bool:
        return True

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        use: _Use | None = x.scratch.get(NAME)
        claim = use.claim if use is not None else None
        if use is None or claim is None:
            return None
        if not claim.is_held:
            return self._wait(use, claim.wait(self._store))
        found = self._store.get(claim.place, claim.at)
        if found is None or isinstance(found, bytes):
            claim.kept = found
            return None
        return self._wait(use, claim.receive(found))

    @staticmethod
    async def _wait(use: _Use, looks: Awaitable[None]) -> None:
        try:
            await looks
        except StoreError:
            use.unreadable = True

    def admit(self, x: Exchange, now: float) -> Reply | None:
        use: _Use | None = x.scratch.get(NAME)
        claim = use.claim if use is not None else None
        if use is None or claim is None:
            return None
        if not claim.is_held and claim.kept is None:
            self._outcomes["in_flight"].add()
            message = "A request with this idempotency key is still being carried out. Try again shortly."
            return refuse(x, Kind.CONFLICT, message, retry_after_s=RETRY_AFTER_S, code="idempotent_request_in_progress")
        try:
            answer = StoredAnswer.decoded(claim.kept) if claim.kept is not None else None
        except ValueError:
            use.unreadable = True
        if use.unreadable:
            message = (
                "The answers to earlier requests cannot be read now, so that none is carried out twice. Try later."
            )
            return refuse(x, Kind.CAPACITY, message, retry_after_s=RETRY_AFTER_S, violated=(NAME,))
        if answer is None:
            use.recorder = recorder = Recorder(self._answer_bytes, lambda: self._keep(x, use, claim))
            add_filter(x, recorder)
            return None
        return self._again(x, use, answer)

    def _keep(self, x: Exchange, use: _Use, claim: Claim) -> None:
        """The answer is over, and its last byte has not passed: keep it if it would be the same again."""
        claim.over()
        recorder, head = use.recorder, use.head
        if recorder is None or head is None or not recorder.complete or not is_final(head.status):
            return
        answer = StoredAnswer.of(use.fingerprint, head, recorder.body).encoded()
        at = _wall(x, x.last_byte_at)
        # The claim is held until the answer is there, so that nobody finds neither.
        self._store.put(claim.place, answer, at + self._ttl_s, at, claim.give_back)
        use.is_kept = True
        self._outcomes["kept"].add()

    def _again(self, x: Exchange, use: _Use, answer: StoredAnswer) -> Reply:
        """What is said to a request whose key was used before."""
        if answer.fingerprint != use.fingerprint:
            self._outcomes["reused"].add()
            message = (
                "This idempotency key was used for another request: method, path, query, Content-Type and every byte "
                "of the body must be the same. Use a new key."
            )
            return refuse(x, Kind.KEY_REUSED, message)
        if answer.body is None:
            self._outcomes["too_large"].add()
            message = (
                f"This request was carried out, with status {answer.status}, but its answer was larger than the "
                f"{spell_size(self._answer_bytes)} that are kept. To have it carried out again, use a new key."
            )
            return refuse(x, Kind.CONFLICT, message, code="idempotent_answer_too_large")
        self._outcomes["replayed"].add()
        return answer.reply()


def _wall(x: Exchange, now: float) -> float:
    """The wall clock at ``now``."""
    return x.wall_at + (now - x.started_at)
