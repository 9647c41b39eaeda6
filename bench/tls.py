"""A certificate for 127.0.0.1 and localhost, as the proxies' users make one: ``headrace cert local``."""

from __future__ import annotations

import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def certificate() -> Iterator[str]:
    """A directory with localhost.pem, localhost.key and ca.pem."""
    with tempfile.TemporaryDirectory(prefix="headrace-tls-") as directory:
        command = [sys.executable, "-P", "-m", "appliance.cli", "cert", "local", "--dir", directory]
        subprocess.run(command, check=True, capture_output=True)
        yield directory


def trusting(directory: str) -> ssl.SSLContext:
    """What a client needs to trust that certificate."""
    return ssl.create_default_context(cafile=f"{directory}/ca.pem")
