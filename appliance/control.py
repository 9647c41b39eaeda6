"""The wire between supervisor and child: length and JSON over a socket pair, descriptors beside it (SCM_RIGHTS).

A frame is four bytes of length (network order), then a JSON object. Descriptors travel with the frame's first bytes;
its key ``fds`` says how many they are. Knows nothing of what the messages mean, nor on which event loop it runs: it
asks the loop for readability and writability only.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]

MAX_FRAME_BYTES = 64 << 20  # certificates and keys of a whole configuration
MAX_QUEUED_BYTES = 2 * MAX_FRAME_BYTES  # what a peer that does not read may cost
MAX_FDS = 250  # the kernel takes 253 in one message

_LENGTH = struct.Struct("!I")
_READ_BYTES = 1 << 16


class ChannelError(Exception):
    """The peer broke the protocol, or does not read. The channel is closed."""


class Frames:
    """Bytes and descriptors in, messages out, in whatever pieces they come."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._fds: deque[int] = deque()

    def feed(self, data: bytes, fds: Sequence[int]) -> list[tuple[Message, list[int]]]:
        """The messages that are complete now, each with its descriptors. Raises ChannelError."""
        self._bytes += data
        self._fds.extend(fds)
        complete = []
        while (message := self._next()) is not None:
            wanted = message.pop("fds", 0)
            if wanted > len(self._fds):
                raise ChannelError(f"a frame announces {wanted} descriptors, {len(self._fds)} came")
            complete.append((message, [self._fds.popleft() for _ in range(wanted)]))
        return complete

    def close(self) -> None:
        """Close the descriptors that belong to no message."""
        while self._fds:
            os.close(self._fds.popleft())

    def _next(self) -> Message | None:
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > MAX_FRAME_BYTES:
            raise ChannelError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        try:
            message = json.loads(self._bytes[_LENGTH.size : end])
        except ValueError as error:
            raise ChannelError(f"a frame is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise ChannelError("a frame is not a JSON object")
        del self._bytes[:end]
        return message


def encode(message: Message, num_fds: int = 0) -> bytes:
    """The frame of a message. Raises ChannelError if it is too long or carries too many descriptors."""
    if num_fds > MAX_FDS:
        raise ChannelError(f"{num_fds} descriptors are over the limit of {MAX_FDS} in one message")
    body = json.dumps({**message, "fds": num_fds} if num_fds else message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise ChannelError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Channel:
    """One end of the pair, on the running loop. ``heard(message, fds)`` owns the descriptors it is given."""

    def __init__(
        self,
        sock: socket.socket,
        heard: Callable[[Message, list[int]], None],
        closed: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._heard = heard
        self._closed = closed
        self._frames = Frames()
        self._outbox: deque[tuple[memoryview, list[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send as soon as the peer reads; the descriptors are duplicated at once. After the close: nothing happens.

        A peer that reads nothing until the queue is full has lost the channel.
        """
        if self._sock.fileno() < 0:
            return
        frame = memoryview(encode(message, len(fds)))
        self._outbox.append((frame, [os.dup(fd) for fd in fds]))
        if len(self._outbox) == 1:
            self._write()
        elif sum(len(each) for each, _ in self._outbox) > MAX_QUEUED_BYTES:
            self._loop.call_soon(self._lose)  # not from inside of the sender

    def close(self) -> None:
        """Drop what was not sent, and hear nothing more."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._drop_outbox()
            self._frames.close()
            self._sock.close()

    def _lose(self) -> None:
        if self._sock.fileno() >= 0:
            self.close()
            self._closed()

    def read_rest(self) -> None:
        """Hear at once what the peer has sent before its end."""
        while self._sock.fileno() >= 0 and self._read():
            pass

    def _read(self) -> bool:
        """False: there is nothing more for now."""
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, MAX_FDS)
            complete = self._frames.feed(data, fds)
        except (BlockingIOError, InterruptedError):
            return False
        except (OSError, ChannelError):
            self._lose()
            return False
        for message, its_fds in complete:
            self._heard(message, its_fds)
        if not data:
            self._lose()
        return bool(data)

    def _write(self) -> None:
        while self._outbox:
            frame, fds = self._outbox[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
            try:
                sent = self._sock.sendmsg([frame], rights)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock.fileno(), self._write)
                return
            except OSError:
                self._drop_outbox()  # the peer is gone, and reading will tell
                return
            _close_all(fds)
            self._outbox[0] = (frame[sent:], [])
            if sent == len(frame):
                self._outbox.popleft()
        self._loop.remove_writer(self._sock.fileno())

    def _drop_outbox(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        while self._outbox:
            _close_all(self._outbox.popleft()[1])


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
