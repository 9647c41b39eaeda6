"""One attempt's answer on its way to the client: the upstream's bytes go to the sink in the call that received them.

Owns the joint between the two connections. Upstream events arrive by the methods of ``Exchanger``, the client's by
those of ``Watcher``; whoever forwards is told by ``done`` and then reads ``outcome``. A slow client
pauses the upstream's connection, a client that left aborts it, an upstream that breaks off aborts the client: a
truncated answer never ends cleanly. Where our own engine breaks off a stream of events, or a language model's is out of
time, a last event tells the client.

Knows nothing of retries, breakers or the choice of servers. How long all may take is ``answer_times``'s to say, what
is put into a stream of events ``stream_words``'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from time import time as wall
from typing import Final

from proxy.answer_filter import AnswerFilter, finish, pass_through
from proxy.answer_times import said_too_late, stop_at, too_slow
from proxy.config import Timeouts
from proxy.config_routes import ENGINE
from proxy.downstream import ClientConnection
from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Head, Reply
from proxy.llm.error_events import ErrorEvents, Fault
from proxy.llm.first_content import Told
from proxy.llm.hold import Hold
from proxy.route import Route
from proxy.sink import Client, Sink, http_date
from proxy.stream_words import StreamWords
from proxy.tunnel import Tunnel
from proxy.upstream.attempts import tell_attempts, wait_of
from proxy.upstream.permit import Permit
from proxy.upstream.retry import Failure
from proxy.upstream.transport import Exchanger, UpstreamConnection

log = logging.getLogger("headrace.proxy")

_COMPLETE: Final = Ending.COMPLETE
_STARTING: Final = Told.STARTING
_CONTENT: Final = Told.CONTENT
TOO_LATE: Final = "The answer did not come before the deadline that the client set. Allow more time."


class End:
    """How an attempt ended, or forwarding as a whole. reply: what is still to be sent to the client. failure: why there
    is no answer, or why it broke off. retry_after_s: what an answer of 429 or 503 asked for. again_in_s: when the
    request is to be sent again, because the answer asks for it; None: it does not. fault: what a stream of events has
    told of itself."""

    __slots__ = ("again_in_s", "ending", "failure", "fault", "reason", "reply", "retry_after_s", "status")

    def __init__(
        self,
        ending: Ending,
        status: int,
        reason: str = "",
        reply: Reply | None = None,
        failure: Failure | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        self.ending = ending
        self.status = status
        self.reason = reason
        self.reply = reply
        self.failure = failure
        self.retry_after_s = retry_after_s
        self.again_in_s: float | None = None
        self.fault: Fault | None = None


class Relay(Exchanger):
    """``outcome`` is there once ``done`` was called, once; after UPSTREAM_FAILED nothing was sent to the client.
    uploading: some of the request is still to be sent."""

    __slots__ = ("_asked_again", "_client", "_done", "_errors", "_filters", "_held", "_held_dated", "_hold",
                 "_permit", "_retry_after_s", "_route", "_sent_whole", "_sink", "_status", "_timeouts", "_timer",
                 "_tunnel", "_words", "_x", "connection", "outcome", "uploading")  # fmt: skip

    def __init__(
        self,
        x: Exchange,
        route: Route,
        client: Client,
        sink: Sink,
        connection: UpstreamConnection,
        timeouts: Timeouts,
        permit: Permit,
        done: Callable[[Relay], None],
        asked_again: Callable[[Head], float | None],
        *,
        uploading: bool,
        hold: Hold | None = None,
    ) -> None:
        """asked_again: decides whether an answer that is none is sent again, and when. hold: what holds the beginning
        of the answer back, or sees when its content begins."""
        self._x = x
        self._asked_again = asked_again
        self._sent_whole = not uploading  # so that the time from then on is the upstream's
        self._errors: ErrorEvents | None = None  # in a language model's stream
        self._hold = hold
        self._held: Head | None = None  # the answer's, while its beginning is held back
        self._held_dated = False
        self._route = route
        self._client = client
        self._sink = sink
        self.connection = connection
        self._timeouts = timeouts
        self._permit = permit
        self._status = 0  # of the answer; 0: none yet
        self._words: StreamWords | None = None  # of ours, in a stream of events into which they may be put
        self._timer: asyncio.TimerHandle | None = None  # for the client's deadline
        self._tunnel: Tunnel | None = None
        self._retry_after_s = 0.0
        self._filters: list[AnswerFilter] | None = None  # once an answer has begun
        self.outcome: End | None = None
        self._done: Callable[[Relay], None] | None = done
        self.uploading = uploading

    async def upload(self, data: bytes) -> None:
        """Send a piece of the request body; returns when the upstream has room for another."""
        await self.connection.write(data)

    # The upstream's side

    def head(self, head: Head, dated: bool) -> None:
        hold = self._hold
        if hold is not None:
            told = hold.head(head)
            if told is _STARTING and hold.keeps:
                self._held, self._held_dated = head, dated
                return
            if told is not _STARTING:
                self._hold = None
                if told is not _CONTENT and not said_too_late(self._x, head.status, self.connection.heard_at):
                    self._decline(head, f"answered {head.status}")
                    return
        if head.status >= 400 and (again_in_s := self._asked_again(head)) is not None:
            self._hold = None
            self._decline(head, f"answered {head.status} and asked for the request again").again_in_s = again_in_s
            return
        self._pass_head(head, dated)

    def _decline(self, head: Head, reason: str) -> End:
        """Not this answer: another upstream or key may give a better one. Told by ``received``."""
        wait_s = wait_of(head, wall()) if head.status == 429 or head.status == 503 else 0.0
        self.outcome = end = End(Ending.UPSTREAM_FAILED, head.status, reason, None, Failure.DECLINED, wait_s)
        return end

    def _watch(self, hold: Hold, data: bytes) -> bytes:
        """What of the answer goes on, now, while it is not known whether its content has begun."""
        told = hold.data(data)
        head = self._held
        if told is _STARTING:
            return b"" if head is not None else data
        self._hold = self._held = None
        if told is _CONTENT:
            now, x = self.connection.heard_at, self._x
            x.first_token_at = now
            self._permit.answered(now, now - x.connected_at if self._sent_whole else 0.0)
        elif head is not None:
            self._decline(head, "its stream failed before any content").fault = hold.fault
            return b""
        if head is not None:
            self._pass_head(head, self._held_dated)
            return hold.taken()
        return data

    def _pass_head(self, head: Head, dated: bool) -> None:
        self._begin(head)
        if not dated:  # RFC 9110 §6.6.1
            head.headers.append((b"Date", http_date()))
        if head.status == 429 or head.status == 503:
            self._retry_after_s = wait_of(head, wall())
        if self._x.attempts > 1:
            tell_attempts(self._x, head)
        if head.content_length is None or self._route.api != "none":
            self._see_events(head)
        self._route.chain.respond(self._x, head, self.connection.heard_at)
        filters = self._x.filters
        if filters is not None:
            self._filters = filters
            for each in filters:
                each.head(self._x, head)
        self._sink.begin(head)
        if self._client.writing_paused:  # by an earlier answer: there will be no second signal
            self.connection.pause_reading()

    def _begin(self, head: Head) -> None:
        now = self.connection.heard_at
        x = self._x
        x.first_byte_at = now
        self._status = head.status
        # How long an upload took is the client's doing; a model's answer begins with its first token, or comes whole.
        if self._hold is None:
            timed = not x.has_body or (self._sent_whole and self._route.api == "none")
            self._permit.answered(now, now - x.connected_at if timed else 0.0)

    def _see_events(self, head: Head) -> None:
        """See whether this is a stream of events in the clear: a language model's, or one into which words of ours may
        be put, as its length is not told."""
        ours, of_model, ping = self._x.upstream == ENGINE, self._route.api != "none", self._route.config.ping
        if (
            (ours or of_model or ping is not None)
            and (head.get(b"content-type") or b"").lstrip()[:17].lower() == b"text/event-stream"
            and head.get(b"content-encoding") is None
        ):
            if head.content_length is None:
                self._words = StreamWords(ours=ours, of_model=of_model, ping_s=ping)
            if of_model:
                self._errors = ErrorEvents()

    def data(self, data: bytes) -> None:
        if self.outcome is not None:
            return  # declined
        if self._hold is not None and not (data := self._watch(self._hold, data)):
            return
        if self._errors is not None:
            self._errors.feed(data)
        if self._filters is not None:
            data = pass_through(self._filters, data)
            if not data:
                return
        self._sink.data(data)
        if self._words is not None:
            self._words.passed(data)

    def switched(self, head: Head, behind: bytes) -> None:
        self._begin(head)
        # The upstream did what it was asked; how the tunnel ends, in hours perhaps, says nothing about it.
        self._permit.settle(True, self.connection.heard_at)
        self._route.chain.respond(self._x, head, self.connection.heard_at)
        self._sink.switch(head)
        websocket = self._route.config.websocket
        assert websocket is not None
        client = self._client
        assert isinstance(client, ClientConnection)
        transport, early = client.take_over()
        self._tunnel = tunnel = Tunnel(
            (transport, client),
            (self.connection.take_over(), self.connection),
            websocket.idle,
            self._tunnel_ended,
        )
        tunnel.join(early, behind)

    def _tunnel_ended(self, tunnel: Tunnel, reason: str) -> None:
        self._x.bytes_in += tunnel.bytes_in
        self._sink.bytes_out = tunnel.bytes_out
        self._finish(End(Ending.COMPLETE, 101, reason))

    def end(self, trailers: Sequence[tuple[bytes, bytes]]) -> None:
        if self._held is not None:
            self._decline(self._held, "its stream ended before any content")
        if self.outcome is not None:
            return  # declined
        fault = self._errors.end() if self._errors is not None else None
        if fault is None and self._hold is not None:
            fault = Fault.EMPTY
        if self._filters is not None:
            self._x.last_byte_at = self.connection.heard_at
            if rest := finish(self._filters, failed=fault is not None):
                self._sink.data(rest)
        self._sink.end(trailers)
        # Told by ``received``: what came behind the answer decides whether the connection is used again.
        if fault is None:
            self.outcome = End(_COMPLETE, self._status, "", None, None, self._retry_after_s)
        else:
            self.outcome = end = End(Ending.UPSTREAM_ERROR, self._status, fault.value)
            end.fault = fault

    def passed_all(self) -> bool:
        transport = self._client.transport
        return transport is not None and transport.get_write_buffer_size() == 0

    def received(self) -> None:
        if self.outcome is not None:
            self._tell()
        else:
            self._sink.flush()

    def failed(self, failure: Failure, reason: str) -> None:
        """The upstream will not complete its answer."""
        if self._sink.retract():
            self._finish(End(Ending.UPSTREAM_FAILED, 502, reason, None, failure))
            return
        words, last_words = self._words, b""
        if words is not None and failure is Failure.TIMEOUT and self._errors is not None:
            message = f"The upstream {self._x.upstream} was too slow: {reason}."
            last_words = words.refused(refuse(self._x, Kind.UPSTREAM_TIMEOUT, message))
        elif words is not None:
            last_words = words.broken_off()
        self._sink.abort(last_words)
        self._finish(End(Ending.UPSTREAM_ABORTED, self._status, reason, None, failure))

    def broke(self, error: Exception) -> None:
        """A fault of ours while the answer was taken or the request sent."""
        log.error("an answer could not be passed on", exc_info=error)
        self.connection.abort()
        message = "The proxy failed on this request; its log says why."
        self._stop(Ending.INTERNAL, "internal error", refuse(self._x, Kind.INTERNAL, message, close=True))

    # The client's side

    def pause(self) -> None:
        self.connection.pause_reading()

    def resume(self) -> None:
        self.connection.resume_reading()

    def took_all(self) -> bool:
        return self.connection.drained

    def gone(self) -> None:
        """The client left: the upstream stops now, whatever it is doing."""
        if self._tunnel is not None:
            return  # which gives the upstream what is due to it, and ends by itself
        self.connection.abort()
        self._finish(End(Ending.CLIENT_GONE, 499))

    def refuse_body(self, ending: Ending, reply: Reply) -> None:
        """The request body is too large, malformed or late: the upstream must not take half of it for the whole."""
        self.connection.abort()
        self._stop(ending, "request body", reply)

    # The client's deadline, to the instant

    def await_deadline(self, now: float) -> None:
        """Stop the upstream, and tell the client, when its deadline passes: it leaves then."""
        at = stop_at(self._x, self._status > 0)
        if at < inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.outcome is not None or self._tunnel is not None:
            return
        now = monotonic()
        self.check(now)
        if self.outcome is None:
            self.await_deadline(now)

    def forget_deadline(self) -> None:
        """The attempt is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The worker's sweep

    def check(self, now: float) -> None:
        """Hold the upstream to its times, and speak where it has been quiet."""
        x, connection, begun = self._x, self.connection, self._status > 0
        if self._tunnel is not None:
            self._sink.bytes_out = self._tunnel.bytes_out
            self._tunnel.check(now)
            return
        if self._words is not None and not connection.reading_paused:
            self._sink.data(self._words.ping(now, connection.heard_at))
        if now >= stop_at(x, begun):
            # The client's own word, and no fault of the upstream.
            connection.abort()
            self._stop(Ending.REFUSED, "deadline", refuse(x, Kind.DEADLINE, TOO_LATE, should_retry=False))
            return
        since = self._content_since()
        reason = too_slow(x, self._timeouts, connection, now, begun, self.uploading, since)
        if reason:
            self._time_out(reason)

    def _content_since(self) -> float | None:
        """Since when content is waited for of a model's stream that has begun; None: it is not."""
        if self._hold is None:
            return None
        if self._held is None and (not self._status or self.uploading or self.connection.reading_paused):
            return None
        return self._x.connected_at if self._sent_whole else self._x.first_byte_at

    def _time_out(self, reason: str) -> None:
        self.connection.abort()
        if self.outcome is None:
            self.failed(Failure.TIMEOUT, reason)

    def _stop(self, ending: Ending, reason: str, reply: Reply) -> None:
        """End before or in the answer: with ``reply`` if nothing was sent, else by aborting the client."""
        if self.outcome is not None:
            self._tell()
        elif self._sink.retract():
            self._finish(End(ending, reply.status, reason, reply))
        else:
            words = self._words if ending is Ending.REFUSED else None
            self._sink.abort(words.refused(reply) if words is not None else b"")
            self._finish(End(ending, self._status, reason))

    def _finish(self, outcome: End) -> None:
        if self.outcome is None:
            self.outcome = outcome
            if self._filters is not None:
                for each in self._filters:
                    each.broken()
        self._tell()

    def _tell(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self)
