"""What only the kernel knows of a connection: that its peer has reset it, and what it still holds for that peer."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios


def was_reset(transport: asyncio.Transport) -> bool:
    """Whether the peer of a connection that is not read from has reset it. The event loop would not hear of it."""
    sock = transport.get_extra_info("socket")
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    except (AttributeError, OSError, ValueError):  # no socket, or closed meanwhile
        return False


def in_kernel(transport: asyncio.Transport) -> int:
    """Bytes that the kernel still holds for a peer. It takes more only when a third of its buffer, which may be
    megabytes, is free: a slow client would seem to stand still for a minute."""
    sock = transport.get_extra_info("socket")
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (AttributeError, OSError, ValueError):  # no socket, or closed meanwhile
        return 0
