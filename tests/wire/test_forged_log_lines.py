"""K01: whatever a request holds, it is one line of the access log, which says what was sent, not what it decodes to."""

from __future__ import annotations

import json
import os

from tests.wire.harness import OK, answering, app, edge, raw_upstream

FORGED = b'/%0a127.0.0.1%20-%20"GET%20/admin"%20200'
ALLOWED = b"/%0a127.0.0.1%20-%20%22GET%20/admin%22%20200"
NASTY = b'\x1b[2J\x80\xff"\\'


def get(target: bytes = b"/", *fields: bytes, host: bytes = b"x", method: bytes = b"GET") -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: " + host, b"Connection: close", *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


REQUESTS = [
    get(FORGED),
    get(ALLOWED),
    get(b"/\x1b[2J"),
    get(b"/\x80\xff"),
    get(b"/", b"User-Agent: " + NASTY),
    get(b"/", b'User-Agent: a\x80\xff"\\\xe2\x80\xae'),
    get(b"/", b"User-Agent: " + b"u" * 10_000),
    get(b"/", b"User-Agent: " + b"u" * 100_000),
    get(b"/" + b"a" * 10_000),
    get(b"/" + b"a" * 100_000),
    get(host=b"x" + NASTY),
    get(host=b'x"\n'),
    get(method=b"GE\x1bT"),
    get(method=b'G"'),
    get(b"/", b"X-Request-Id: " + NASTY),
    get(b"/", b'X-Request-Id: a"}\x1f{'),
    get(b"/", b"X-Request-Id: " + b"i" * 5000),
    get(b"/", b"traceparent: 00-" + b"\x1b" * 32 + b"-" + b"0" * 16 + b"-01"),
]


async def test_K01_each_request_is_one_line_of_printable_json_with_its_raw_target() -> None:
    reading, writing = os.pipe()
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port), access_log_fd=writing) as running:
        for request in REQUESTS:
            client = await running.connect()
            await client.send(request)
            await client.rest()
    os.close(writing)
    with os.fdopen(reading, "rb") as log:
        lines = log.read().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == len(REQUESTS)
    for line in lines:
        assert line.isascii()
        assert all(0x20 <= byte < 0x7F for byte in line)
        assert len(line) < 8192
    found = [json.loads(line) for line in lines]
    assert found[1]["target"] == ALLOWED.decode()
    assert found[1]["status"] == 200
    assert not any("/admin" in line["target"] and "%20" not in line["target"] for line in found)
    ids = {line["id"] for line in found}
    assert not any(set(each) & set('"}{\x1b\x1f\\') or len(each) > 256 for each in ids)
