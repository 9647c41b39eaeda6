"""Requests that are sent twice: carried out once, answered twice, whoever of the workers gets them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.answer_filter import AnswerFilter, finish, pass_through
from proxy.cells import Cells
from proxy.chain import Chain
from proxy.exchange import Ending, Exchange, Head, Outcome, Reply
from proxy.policy import States
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable
from tests.proxy.make import chain, exchange
from tests.proxy.shared.test_answers import SMALL

UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"
TABLES = SMALL._replace(permits=64, answer_bytes=1 << 20)


class Body:
    """A body that is there."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.refusal = None

    def read_at_once(self) -> bytes:
        return self.data


class Fault(Exception):
    pass


class Side:
    """One worker's chain; what it forwards is answered by ``answer``."""

    def __init__(self, served: Chain) -> None:
        self.served = served
        self.num_forwarded = 0

    async def begin(self, x: Exchange, now: float = 0.0) -> Reply | None:
        served = self.served
        reply = served.admit(x, now)
        for part in range(served.num_rest):
            if reply is None:
                if (facts := served.gather_rest(x, part)) is not None:
                    await facts
                reply = served.admit_rest(x, now, part)
        if reply is None:
            self.num_forwarded += 1
        return reply

    def end(
        self,
        x: Exchange,
        ending: Ending,
        status: int,
        pieces: list[bytes],
        now: float = 0.0,
        *,
        known: bool = False,
        is_whole: bool | None = None,
    ) -> tuple[Head, bytes]:
        """known: the length is. is_whole: the upstream's answer comes to its end; None: if it is COMPLETE."""
        length = sum(map(len, pieces)) if known else None
        head = Head(status, [(b"Date", b"then"), (b"X-Served", b"%d" % self.num_forwarded)], length)
        self.served.respond(x, head, now)
        filters = x.filters or []
        for each in filters:
            each.head(x, head)
        sent = b""
        try:
            sent = b"".join([pass_through(filters, piece) for piece in pieces])
            if is_whole or (is_whole is None and ending is Ending.COMPLETE):
                x.last_byte_at = now
                sent += finish(filters, ending is Ending.UPSTREAM_ERROR)
            else:
                for each in filters:
                    each.broken()
        except Fault:
            ending = Ending.INTERNAL
            for each in filters:
                each.broken()
        self.served.settle(x, Outcome(ending, status), now)
        return head, sent

    def counted(self) -> dict[str, int]:
        """What was counted, without what was not."""
        outcomes = self.served.policies[-2]._outcomes  # type: ignore[attr-defined]
        return {outcome: int(counter.value) for outcome, counter in outcomes.items() if counter.value}

    @property
    def store(self) -> Any:
        return self.served.policies[-2]._store  # type: ignore[attr-defined]

    async def ask(
        self,
        x: Exchange,
        *,
        status: int = 200,
        pieces: list[bytes] | None = None,
        ending: Ending = Ending.COMPLETE,
        now: float = 0.0,
    ) -> tuple[int, bytes, Head]:
        reply = await self.begin(x, now)
        if reply is None:
            head, body = self.end(x, ending, status, pieces or [b"served ", b"%d" % self.num_forwarded], now)
            return head.status, body, head
        head = Head(reply.status, list(reply.headers))
        self.served.respond(x, head, now)
        self.served.settle(x, Outcome(Ending.REFUSED, reply.status), now)
        return reply.status, reply.body, head


def side(shared: SharedTable | None = None, *, route: str = "r", states: States | None = None, **config: Any) -> Side:
    return Side(chain({"idempotency": config}, shared=shared or SharedTable.alone(TABLES), route=route, states=states))


def post(key: str | None = UUID, body: bytes = b'{"a":1}', **facts: Any) -> Exchange:
    headers = [("Content-Type", "application/json"), *([("Idempotency-Key", key)] if key is not None else [])]
    x = exchange("/v1/things", headers, **{"method": "POST", "key_id": "alice", **facts})
    x.body = Body(body)  # type: ignore[assignment]
    return x


async def test_L22_a_of_fifty_in_two_workers_one_is_carried_out() -> None:
    owner = SharedTableOwner(TABLES)
    one, other = (side(SharedTable.attached(owner.fd, owner.enter())) for _ in range(2))
    requests = [(each, post()) for _ in range(25) for each in (one, other)]
    replies = await asyncio.gather(*(each.begin(x) for each, x in requests))
    assert replies.count(None) == one.num_forwarded + other.num_forwarded == 1
    refused = [reply for reply in replies if reply is not None]
    assert {reply.status for reply in refused} == {409}
    assert {dict(reply.headers)[b"Retry-After"] for reply in refused} == {b"1"}
    for (each, x), reply in zip(requests, replies, strict=True):
        if reply is not None:
            each.served.settle(x, Outcome(Ending.REFUSED, 409), 0.0)
    first, x = next((each, x) for (each, x), reply in zip(requests, replies, strict=True) if reply is None)
    first.end(x, Ending.COMPLETE, 200, [b"served"])
    assert [(await each.ask(post()))[:2] for each in (one, other)] == [(200, b"served")] * 2
    owner.close()


async def test_L22_b_the_second_gets_the_first_ones_answer_with_a_mark() -> None:
    served = side()
    status, body, head = await served.ask(post(), status=201)
    assert (status, body, head.get(b"idempotent-replayed")) == (201, b"served 1", None)
    status, body, head = await served.ask(post(), now=5.0)
    assert (status, body, head.get(b"idempotent-replayed")) == (201, b"served 1", b"true")
    assert (head.get(b"x-served"), head.get(b"date")) == (b"1", None)
    assert served.num_forwarded == 1


@pytest.mark.parametrize("body", [b'{"a":2}', b'{"a": 1}', b""], ids=["c", "h", "empty"])
async def test_L22_c_h_another_body_is_refused(body: bytes) -> None:
    served = side()
    await served.ask(post())
    status, text, _ = await served.ask(post(body=body))
    assert status == 422
    assert b"new key" in text
    assert (await served.ask(post()))[:2] == (200, b"served 1")


async def test_L22_d_api_keys_and_routes_have_keys_of_their_own() -> None:
    shared = SharedTable.alone(TABLES)
    one, other = side(shared, route="one"), side(shared, route="other")
    await one.ask(post())
    assert (await one.ask(post(key_id="bob")))[1] == b"served 2"
    assert (await other.ask(post()))[1] == b"served 1"
    assert other.num_forwarded == 1
    # Without a key or user, a client's address says whose it is.
    assert (await one.ask(post(key_id=None, client="192.0.2.1")))[1] == b"served 3"
    assert (await one.ask(post(key_id=None, client="192.0.2.2")))[1] == b"served 4"
    assert (await one.ask(post(key_id=None, client="192.0.2.1")))[1] == b"served 3"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Ending.COMPLETE, 500),
        (Ending.COMPLETE, 503),
        (Ending.COMPLETE, 429),
        (Ending.CLIENT_GONE, 499),
        (Ending.UPSTREAM_ABORTED, 200),
    ],
)
async def test_L22_e_what_failed_or_was_cancelled_leaves_the_key_free(ending: Ending, status: int) -> None:
    served = side()
    await served.ask(post(), ending=ending, status=status)
    assert (await served.ask(post()))[:2] == (200, b"served 2")
    assert (await served.ask(post()))[:2] == (200, b"served 2")


async def test_L22_e_a_refusal_of_a_later_policy_or_of_ours_leaves_it_free() -> None:
    served = side()
    x = post()
    assert await served.begin(x) is None
    served.served.respond(x, Head(429, []), 0.0)  # answered here: no byte went through the filters
    served.served.settle(x, Outcome(Ending.REFUSED, 429), 0.0)
    assert (await served.ask(post()))[1] == b"served 2"


async def test_L22_e_a_worker_that_dies_gives_its_claims_back() -> None:
    owner = SharedTableOwner(TABLES)
    columns = [owner.enter(), owner.enter()]
    one, other = (side(SharedTable.attached(owner.fd, column)) for column in columns)
    assert await one.begin(post()) is None
    assert (await other.ask(post()))[0] == 409
    owner.left(columns[0])
    assert (await other.ask(post()))[:2] == (200, b"served 1")
    owner.close()


class Looks(AnswerFilter):
    """Behind the recorder: what another worker finds at every byte, and at the end, before they go on."""

    def __init__(self, look: Callable[[], bytes | None]) -> None:
        self.look = look
        self.found: list[bool] = []

    def data(self, data: bytes) -> bytes:
        self.found.append(self.look() is not None)
        return data

    def end(self) -> bytes:
        self.found.append(self.look() is not None)
        return b""


@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize("known", [True, False], ids=["length", "chunked"])
@pytest.mark.parametrize("pieces", [[b"ab", b"c"], [b"abc"], []], ids=["two", "one", "none"])
async def test_L22_b_an_answer_is_kept_before_its_last_byte_passes(
    store: str, known: bool, pieces: list[bytes], tmp_path: Path
) -> None:
    owner = SharedTableOwner(TABLES)
    where: Any = {"path": str(tmp_path / "answers.db")} if store == "file" else store
    one, other = (side(SharedTable.attached(owner.fd, owner.enter()), store=where) for _ in range(2))
    x = post()
    assert await one.begin(x) is None
    place = x.scratch["idempotency"].claim.place
    go_on = threading.Event()
    if store == "file":
        one.store._thread.submit(go_on.wait, 30.0)  # its disk is slow
    looks = Looks(lambda: other.store._journal.get(place, 0.0) if store == "file" else other.store.get(place, 0.0))
    x.filters = [*(x.filters or ()), looks]
    _, sent = one.end(x, Ending.COMPLETE, 200 if pieces else 204, pieces, known=known)
    assert sent == b"".join(pieces)
    early = len(pieces[:-1] if known else pieces)  # whose last byte is that of their framing
    assert looks.found == [*[False] * early, *[True] * (len(looks.found) - early)]
    assert looks.found[-1]
    for each in (one, other):
        status, body, head = await each.ask(post())
        assert (status, body) == (200 if pieces else 204, sent)
        assert head.get(b"idempotent-replayed") == b"true"
    assert one.counted() == {"kept": 1, "replayed": 1}
    go_on.set()
    if store == "file":
        one.store.close()
        other.store.close()
    owner.close()


async def test_L22_e_what_was_carried_out_whole_is_kept_though_its_client_left_at_the_end() -> None:
    served = side()
    x = post()
    assert await served.begin(x) is None
    served.end(x, Ending.CLIENT_GONE, 499, [b"served 1"], is_whole=True)
    assert (await served.ask(post()))[1] == b"served 1"
    assert served.counted()["kept"] == 1


class Raises(AnswerFilter):
    def __init__(self, at: str) -> None:
        self.at = at

    def data(self, data: bytes) -> bytes:
        if self.at == "data":
            raise Fault
        return data

    def end(self) -> bytes:
        if self.at == "end":
            raise Fault
        return b""


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("behind", "at", "is_kept"),
    [(True, "end", True), (True, "data", False), (False, "end", False), (False, "data", False)],
)
async def test_a_fault_of_ours_keeps_what_was_whole_and_nothing_else(
    behind: bool, at: str, is_kept: bool, known: bool
) -> None:
    served = side()
    x = post()
    assert await served.begin(x) is None
    x.filters = [*(x.filters or ()), Raises(at)] if behind else [Raises(at), *(x.filters or ())]
    served.end(x, Ending.COMPLETE, 200, [b"serv", b"ed 1"], known=known)
    assert served.counted() == {"kept" if is_kept else "not_kept": 1}
    assert (await served.ask(post()))[:2] == (200, b"served 1" if is_kept else b"served 2")


async def test_a_stream_that_says_that_it_failed_is_not_kept() -> None:
    served = side()
    x = post()
    assert await served.begin(x) is None
    served.end(x, Ending.UPSTREAM_ERROR, 200, [b"data: {}\n\n"], is_whole=True)
    assert served.counted() == {"not_kept": 1}
    assert (await served.ask(post()))[1] == b"served 2"


@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize(
    "ending", [Ending.COMPLETE, Ending.CLIENT_GONE, Ending.UPSTREAM_ERROR, Ending.UPSTREAM_ABORTED]
)
@pytest.mark.parametrize("status", [200, 500])
async def test_every_claim_is_given_back_once(ending: Ending, status: int, store: str, tmp_path: Path) -> None:
    shared = SharedTable.alone(TABLES)
    served = side(shared, store={"path": str(tmp_path / "answers.db")} if store == "file" else store)
    memory = shared._memory
    counts_at = memory.layout.counts // 4
    counts = memory.counts[counts_at : counts_at + memory.layout.counts_stride // 4]
    x = post()
    assert await served.begin(x) is None
    served.end(x, ending, status, [b"served"], is_whole=ending is not Ending.UPSTREAM_ABORTED)
    if store == "file":
        await served.store.flush()
        while served.store.num_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        served.store.close()
    assert not any(counts.tolist())


async def test_L22_f_a_stream_is_replayed_event_for_event() -> None:
    served = side()
    events = [b"data: {}\n", b"\ndata: [DO", b"NE]\n\n"]
    first = await served.ask(post(), pieces=events)
    again = await served.ask(post())
    assert first[1] == again[1] == b"".join(events)


@pytest.mark.parametrize("key", ["x" * 300, "", "a\rb", '"open'])
async def test_L22_g_what_is_no_key_is_400(key: str) -> None:
    served = side()
    status, text, _ = await served.ask(post(key))
    assert status == 400
    assert b"invalid_idempotency_key" in text
    assert served.num_forwarded == 0


async def test_L22_i_after_its_time_a_key_is_new() -> None:
    served = side(ttl="1m")
    await served.ask(post(), now=0.0)
    assert (await served.ask(post(wall_at=1_700_000_059.0)))[1] == b"served 1"
    assert (await served.ask(post(wall_at=1_700_000_061.0)))[1] == b"served 2"


async def test_L22_i_a_file_outlives_a_restart_and_a_reload(tmp_path: Path) -> None:
    file = {"path": str(tmp_path / "answers.db")}
    states = States()
    before = side(store=file, states=states)
    await before.ask(post())
    assert (await before.ask(post()))[:2] == (200, b"served 1")
    await before.store.flush()
    reloaded = side(store=file, states=States(states))
    assert (await reloaded.ask(post()))[1] == b"served 1"
    restarted = side(store=file)
    assert (await restarted.ask(post()))[1] == b"served 1"
    for each in (before, restarted):
        each.store.close()


async def test_one_that_is_too_large_to_be_kept_is_not_carried_out_again() -> None:
    served = side(answer="1KiB")
    assert (await served.ask(post(), pieces=[bytes(1025)]))[1] == bytes(1025)
    status, text, head = await served.ask(post())
    assert (status, head.get(b"retry-after")) == (409, None)
    assert b"1KiB" in text
    assert served.num_forwarded == 1


async def test_other_methods_and_requests_without_a_key_pass() -> None:
    served = side()
    for x in (post(None), post(None), post(method="PUT"), post(method="PUT"), exchange("/", [("Idempotency-Key", "")])):
        assert (await served.ask(x))[0] == 200
    assert served.num_forwarded == 5


async def test_what_became_of_requests_is_counted() -> None:
    cells = Cells()
    served = Side(chain({"idempotency": {}}, cells=cells, shared=SharedTable.alone(TABLES)))
    await served.ask(post())
    await served.ask(post())
    await served.ask(post(body=b"x"))
    await served.ask(post("other"), status=500)
    assert served.counted() == {"kept": 1, "replayed": 1, "reused": 1, "not_kept": 1}


def test_a_directory_that_is_not_there_is_told_when_it_is_built() -> None:
    with pytest.raises(ValueError, match="/nowhere/at/all is no directory"):
        side(store={"path": "/nowhere/at/all/answers.db"})
