"""postload sends whole bodies and counts only whole good answers; the search for a rate and the ratios of a run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bench.batching import P99_MS, highest_rate, ratios
from bench.posts import post, render

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Serve = Callable[[socket.socket], None]


@contextmanager
def listening(listener: socket.socket, serve: Serve) -> Iterator[None]:
    """Hands each connection to ``serve``, in a thread of its own."""

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=run, args=(connection,), daemon=True).start()

    def run(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            serve(connection)

    with listener:
        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def read_requests(connection: socket.socket) -> Iterator[tuple[str, bytes]]:
    """(path, body) of each request until the connection ends."""
    unread = b""
    while data := connection.recv(1 << 20):
        unread += data
        head, blank, body = unread.partition(b"\r\n\r\n")
        if blank and len(body) >= (length := int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])):
            assert len(body) == length
            yield head.split()[1].decode(), body
            unread = b""


def answering(answer: bytes, seen: list[tuple[str, bytes]]) -> Serve:
    def serve(connection: socket.socket) -> None:
        for request in read_requests(connection):
            seen.append(request)
            connection.sendall(answer)

    return serve


def ask(answer: bytes, requests: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """What a server that gives this answer has seen, of one connection. Asks for as long as it takes to see it all."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[tuple[str, bytes]] = []
    with listening(listener, answering(answer, seen)):
        for seconds in (0.1, 1.0, 10.0):
            with suppress(SystemExit):
                figures = post(listener.getsockname()[1], requests, connections=1, seconds=seconds)
                assert figures["requests"] > 0
                if len(seen) >= len(requests):
                    return seen
    raise AssertionError(f"only {len(seen)} requests came")


def test_requests_go_out_whole_and_in_turn() -> None:
    requests = [render("/a", b"1"), render("/b", b"x" * 3_000_000, "Accept: */*", content_type="text/plain")]
    seen = ask(GOOD, requests)
    assert [path for path, _ in seen[:4]] == ["/a", "/b", "/a", "/b"][: len(seen)]
    assert {len(body) for path, body in seen if path == "/b"} == {3_000_000}


def test_a_unix_socket_is_asked_alike(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    with listening(listener, answering(GOOD, [])):
        for seconds in (0.1, 1.0, 10.0):
            with suppress(SystemExit):
                assert post(str(tmp_path / "s"), [render("/", b"{}")], connections=2, seconds=seconds)["errors"] == 0
                return
    raise AssertionError("no answer came")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxx", "mean nothing"),
        (b"nonsense\r\n\r\n", "nonsense"),
    ],
)
def test_a_bad_answer_voids_the_run(answer: bytes, says: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listening(listener, answering(answer, [])), pytest.raises(SystemExit, match=says):
        post(listener.getsockname()[1], [render("/", b"{}")], connections=1, seconds=2.0)


def test_an_answer_before_the_request_is_out_is_an_error() -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(GOOD)
        with suppress(OSError):
            while connection.recv(1024):
                connection.settimeout(5)

    listener = socket.create_server(("127.0.0.1", 0))
    with listening(listener, serve), pytest.raises(SystemExit, match="mean nothing"):
        post(listener.getsockname()[1], [render("/", b"x" * 50_000_000)], connections=1, seconds=2.0)


def test_the_highest_rate_is_found_by_halving() -> None:
    asked: list[float] = []

    def p99_ms(per_s: float) -> float:
        asked.append(per_s)
        return P99_MS if per_s <= 70 else P99_MS + 1

    assert highest_rate(p99_ms, 100.0, 4) == 68.75
    assert asked == [50, 75, 62.5, 68.75]
    assert highest_rate(lambda _: float("inf"), 100.0, 3) == 0.0


def test_ratios_take_the_best_loop_and_the_best_peer_and_leave_out_who_is_not_there() -> None:
    rows = [
        {"who": "Headrace", "per_s": 300.0, "idle_p50_ms": 6.0, "rate_at_p99": 200.0},
        {"who": "Headrace, policy: rate", "per_s": 200.0, "rate_at_p99": 100.0},
        {"who": "mosec", "per_s": 240.0, "rate_at_p99": 90.0},
        {"who": "LitServe", "per_s": 100.0, "rate_at_p99": 160.0},
        {"who": "FastAPI, unbatched", "per_s": 150.0, "rate_at_p99": 80.0},
        {"who": "bare loop, 1 rows", "per_s": 200.0, "one_p50_ms": 5.0},
        {"who": "bare loop, 16 rows", "per_s": 400.0, "one_p50_ms": 40.0},
    ]
    assert ratios(rows) == {
        "embed_vs_bare": 0.75,
        "embed_vs_best_peer": 1.25,
        "embed_vs_unbatched": 2.0,
        "embed_rate_at_p99_100ms_vs_best_peer": 1.25,
        "idle_p50_excess_ms": 0.5,
        "adaptive_vs_rate": 1.5,
        "adaptive_rate_at_p99_vs_rate": 2.0,
        "batching_gain_of_bare": 2.0,
    }
    alone = [{key: value for key, value in row.items() if key in ("who", "per_s", "one_p50_ms")} for row in rows[:2]]
    found = ratios([*alone, *rows[5:]])
    assert found["embed_vs_bare"] == 0.75
    assert found["embed_vs_best_peer"] is found["idle_p50_excess_ms"] is found["adaptive_rate_at_p99_vs_rate"] is None
