"""Requests of our own, made for a client's before that is sent: to where it goes, and forwarded as it is.

They take the same way: breaker, choice of servers, retries, other upstreams, keys, times and the client's deadline;
only that the answer comes here, as a whole and bounded. Policies are not asked about them, and no field says that they
are no client's. They end with the request for which they are made, and when its client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from aiohttp.streams import EMPTY_PAYLOAD

from proxy.body import RequestBody
from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Head, Reply
from proxy.forward import Forward
from proxy.held_body import HeldBody
from proxy.outbox import outbox_of
from proxy.relay import End, Relay
from proxy.route import Route
from proxy.sink import Client, Sink
from proxy.upstream.upstream import Upstream

MAX_ANSWER_BYTES: Final = 1 << 20
#: What the client has said of its own request alone.
_NOT_AGAIN: Final = frozenset({b"accept-encoding", b"expect", b"idempotency-key", b"x-idempotency-key"})
#: Facts of policies by which forwarding goes: whom it lets wait, and how full an engine may be.
_HOW_URGENT: Final = ("priority", "shed")
_PASSED_ON: Final = frozenset({b"content-type", b"retry-after", b"retry-after-ms", b"x-should-retry"})


class OwnAnswer:
    """body: of an answer with status 200. reply: what the client is to be told where there is none."""

    __slots__ = ("body", "reply")

    def __init__(self, body: bytes, reply: Reply | None = None) -> None:
        self.body = body
        self.reply = reply


class Asker:
    """Sends requests of ours for one exchange; ``release`` it when that ends."""

    __slots__ = ("_relays", "_route", "_upstream", "_upstreams", "_x")

    def __init__(
        self, x: Exchange, route: Route, upstream: Upstream, upstreams: Mapping[str, Upstream], relays: set[Relay]
    ) -> None:
        self._x = x
        self._route = route
        self._upstream = upstream
        self._upstreams = upstreams
        self._relays = relays

    async def ask(self, body: bytes, document: dict[str, Any], left: Callable[[], None]) -> OwnAnswer:
        """The answer to a request with this body, which is this document; path and fields are the client's. left: told
        if nobody waits for the answer any more to what an upstream has been sent."""
        x = _exchange(self._x, body, document)
        client = _NoClient()
        sink = _Collector(client)
        ended = asyncio.get_running_loop().create_future()
        forward = Forward(
            x,
            self._route,
            self._upstream,
            client,
            sink,
            RequestBody(EMPTY_PAYLOAD),
            self._relays,
            ended.set_result,
            upstreams=self._upstreams,
            expects_continue=False,
            may_switch=False,
        )
        work = forward.start(monotonic())
        if work is not None:
            client.run(work)
        # What is awaited while an exception is handled, in compiled code, leaves that exception to all other tasks.
        cancelled = False
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            cancelled = True
        if cancelled:
            await client.leave()
            await ended
            if x.connected_at:
                left()
            raise asyncio.CancelledError
        end: End = ended.result()
        return _told(x, end, sink)


def _exchange(x: Exchange, body: bytes, document: dict[str, Any]) -> Exchange:
    """An exchange like this one, with another body."""
    own = Exchange(
        x.method, x.target, x.version, x.scheme, x.host, x.authority, x.path, x.send_path, x.query, x.headers, x.fields,
        x.peer, len(body), True, x.started_at, x.wall_at, x.client,
    )  # fmt: skip
    own.trusted = x.trusted
    own.request_id, own.traceparent = x.request_id, x.traceparent
    own.key_id, own.key = x.key_id, x.key
    own.route = x.route
    own.targets = x.targets
    own.deadline = x.deadline
    own.routed_at, own.admitted_at = x.routed_at, x.admitted_at
    own.drop = x.drop | _NOT_AGAIN
    own.add = list(x.add)
    own.scratch = {name: x.scratch[name] for name in _HOW_URGENT if name in x.scratch}
    own.body = HeldBody.made(own, body, document)
    return own


def _told(x: Exchange, end: End, sink: _Collector) -> OwnAnswer:
    if end.reply is not None:
        return OwnAnswer(b"", end.reply)
    head = sink.head
    if end.ending is not Ending.COMPLETE or head is None or sink.too_long:
        message = "The upstream's answer to a request that was made for this one did not come, or not to its end."
        return OwnAnswer(b"", refuse(x, Kind.UPSTREAM_ABORTED, message))
    body = b"".join(sink.pieces)
    if head.status == 200:
        return OwnAnswer(body)
    fields = [field for field in head.headers if field[0].lower() in _PASSED_ON]
    return OwnAnswer(b"", Reply(head.status, tuple(fields), body))


class _NoClient(Client):
    """Stands where a client's connection would: it takes everything at once, and leaves when it is told to."""

    def __init__(self) -> None:
        super().__init__(outbox_of(asyncio.get_running_loop()))
        self._task: asyncio.Task[None] | None = None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    async def leave(self) -> None:
        """Have what is under way end."""
        await asyncio.sleep(0)  # what was started has begun then, so that it ends as it should
        if self.watcher is not None:
            self.watcher.gone()
        elif self._task is not None:
            self._task.cancel()


class _Collector(Sink):
    """Keeps an answer. Nobody has seen any of it, so it can always be taken back."""

    __slots__ = ("head", "pieces", "too_long")

    def __init__(self, client: Client) -> None:
        super().__init__(client, "POST", (1, 1), False)
        self.head: Head | None = None
        self.pieces: list[bytes] = []
        self.too_long = False

    def begin(self, head: Head) -> None:
        self.begun = True
        self.head = head

    def data(self, data: bytes) -> None:
        self.bytes_out += len(data)
        if self.bytes_out <= MAX_ANSWER_BYTES:
            self.pieces.append(bytes(data))
        else:
            self.pieces.clear()
            self.too_long = True

    def flush(self) -> None:
        pass

    def retract(self) -> bool:
        self.begun = False
        self.head = None
        self.pieces.clear()
        self.bytes_out = 0
        self.too_long = False
        return True

    def end(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.ended = True

    def abort(self, last_words: bytes = b"") -> None:
        self.ended = True
