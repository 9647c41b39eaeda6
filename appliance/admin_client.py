"""Calls to a running headrace over its admin socket, for the command line: plain, synchronous, without dependencies."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

SOCKET_NAME = "admin.sock"
CONFIGURATION_HEADER = "Headrace-Configuration"  # an absolute path, percent-encoded
_TIMEOUT_S = 900.0  # a reload may load a large model


class MisdirectedError(ConnectionError):
    """Another headrace answers there; it has done nothing. ``serves``: its configuration file."""

    def __init__(self, serves: str) -> None:
        super().__init__(f"it serves {serves}")
        self.serves = serves


def call(runtime_dir: Path, verb: str, *, configuration: Path | None = None, **arguments: Any) -> dict[str, Any]:
    """Have the headrace of ``runtime_dir`` do ``status``, ``reload``, ``breakers``, ``events``,
    ``variants``, ``models`` or ``stop``; its answer.

    configuration: the file that it must serve, or nothing is done (None: whichever).
    ``reload`` with ``wait=True`` answers once the verdict is there: ``{"ok": bool, "problems": [...], "revision": n}``.
    ``breakers`` takes ``order`` (list, open, close, reset), ``upstream`` (None: all) and ``for_s`` (None: for good).
    ``events`` takes ``after``: the number of the last event that is not wanted.
    ``variants`` takes ``order`` (list, set, reset), ``route`` and ``variant`` (None: all), and ``share`` (0 to 1).
    ``models`` takes ``order`` (list, load, unload, swap), ``name`` and ``path`` (of the folder to swap it for).
    Raises FileNotFoundError or ConnectionError if none answers there, MisdirectedError if one that serves another file
    does, PermissionError if it is somebody else's.
    """
    connection = _UnixConnection(str(runtime_dir / SOCKET_NAME))
    headers = {"Content-Type": "application/json"}
    if configuration is not None:
        headers[CONFIGURATION_HEADER] = quote(os.fsencode(configuration.absolute()))
    try:
        connection.request("POST", f"/{verb}", json.dumps(arguments), headers)
        response = connection.getresponse()
        answer = response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"headrace broke off: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if response.status == http.client.MISDIRECTED_REQUEST:
        raise MisdirectedError(json.loads(answer)["configuration"])
    if response.status != 200:
        raise ConnectionError(f"headrace answered {response.status} to {verb}: {answer.decode(errors='replace')}")
    return dict(json.loads(answer))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("headrace", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
