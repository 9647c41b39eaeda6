"""A loaded configuration as the supervisor handles it: a plan for its mind, orders for its children.

Owns the form in which a configuration crosses the control channel, and the descriptor of the access log that goes with
it, opened anew for each load, so that a reload follows a rotated file.
"""

from __future__ import annotations

import base64
import dataclasses
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from appliance.config import Configuration
from appliance.events import Plan
from appliance.resource_error import ResourceError

_STDERR_FD = 2


class Shipment:
    """One configuration, ready to be sent. Raises ResourceError if one of its addresses or files cannot be had."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.plan = Plan(configuration.workers, configuration.effective.drain, fingerprint(configuration))
        self.addresses = [listener.address for listener in configuration.proxy.listeners]
        self.admin_address = configuration.effective.admin.address
        self.log_level: str = configuration.effective.log.level
        self.secret_variables = frozenset(filter(None, (each.env for each in configuration.effective.secrets.values())))
        self.access_log_fd = _open_access_log(configuration.access_log)

    def proxy_order(self, generation: int) -> dict[str, Any]:
        """What a proxy builds, with the socket of the engine's ``generation`` (0: there is no engine)."""
        socket_path = str(self.engine_socket(generation)) if generation else None
        materials = self.configuration.materials
        return {
            "config": self.configuration.proxy.model_copy(update={"engine_socket": socket_path}).model_dump_json(),
            "materials": {name: base64.b64encode(content).decode() for name, content in materials.items()},
            "addresses": self.addresses,
            "log_level": self.log_level,
        }

    def engine_order(self, generation: int) -> dict[str, Any]:
        """What an engine is started with."""
        settings = self.configuration.engine
        assert settings is not None
        settings = dataclasses.replace(settings, socket_path=str(self.engine_socket(generation)))
        return {"settings": settings.to_json(), "log_level": self.log_level}

    def engine_socket(self, generation: int) -> Path:
        """Where the engine of the generation listens."""
        return self.configuration.runtime_dir / f"engine-{generation}.sock"

    def urls(self) -> list[str]:
        """Where to reach it, as one would type it."""
        listeners = self.configuration.proxy.listeners
        return [f"{'https' if listener.tls else 'http'}://{listener.address}" for listener in listeners]

    def all_addresses(self) -> list[str]:
        """Every address to be bound, the admin interface's last."""
        return [*self.addresses, *filter(None, [self.admin_address])]

    def conflicts(self, before: Shipment) -> list[str]:
        """Why it cannot follow ``before`` in a running process."""
        now, then = self.configuration.runtime_dir, before.configuration.runtime_dir
        return [] if now == then else [f"runtime_dir: cannot change from {then} to {now} in a reload; restart headrace"]

    def close(self) -> None:
        """Close the descriptor; what was sent has its own."""
        os.close(self.access_log_fd)


def fingerprint(configuration: Configuration) -> str:
    """Changes with the ``models:`` table and with a model that was imported anew; "" without models."""
    settings = configuration.engine
    if settings is None:
        return ""
    digest = hashlib.sha256(json.dumps(settings.to_json(), sort_keys=True).encode())
    for model in settings.models:
        manifest = Path(model.path) / "model.yaml"
        try:
            digest.update(manifest.read_bytes())
        except OSError as error:
            raise ResourceError(f"model {model.name}: {manifest} cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()


def _open_access_log(target: Path | str) -> int:
    if target == "stderr":
        return os.dup(_STDERR_FD)
    path = os.devnull if target == "off" else target
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hold up the reload
    try:
        fd = os.open(path, flags, 0o640)
    except OSError as error:
        why = "nobody reads the FIFO" if error.errno == errno.ENXIO else error.strerror or error
        raise ResourceError(f"log.access: {path} cannot be written: {why}") from None
    os.set_blocking(fd, True)  # workers write it in a thread of its own
    return fd
