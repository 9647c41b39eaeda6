"""Fields set and removed, and what an upstream is told about the client."""

from __future__ import annotations

import pytest

from proxy.exchange import Head
from proxy.headers import upstream_request_headers
from tests.proxy.make import Fields, answer, chain, exchange


def forwarded(fields: Fields, *, forward: tuple[str, ...] = ("x-forwarded",), **facts: object) -> dict[str, list[str]]:
    x = exchange(headers=fields, **facts)
    assert answer(chain({"headers": {"forward": list(forward)}}), x).status == 200
    sent: dict[str, list[str]] = {}
    for name, value in upstream_request_headers(x):
        sent.setdefault(name.decode().lower(), []).append(value.decode())
    return sent


def test_B05_an_untrusted_peers_word_is_replaced() -> None:
    sent = forwarded(
        [("X-Forwarded-For", "9.9.9.9"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "evil")],
        authority="a.example:8080",
    )
    assert sent["x-forwarded-for"] == ["203.0.113.7"]
    assert sent["x-forwarded-proto"] == ["http"]
    assert sent["x-forwarded-host"] == ["a.example:8080"]
    assert "forwarded" not in sent


def test_a_trusted_peers_word_is_continued() -> None:
    sent = forwarded(
        [("X-Forwarded-For", "1.1.1.1"), ("x-forwarded-for", "2.2.2.2"), ("X-Forwarded-Proto", "https")],
        peer="10.0.0.1",
        trusted=True,
    )
    assert sent["x-forwarded-for"] == ["1.1.1.1, 2.2.2.2, 10.0.0.1"]
    assert sent["x-forwarded-proto"] == ["https"]
    assert sent["x-forwarded-host"] == ["a.example"]


def test_B01_listing_our_fields_in_connection_does_not_remove_them() -> None:
    sent = forwarded([("Connection", "close, X-Forwarded-For, X-Request-Id"), ("X-Forwarded-For", "9.9.9.9")])
    assert sent["x-forwarded-for"] == ["203.0.113.7"]
    assert sent["x-request-id"] == ["11" * 16]


@pytest.mark.parametrize(("peer", "node"), [("203.0.113.7", "203.0.113.7"), ("2001:db8::1", '"[2001:db8::1]"')])
def test_forwarded_as_rfc_7239_writes_it(peer: str, node: str) -> None:
    sent = forwarded([("Forwarded", "for=9.9.9.9")], forward=("forwarded",), peer=peer, scheme="https")
    assert sent["forwarded"] == [f'for={node};proto=https;host="a.example"']
    assert "x-forwarded-for" not in sent


def test_forwarded_continues_a_trusted_peers() -> None:
    sent = forwarded([("Forwarded", "for=1.1.1.1")], forward=("forwarded", "x-forwarded"), trusted=True)
    assert sent["forwarded"] == ['for=1.1.1.1, for=203.0.113.7;proto=http;host="a.example"']


def test_a_unix_peer_is_unknown() -> None:
    sent = forwarded([], peer="", authority="", forward=("forwarded", "x-forwarded"))
    assert sent["x-forwarded-for"] == ["unknown"]
    assert sent["forwarded"] == ["for=unknown;proto=http"]


def test_request_fields_are_set_and_removed() -> None:
    x = exchange(headers=[("X-A", "theirs"), ("Cookie", "c"), ("X-B", "1")])
    served = chain({"headers": {"request": {"set": {"X-A": "ours", "X-New": "2"}, "remove": ["Cookie"]}}})
    answer(served, x)
    sent = upstream_request_headers(x)
    assert [value for name, value in sent if name == b"X-A"] == [b"ours"]
    assert (b"X-New", b"2") in sent
    assert (b"X-B", b"1") in sent
    assert b"Cookie" not in dict(sent)


def test_response_fields_are_set_and_removed() -> None:
    served = chain({"headers": {"response": {"set": {"X-Frame-Options": "DENY"}, "remove": ["Server"]}}})
    x, head = exchange(), Head(200, [(b"server", b"s"), (b"x-frame-options", b"ALLOW"), (b"Set-Cookie", b"a")])
    served.admit(x, 0.0)
    served.respond(x, head, 0.0)
    own = (b"X-Request-Id", x.request_id.encode())
    assert [field for field in head.headers if field != own] == [(b"Set-Cookie", b"a"), (b"X-Frame-Options", b"DENY")]


@pytest.mark.parametrize(
    ("fields", "buffering", "cache"),
    [
        ([(b"Content-Type", b"text/event-stream")], True, [b"no-transform"]),
        ([(b"Content-Type", b"Text/Event-Stream; charset=utf-8")], True, [b"no-transform"]),
        (
            [(b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-cache")],
            True,
            [b"no-cache", b"no-transform"],
        ),
        (
            [(b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-cache, no-transform")],
            True,
            [b"no-cache, no-transform"],
        ),
        ([(b"Content-Type", b"text/event-stream"), (b"X-Accel-Buffering", b"no")], True, [b"no-transform"]),
        ([(b"Content-Type", b"text/html")], False, []),
        ([], False, []),
    ],
)
def test_event_streams_are_neither_buffered_nor_transformed(
    fields: list[tuple[bytes, bytes]], buffering: bool, cache: list[bytes]
) -> None:
    served, x, head = chain({}), exchange(), Head(200, list(fields))
    served.admit(x, 0.0)
    served.respond(x, head, 0.0)
    assert head.headers.count((b"X-Accel-Buffering", b"no")) == buffering
    assert [value for name, value in head.headers if name == b"Cache-Control"] == cache


def test_events_of_a_known_length_are_no_stream() -> None:
    served, x, head = chain({}), exchange(), Head(200, [(b"Content-Type", b"text/event-stream")], 10)
    served.admit(x, 0.0)
    served.respond(x, head, 0.0)
    assert [name for name, _ in head.headers] == [b"Content-Type", b"X-Request-Id"]
