"""The instruments see what they are there to see: each is shown something wrong, and must say so."""

from __future__ import annotations

import http.client
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from bench import held, loads, storm
from bench.memory import fit, resident_kib
from bench.processes import cores, instrument, run_json
from bench.proxy import added, faster
from bench.rounds import Figures


@contextmanager
def upstream(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of this process that hands each connection to ``serve``, in a thread of its own. Yields its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:

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

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def read_head(connection: socket.socket) -> bytes:
    """A request without a body, in however many pieces it comes; cut short or empty when the connection ends."""
    head = b""
    while not head.endswith(b"\r\n\r\n") and (data := connection.recv(65536)):
        head += data
    return head


def answering(*pieces: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        while read_head(connection):
            for piece in pieces:
                connection.sendall(piece)

    return serve


def patiently(measure: Callable[[float], Figures], told: Callable[[Figures], object]) -> Figures:
    """What an instrument finds in so many seconds: in a moment, unless the box is too busy for it to find anything."""
    figures = measure(0.1)
    for seconds in (1.0, 10.0):
        if not told(figures):
            figures = measure(seconds)
    return figures


def client(port: int, path: str = "/") -> Figures:
    def measure(seconds: float) -> Figures:
        command = [instrument("getload"), "client", str(port), path, "2", "0", str(seconds)]
        return run_json(command, core=cores()[1])

    return patiently(measure, lambda figures: figures["requests"] or figures["errors"])


# getload


def test_good_answers_count_however_they_are_framed_and_cut() -> None:
    for pieces in (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nxxx",),
        (b"HTTP/1.1 200 OK\r\nTransfer-Enc", b"oding: chunked\r\n\r\n3\r\nxxx\r\n0\r", b"\n\r\n"),
    ):
        with upstream(answering(*pieces)) as port:
            figures = client(port)
        assert figures["errors"] == 0
        assert figures["requests"] > 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_a_bad_answer_is_an_error(answer: bytes) -> None:
    with upstream(answering(answer)) as port:
        figures = client(port)
        assert figures["errors"] > 0
        assert figures["requests"] == 0
        with pytest.raises(SystemExit, match="mean nothing"):
            loads.get(port, "/", connections=1, seconds=0.1)


def test_an_answer_that_breaks_off_is_an_error() -> None:
    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")

    with upstream(serve) as port:
        assert client(port)["errors"] > 0


def test_the_origin_answers_with_the_length_asked_for_and_tells_the_length_of_a_head() -> None:
    with loads.origin(7) as port:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            for path, length in (("/", 7), ("/0", 0), ("/65536", 65536), ("/3000000", 3000000)):
                connection.request("GET", path)
                assert len(connection.getresponse().read()) == length
        head = b"GET /head HTTP/1.1\r\nCookie: a=b\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), 5) as raw:
            raw.sendall(head)
            answer = b""
            while not answer.endswith(f"\r\n\r\n{len(head)}".encode()):
                answer += (more := raw.recv(1000))
                assert more, answer

        def measure(seconds: float) -> Figures:
            try:
                return loads.get(port, "/3000000", connections=2, seconds=seconds)
            except SystemExit:
                return {"mib_per_s": 0.0}

        assert patiently(measure, lambda figures: figures["mib_per_s"])["mib_per_s"] > 0


# sseload


@contextmanager
def stalling(origin_port: int, seconds: float, after_bytes: int) -> Iterator[int]:
    """A proxy that passes bytes on, but holds the answer back once, for so long."""

    def serve(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", origin_port)) as origin:
            origin.sendall(read_head(connection))
            passed, has_stalled = 0, False
            while data := origin.recv(64):  # few, or all of a late answer would have passed before it is looked at
                if passed > after_bytes and not has_stalled:
                    time.sleep(seconds)
                    has_stalled = True
                connection.sendall(data)
                passed += len(data)

    with upstream(serve) as port:
        yield port


def test_a_stall_is_seen_and_a_stream_without_one_is_clean() -> None:
    with loads.event_origin(10, 100, 64) as origin_port, stalling(origin_port, 0.15, 500) as port:
        stalled = loads.read_events(port, streams=2, num_events=10, late_ms=50, tls=False)
        clean = loads.read_events(origin_port, streams=2, num_events=10, late_ms=5000, tls=False)
    assert (stalled["stall_free"], stalled["complete"]) == (0, 2)
    assert stalled["max_ms"] >= 100
    assert (clean["stall_free"], clean["complete"]) == (2, 2)


def test_a_stream_that_lacks_an_event_is_not_complete() -> None:
    with loads.event_origin(10, 100, 64) as origin_port:
        figures = loads.read_events(origin_port, streams=2, num_events=11, late_ms=5000, tls=False)
    assert (figures["stall_free"], figures["complete"]) == (0, 0)


# stormload


def test_what_reaches_the_servers_is_counted_at_the_servers() -> None:
    with storm.failing_servers(1.0) as (control, one, _):
        counts: dict[str, int] = {}

        def measure(seconds: float) -> Figures:
            storm.ask(control, "/reset")
            command = [instrument("stormload"), "client", str(one), "20", "10", str(seconds)]
            figures = run_json(command, core=cores()[1])
            counts.update(storm.ask(control, "/count"))
            return figures

        figures = patiently(measure, lambda figures: figures["offered"] > 50)
    assert counts["requests"] == figures["offered"] > 50
    assert counts["good"] == figures["good"] > 0
    assert counts["refused"] == figures["origin_refused"] > 0
    assert counts["closed"] + counts["reset"] == figures["broken"] > 0
    assert figures["proxy_refused"] == figures["unanswered"] == 0


def test_a_request_sent_twice_is_counted_twice() -> None:
    with storm.failing_servers(1.0) as (control, one, other):
        storm.ask(control, "/reset")
        for port in (one, other):
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                connection.settimeout(5)
                with suppress(ConnectionResetError):
                    connection.recv(1000)
        assert storm.ask(control, "/count")["requests"] == 2


# held


def test_an_answer_that_is_read_by_nobody_is_held_and_an_upload_that_nobody_reads() -> None:
    with loads.origin() as port:
        with held.idle(port, 3), held.unread(port, "/10000000", 3, quiet_s=0.05):
            pass
        with held.uploading(port, 3, quiet_s=0.05):
            pass


def test_a_proxy_that_refuses_what_is_to_be_held_is_seen() -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 128\r\n\r\n" + b"x" * 128
    with upstream(answering(refusal)) as port:
        with pytest.raises(SystemExit, match="429"), held.idle(port, 1):
            pass
        with pytest.raises(SystemExit, match="no answer was begun"), held.unread(port, "/1", 1, quiet_s=0.05):
            pass


def test_a_proxy_that_takes_a_whole_upload_in_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def swallow(connection: socket.socket) -> None:
        while connection.recv(1 << 20):
            pass

    monkeypatch.setattr(held, "_UPLOAD_BYTES", 1 << 20)
    with (
        upstream(swallow) as port,
        pytest.raises(SystemExit, match="taken whole"),
        held.uploading(port, 1, quiet_s=held.TIMEOUT_S),
    ):
        pass


# Memory


def test_memory_that_is_taken_shows() -> None:
    program = "import sys, time; x = bytearray(b'x') * (int(sys.argv[1]) << 20); print(flush=True); time.sleep(60)"
    found = []
    for mib in (1, 33):
        process = subprocess.Popen(["python3", "-c", program, str(mib)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()
            found.append(resident_kib(process.pid))
        process.kill()
        process.wait()
    assert 31 << 10 < found[1] - found[0] < 33 << 10


def test_a_line_has_its_slope_and_error() -> None:
    assert fit([(0, 5), (1, 7), (2, 9)]) == (2, 0)
    flat = fit([(0, 1), (1, -1), (2, -1), (3, 1)])
    assert flat.slope == 0
    assert flat.error == pytest.approx((4 / 2 / 5) ** 0.5)
    for samples in ([], [(0.0, 1.0), (1.0, 1.0)], [(1.0, 1.0)] * 3):
        with pytest.raises(ValueError, match="no line"):
            fit(samples)


# Ratios


def test_added_latency_is_over_the_bare_origin_and_a_ratio_is_to_the_faster_way() -> None:
    p99_ms = {"direct": 1.0, "headrace": 4.0, "nginx": 2.0, "haproxy": 1.0}
    assert added("headrace", "nginx", p99_ms) == 3.0
    assert added("headrace", "haproxy", p99_ms) is None
    assert added("headrace", "plain", p99_ms) is None
    assert faster({"nginx": 3.0, "nginx, buffering": 5.0, "headrace": 9.0}, "nginx") == 5.0
    assert faster({}, "nginx") is None
