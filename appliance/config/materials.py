"""What the configuration names on disk and in the environment: read once, handed on as bytes.

Owns reading: certificates, private keys, key files and secrets, whose contents become ``Materials``. A relative path
starts at the directory of the main file; in Materials it keeps the name that the configuration gives it. Knows nothing
of what the contents mean; secret values never enter a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from appliance.config.files import read_bytes
from appliance.config.problems import ConfigurationError, Finding
from appliance.config.schema import find, has_mark
from appliance.config.tables import HeadraceConfig, Secret

MAX_MATERIAL_BYTES = 16 << 20


def gather(config: HeadraceConfig, root: Path, environ: Mapping[str, str]) -> tuple[dict[str, bytes], list[Finding]]:
    """(contents by the name the configuration uses, what is wrong), secrets under ``secret:NAME``."""
    contents: dict[str, bytes] = {}
    findings: list[Finding] = []
    for loc, name in find(config, HeadraceConfig, _is_material):
        if name not in contents:
            try:
                contents[name] = _read(root / name)
            except ValueError as error:
                findings.append((loc, str(error)))
    for secret_name, secret in config.secrets.items():
        try:
            contents[f"secret:{secret_name}"] = _secret(secret, root, environ)
        except ValueError as error:
            findings.append((("secrets", secret_name), str(error)))
    return contents, findings


def _is_material(value: object, annotation: object) -> bool:
    return isinstance(value, str) and has_mark(annotation, "material")


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_MATERIAL_BYTES)
    except ConfigurationError as error:
        raise ValueError(f"{path}: {error.problems[0].message}") from None


def _secret(secret: Secret, root: Path, environ: Mapping[str, str]) -> bytes:
    if secret.file is not None:
        value, source = _read(root / secret.file), secret.file
    else:
        source = f"the environment variable {secret.env}"
        value = environ.get(secret.env or "", "").encode()
    value = value.removesuffix(b"\n").removesuffix(b"\r")
    if not value:
        raise ValueError(f"{source} is empty or not set; expected the secret's value")
    if any(byte < 0x21 or byte > 0x7E for byte in value):
        raise ValueError(f"{source} holds a space, a line break or another character that no key has")
    return value
