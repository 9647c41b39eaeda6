"""Where a running headrace keeps its sockets: found the same way by the server and by the commands that call it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from appliance.config.files import read
from appliance.config.problems import ConfigurationError

#: A unix socket's path has at most 107 bytes; this leaves room for ``/engine-GENERATION.sock``.
MAX_RUNTIME_DIR_BYTES = 80


def runtime_dir_of(path: Path, written: str | None, environ: Mapping[str, str], uid: int) -> Path:
    """The runtime directory of the configuration at ``path``; ``written``: what the file says, relative to itself.

    Otherwise systemd's, else /run/headrace for root, else one in the user's runtime directory or the temporary
    directory, named by a hash of ``path`` so that two configurations of one user do not meet.
    """
    if written:
        return path.resolve().parent / written
    if given := environ.get("RUNTIME_DIRECTORY"):
        return Path(given.split(":")[0])
    if uid == 0:
        return Path("/run/headrace")
    tag = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    if user_dir := environ.get("XDG_RUNTIME_DIR"):
        return Path(user_dir) / f"headrace-{tag}"
    return Path(tempfile.gettempdir()) / f"headrace-{uid}-{tag}"


def locate_runtime_dir(path: Path, environ: Mapping[str, str], uid: int) -> Path:
    """The runtime directory of the headrace that serves ``path``, even while the file is broken otherwise."""
    try:
        written = read(path)[0].data.get("runtime_dir")
    except ConfigurationError:
        written = None
    return runtime_dir_of(path, written if isinstance(written, str) else None, environ, uid)
