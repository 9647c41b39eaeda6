"""What is remembered of a client's bytes between two reads, and what is said of them."""

from __future__ import annotations

import pytest
from aiohttp.streams import EMPTY_PAYLOAD

from proxy.body import RequestBody
from proxy.errors import Kind
from proxy.head_watch import HeadWatch
from tests.proxy.make import proxy_config

LIMITS = proxy_config().listeners[0].limits
LINE = b"GET /a HTTP/1.1\r\n"


class Body(RequestBody):
    """So much of a body, which is not complete."""

    received = 0

    @property
    def complete(self) -> bool:
        return False

    @property
    def received_bytes(self) -> int:
        return self.received


def test_a_head_begins_with_its_first_bytes_and_is_over_with_its_last() -> None:
    watch = HeadWatch(LIMITS)
    assert watch.part_of_head(b"GE", 5.0) is None
    assert watch.part_of_head(b"T /a HT", 9.0) is None
    assert watch.head_began_at == 5.0
    watch.head_is_over()
    assert watch.head_began_at == 0.0


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        (LINE, False),
        (b"\r\n" + LINE, False),
        (b"GET  /a HTTP/1.1\r\n", True),
        (b"GET /a RTSP/1.0\r\n", True),
        (b"GET /a HTTP/1.0\r\n", False),
        (b"GET /a  HTTP/1.1\r\n", True),
    ],
)
def test_a_request_line_is_judged_however_it_was_cut(line: bytes, bad: bool) -> None:
    for at in range(len(line)):
        watch = HeadWatch(LIMITS)
        if at:
            assert watch.part_of_head(line[:at], 1.0) is None
        assert watch.has_bad_line(line[at:] + b"Host: x\r\n\r\n", "GET", "/a") is bad


def test_a_line_that_is_not_known_to_stand_there_is_taken_as_parsed() -> None:
    watch = HeadWatch(LIMITS)
    assert watch.behind_heads(LINE + b"Content-Length: 1\r\n\r\n", True, False, 1.0) is None
    assert not watch.has_bad_line(b"x" + LINE, "GET", "/a")
    watch.no_head()
    assert not watch.has_bad_line(b"x" + LINE, "GET", "/a")


def test_what_stands_behind_a_head_is_part_of_the_next_unless_nothing_more_is_heard() -> None:
    for deaf, began_at in ((False, 7.0), (True, 0.0)):
        watch = HeadWatch(LIMITS)
        assert watch.behind_heads(LINE + b"\r\nGET", False, deaf, 7.0) is None
        assert watch.head_began_at == began_at


def test_a_head_without_an_end_is_refused_by_its_size() -> None:
    watch = HeadWatch(LIMITS)
    assert watch.part_of_head(b"x" * (LIMITS.line + LIMITS.headers), 1.0) is None
    refusal = watch.part_of_head(b"x", 1.0)
    assert refusal is not None
    assert refusal.kind is Kind.HEADERS_TOO_LARGE
    assert str(LIMITS.line + LIMITS.headers) in refusal.message


def test_chunk_frames_may_weigh_only_so_much_beside_their_payload() -> None:
    watch, body = HeadWatch(LIMITS), Body(EMPTY_PAYLOAD)
    watch.begin_body()
    assert watch.part_of_chunks(65536, body) is None
    assert watch.part_of_chunks(1, body) is not None
    body.received = 1000
    watch.begin_body()
    assert watch.part_of_chunks(9000, body) is None
