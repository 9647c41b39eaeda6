"""The rule that nobody on the network uses the engine, or a key of ours, without a key of their own.

Pure: tables in, findings out.
"""

from __future__ import annotations

from ipaddress import ip_address

from appliance.config.problems import Finding
from appliance.config.tables import HeadraceConfig, Route
from proxy.config_routes import ENGINE, ProxyConfig


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the listening address ``HOST:PORT`` or ``unix:/PATH``."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(config: HeadraceConfig) -> list[Finding]:
    """What is reachable from outside and should not be: routes to the engine without auth, the admin listener."""
    findings: list[Finding] = []
    admin = config.admin.address
    if admin is not None and not is_loopback(admin):
        findings.append((("admin", "address"), f"{admin} is reachable from outside; expected a loopback address"))
    outside = [each.address for each in config.listeners if each.redirect is None and not is_loopback(each.address)]
    for index, route in enumerate(config.routes):
        if outside and _needs_key(route, config) and not _asks_who_it_is(route):
            message = (
                f"serves {route.upstream or 'models'} without a key on {outside[0]}, which is reachable from outside; "
                "make a key with "
                "`headrace keys add` and set `policies: {auth: {keys: FILE}}` or basic_auth, "
                "listen on 127.0.0.1, or set `allow_anonymous: true` if everybody may use it"
            )
            findings.append((("routes", index), message))
    return findings


def _asks_who_it_is(route: Route) -> bool:
    return any(getattr(route.policies, name, None) is not None for name in ("auth", "basic_auth"))


def _needs_key(route: Route, config: HeadraceConfig) -> bool:
    return not route.allow_anonymous and any(_spends(name, config) for name in _upstreams(route, config))


def _upstreams(route: Route, config: HeadraceConfig) -> set[str]:
    """All that may serve the route; by fallbacks and lighter models too, whichever of them there are."""
    if route.models is None:
        return {route.upstream, *_variants(route)} if route.upstream is not None else set()
    return {target.to for table in config.model_routes.values() for target in table.upstreams}


def _variants(route: Route) -> set[str]:
    return {each.to for each in ProxyConfig.variants_of(route) if each.to is not None}


def _spends(name: str, config: HeadraceConfig) -> bool:
    upstream = config.upstreams.get(name)
    return name == ENGINE or (upstream is not None and upstream.key is not None)
