"""Where a running headrace keeps its sockets: found the same way by the server and by the commands that call it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.config.document import MAX_BYTES, parse
from appliance.config.files import read, read_bytes
from appliance.config.problems import ConfigurationError, Problem

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


def locate_runtime_dir(path: Path, environ: Mapping[str, str], uid: int) -> tuple[Path, Sequence[Problem]]:
    """The runtime directory of the headrace that serves ``path``; and, if the file cannot be read, why.

    Then it is only likely: another headrace may answer there, and is to be told which file is meant.
    """
    problems: Sequence[Problem] = ()
    try:
        written = read(path)[0].data.get("runtime_dir")
    except ConfigurationError as error:
        written, problems = _likely_written(path), error.problems
    return runtime_dir_of(path, written if isinstance(written, str) else None, environ, uid), problems


def _likely_written(path: Path) -> object:
    """What the one line of a broken file says."""
    try:
        for line in read_bytes(path, MAX_BYTES).splitlines():
            if line.startswith(b"runtime_dir:"):
                return parse(line, str(path)).data["runtime_dir"]
    except ConfigurationError:
        pass
    return None
