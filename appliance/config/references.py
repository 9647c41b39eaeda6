"""Whether what the configuration names is what it should be: certificates, key and user files, secrets, model folders.

Reads nothing but model folders and SQLite files; the contents of others are handed in, under the names that the
configuration uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from appliance.config.certificates import why_not_ca, why_not_now, why_not_pair
from appliance.config.key_files import check_key_files
from appliance.config.problems import Finding, Loc
from appliance.config.schema import find
from appliance.config.stores import check_stores
from appliance.config.tables import HeadraceConfig, Model
from engine import model_folder
from engine.model_folder import ModelError
from engine.providers import Placement, why_absent
from proxy.config import Certificate, SecretRef
from proxy.config_routes import unknown
from proxy.htpasswd import HtpasswdError, parse_htpasswd


def check_references(config: HeadraceConfig, contents: Mapping[str, bytes], root: Path) -> Iterator[Finding]:
    """Everything named that is not what it should be. What could not be read has been told before."""
    yield from _check_certificates(config, contents)
    yield from _check_secret_names(config)
    yield from check_key_files(config, contents)
    yield from _check_users(config, contents)
    yield from _check_models(config, root)
    yield from check_stores(config)


def check_validity(config: HeadraceConfig, contents: Mapping[str, bytes], now: datetime) -> Iterator[Finding]:
    """Certificates whose time is over or has not come. A pair that cannot be used at all has been told before."""
    for loc, pair in _pairs(config, contents):
        chain = contents[pair.cert]
        if why_not_pair(chain, contents[pair.key]) is None and (message := why_not_now(chain, now)):
            yield (*loc, "cert"), f"{pair.cert} {message}"


def _pairs(config: HeadraceConfig, contents: Mapping[str, bytes]) -> Iterator[tuple[Loc, Certificate]]:
    """Certificates of which both files could be read: those of listeners, and those shown to upstreams."""
    for loc, pair in find(config, HeadraceConfig, lambda value, _: isinstance(value, Certificate)):
        if pair.cert in contents and pair.key in contents:
            yield loc, pair


def _check_certificates(config: HeadraceConfig, contents: Mapping[str, bytes]) -> Iterator[Finding]:
    for loc, pair in _pairs(config, contents):
        if why := why_not_pair(contents[pair.cert], contents[pair.key]):
            yield (*loc, why.part), why.message
    for name, upstream in config.upstreams.items():
        ca_pem = contents.get(upstream.tls.ca or "")
        if ca_pem is not None and (message := why_not_ca(ca_pem)):
            yield ("upstreams", name, "tls", "ca"), message


def _check_secret_names(config: HeadraceConfig) -> Iterator[Finding]:
    for loc, reference in find(config, HeadraceConfig, lambda value, _: isinstance(value, SecretRef)):
        if reference.secret not in config.secrets:
            yield (*loc, "secret"), unknown("secret", reference.secret, config.secrets)


def _check_users(config: HeadraceConfig, contents: Mapping[str, bytes]) -> Iterator[Finding]:
    for index, route in enumerate(config.routes):
        basic = getattr(route.policies, "basic_auth", None)
        if basic is not None and basic.users in contents:
            try:
                parse_htpasswd(contents[basic.users])
            except HtpasswdError as error:
                yield ("routes", index, "policies", "basic_auth", "users"), f"{basic.users}: {error}"


def _why_absent(model: Model) -> str | None:
    from engine.session import installed_providers  # ONNX Runtime: only who wants more than the CPU waits for it

    return why_absent(Placement(model.provider or "cpu", fallback=model.fallback), installed_providers())


def _check_models(config: HeadraceConfig, root: Path) -> Iterator[Finding]:
    """Providers that are not installed; model folders that are missing or damaged, as far as it shows without reading
    the weights."""
    models = config.models
    if models.repository is not None and not (root / models.repository).is_dir():
        yield ("models", "repository"), f"there is no directory {root / models.repository}; make it or name another one"
        return
    for name, model in models.by_name.items():
        if model.provider not in (None, "cpu") and (why := _why_absent(model)):
            yield ("models", name, "provider"), why
        if model.path is None and models.repository is None:
            yield ("models", name, "path"), "is missing; it is required where there is no `models.repository`"
            continue
        path = root / models.path_of(name)
        loc: Loc = ("models", name, *(("path",) if model.path else ()))
        if not path.is_dir():
            advice = "import one with `headrace model pull NAME` or `headrace model import PATH`"
            yield loc, f"there is no model folder {path}; {advice}"
            continue
        try:
            model_folder.read(path)
        except (ModelError, OSError) as error:
            yield loc, " ".join(str(error).split())  # on one line, as every problem
