"""The control channel: frames in any pieces, descriptors beside them, and an end that is heard."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct

import pytest

from appliance.control import MAX_FRAME_BYTES, Channel, ChannelError, Frames, Message, encode


def read_fd(fd: int) -> bytes:
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def pipe_with(content: bytes) -> int:
    """The reading end of a pipe that holds the content."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


class TestFrames:
    @pytest.mark.parametrize("size", [1, 3, 4, 5, 1000])
    def test_messages_come_whole_from_any_pieces(self, size: int) -> None:
        wire = encode({"type": "beat"}) + encode({"type": "configure", "text": "ü" * 50})
        frames, heard = Frames(), []
        for start in range(0, len(wire), size):
            heard += [message for message, _ in frames.feed(wire[start : start + size], [])]
        assert heard == [{"type": "beat"}, {"type": "configure", "text": "ü" * 50}]

    def test_descriptors_go_with_their_own_message(self) -> None:
        wire = encode({"n": 1}, num_fds=1) + encode({"n": 2}) + encode({"n": 3}, num_fds=2)
        assert Frames().feed(wire, [10, 11, 12]) == [({"n": 1}, [10]), ({"n": 2}, []), ({"n": 3}, [11, 12])]

    @pytest.mark.parametrize(
        "wire",
        [
            struct.pack("!I", MAX_FRAME_BYTES + 1),
            struct.pack("!I", 3) + b"{x}",
            struct.pack("!I", 2) + b"[]",
            encode({"type": "configure"}, num_fds=1),
        ],
    )
    def test_what_is_no_frame_is_an_error(self, wire: bytes) -> None:
        with pytest.raises(ChannelError):
            Frames().feed(wire, [])

    def test_a_message_over_the_limits_is_not_sent(self) -> None:
        with pytest.raises(ChannelError, match="over the limit"):
            encode({"text": "x" * MAX_FRAME_BYTES})
        with pytest.raises(ChannelError, match="descriptors"):
            encode({}, num_fds=1000)


class Peer:
    """A channel and what it has heard."""

    def __init__(self, sock: socket.socket) -> None:
        self.messages: asyncio.Queue[tuple[Message, list[int]]] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.channel = Channel(sock, lambda message, fds: self.messages.put_nowait((message, fds)), self.closed.set)


async def test_descriptors_arrive_and_are_the_receivers_own() -> None:
    left, right = map(Peer, socket.socketpair())
    sent = [pipe_with(b"one"), pipe_with(b"two")]
    left.channel.send({"type": "configure"}, sent)
    for fd in sent:
        os.close(fd)
    message, fds = await right.messages.get()
    assert message == {"type": "configure"}
    assert [read_fd(fd) for fd in fds] == [b"one", b"two"]
    left.channel.close()
    await right.closed.wait()


async def test_a_message_larger_than_the_sockets_buffer_arrives_with_its_descriptor_and_in_order() -> None:
    left, right = map(Peer, socket.socketpair())
    fd = pipe_with(b"beside")
    left.channel.send({"n": 1})
    left.channel.send({"n": 2, "text": "x" * 3_000_000}, [fd])
    left.channel.send({"n": 3})
    os.close(fd)
    heard = [await right.messages.get() for _ in range(3)]
    assert [message["n"] for message, _ in heard] == [1, 2, 3]
    assert len(heard[1][0]["text"]) == 3_000_000
    assert read_fd(heard[1][1][0]) == b"beside"
    right.channel.close()
    await left.closed.wait()
    left.channel.send({"n": 4})  # to nobody: no error


async def test_the_last_words_of_a_dead_peer_are_heard() -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(ours)
    theirs.sendall(encode({"type": "fatal"}) + encode({"type": "more"}))
    theirs.close()
    peer.channel.read_rest()
    assert peer.messages.qsize() == 2
    assert peer.closed.is_set()


async def test_a_peer_that_breaks_the_protocol_is_closed() -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(ours)
    theirs.sendall(struct.pack("!I", 5) + b"junk!")
    await peer.closed.wait()
    theirs.close()


def test_a_frame_is_length_and_json() -> None:
    wire = encode({"type": "beat"}, num_fds=2)
    assert struct.unpack("!I", wire[:4]) == (len(wire) - 4,)
    assert json.loads(wire[4:]) == {"type": "beat", "fds": 2}
