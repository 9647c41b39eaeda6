"""Streams that say that they failed, however their bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.error_events import MAX_EVENT_BYTES, ErrorEvents, Fault

TEXT = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "say \\"error\\": {} twice"}, "finish_reason": null}]}\n\n'
)
ERROR = b'data: {"error": {"message": "boom", "type": "server_error", "code": null}}\n\n'
DONE = b"data: [DONE]\n\n"


def fault(*pieces: bytes) -> Fault | None:
    seen = ErrorEvents()
    for piece in pieces:
        seen.feed(piece)
    return seen.end()


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (TEXT, None),
        (b'data: {"choices": [], "error": null}\n\n', None),
        (b': "error"\n\n', None),
        (b'data: "error"\n\n', None),
        (ERROR, Fault.FAILED),
        (ERROR.replace(b"\n", b"\r\n"), Fault.FAILED),
        (ERROR.rstrip(), Fault.FAILED),
        (b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n', Fault.REFUSED),
        (b'data: {"error": {"type": "requests", "code": "rate_limit_exceeded"}}\n\n', Fault.REFUSED),
        (b'data: {"error": {"message": "x", "code": 429}}\n\n', Fault.REFUSED),
        (b'data: {"error": {"type": "invalid_request_error", "code": null}}\n\n', Fault.CLIENTS),
        (b'data: {"error": "CUDA out of memory"}\n\n', Fault.FAILED),
        (b'data: {"type": "error", "code": "rate_limit_exceeded", "message": "x", "param": null}\n\n', Fault.REFUSED),
        (b'data: {"type": "response.failed", "response": {"error": {"code": "server_error"}}}\n\n', Fault.FAILED),
        (b'data: {"type": "response.completed", "response": {"error": null}}\n\n', None),
        (b'data: {"error": \n\n', None),
        (b'data: {"choices": [{"delta": {}, "finish_reason": "error"}]}\n\n', Fault.FAILED),
    ],
)
def test_what_an_event_tells_of(event: bytes, told: Fault | None) -> None:
    assert fault(TEXT, event, DONE) is told if event.endswith(b"\n\n") else fault(TEXT, event) is told


@given(st.lists(st.integers(1, 60)), st.booleans())
def test_it_is_found_however_the_stream_is_cut(sizes: list[int], fails: bool) -> None:
    stream = TEXT * 3 + (ERROR if fails else b"") + TEXT + DONE
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    assert fault(*pieces, stream) is (Fault.FAILED if fails else None)


def test_the_first_fault_is_the_one_and_an_endless_event_is_let_go() -> None:
    assert fault(ERROR, b'data: {"error": {"code": 429}}\n\n') is Fault.FAILED
    seen = ErrorEvents()
    for _ in range(3):
        seen.feed(b"x" * MAX_EVENT_BYTES)
        assert len(seen._pending) <= MAX_EVENT_BYTES
    seen.feed(b"\n\n" + ERROR)
    assert seen.end() is Fault.FAILED
