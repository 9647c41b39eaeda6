"""What the configuration names on disk and in the environment: read once, checked, handed on as bytes.

Owns reading: certificates, private keys, key files and secrets, whose contents become ``Materials``, and the question
whether a model folder is there and whole. A relative path starts at the directory of the main file; in Materials it
keeps the name that the configuration gives it. Secret values never enter a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from appliance.config.certificates import why_not_ca, why_not_pair
from appliance.config.files import read_bytes
from appliance.config.problems import ConfigurationError, Loc
from appliance.config.schema import find, has_mark
from appliance.config.tables import HeadraceConfig, Secret
from engine import model_folder
from engine.model_folder import ModelError
from proxy.keys import KeysError, parse_keys

MAX_MATERIAL_BYTES = 16 << 20

#: What is wrong with the value at a location.
Finding = tuple[Loc, str]


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


def check_certificates(config: HeadraceConfig, contents: Mapping[str, bytes]) -> list[Finding]:
    """Certificates and keys that do not belong together, and CA files that hold none."""
    findings: list[Finding] = []
    for index, listener in enumerate(config.listeners):
        for number, pair in enumerate(listener.tls.certificates if listener.tls else ()):
            if pair.cert in contents and pair.key in contents:
                loc: Loc = ("listeners", index, "tls", "certificates", number)
                if why := why_not_pair(contents[pair.cert], contents[pair.key]):
                    findings.append(((*loc, why.part), why.message))
    for name, upstream in config.upstreams.items():
        ca_pem = contents.get(upstream.tls.ca or "")
        if ca_pem is not None and (message := why_not_ca(ca_pem)):
            findings.append((("upstreams", name, "tls", "ca"), message))
    return findings


def check_keys(config: HeadraceConfig, contents: Mapping[str, bytes]) -> list[Finding]:
    """Files of API keys that cannot be used."""
    findings: list[Finding] = []
    for index, route in enumerate(config.routes):
        auth = getattr(route.policies, "auth", None)
        if auth is not None and auth.keys in contents:
            try:
                parse_keys(contents[auth.keys])
            except KeysError as error:
                findings.append((("routes", index, "policies", "auth", "keys"), f"{auth.keys}: {error}"))
    return findings


def check_models(config: HeadraceConfig, root: Path) -> list[Finding]:
    """Model folders that are missing or damaged, as far as it shows without reading the weights."""
    findings: list[Finding] = []
    for name, model in config.models.by_name.items():
        loc: Loc = ("models", name, "path")
        if not (root / model.path).is_dir():
            advice = "import one with `headrace model pull NAME` or `headrace model import PATH`"
            findings.append((loc, f"there is no model folder {root / model.path}; {advice}"))
            continue
        try:
            model_folder.read(root / model.path)
        except (ModelError, OSError) as error:
            findings.append((loc, " ".join(str(error).split())))  # on one line, as every problem
    return findings


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
