"""Who the client is, by vectors; and B05 through the rate limiter: a header never chooses the bucket."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from proxy.client_address import MAX_HOPS, ClientAddress, counted_as
from tests.proxy.make import chain, exchange, proxy_config, serve

VECTORS = yaml.safe_load((Path(__file__).parents[1] / "vectors/proxy/client_address.yaml").read_text())
LIMITS = {"five": {"requests": "5/min"}}


def resolver(networks: list[str]) -> ClientAddress:
    return ClientAddress("unix" if network == "unix" else ip_network(network) for network in networks)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["id"])
def test_client_address(vector: dict[str, Any]) -> None:
    addresses = resolver(vector.get("trusted", ["10.0.0.0/8", "fd00::/8"]))
    headers = [(b"Host", b"x"), *((b"X-Forwarded-For", line.encode()) for line in vector["lines"])]
    assert addresses.resolve(vector["peer"], headers) == (vector["client"], vector["is_trusted"])


def test_whom_a_listener_trusts_is_written_as_networks_and_one_word() -> None:
    table = {"address": "unix:/run/edge.sock", "trusted_proxies": ["unix", "10.0.0.0/8"]}
    [listener] = proxy_config(listeners=[table]).listeners
    assert listener.model_dump(mode="json")["trusted_proxies"] == table["trusted_proxies"]
    addresses = ClientAddress(listener.trusted_proxies)
    assert addresses.resolve("", [(b"X-Forwarded-For", b"198.51.100.1, 10.0.0.2")]) == ("198.51.100.1", True)
    with pytest.raises(ValidationError):
        proxy_config(listeners=[{**table, "trusted_proxies": ["everybody"]}])


def test_only_a_bounded_number_of_hops_is_walked() -> None:
    addresses = resolver(["10.0.0.0/8"])
    line = b"198.51.100.1" + b",10.0.0.2" * 5000
    assert addresses.resolve("10.0.0.1", [(b"x-forwarded-for", line)]) == ("10.0.0.2", True)
    line = b"198.51.100.1" + b",10.0.0.2" * (MAX_HOPS - 1)
    assert addresses.resolve("10.0.0.1", [(b"x-forwarded-for", line)]) == ("198.51.100.1", True)


@pytest.mark.parametrize(("peer", "suffix"), [("198.51.100.1", ""), ("10.0.0.1", ", 198.51.100.1")])
def test_B05_a_client_cannot_choose_its_bucket(peer: str, suffix: str) -> None:
    addresses = resolver(["10.0.0.0/8"])
    limited = chain({"rate_limit": ["five"]}, limits=LIMITS)
    statuses = []
    for i in range(20):
        x = exchange(headers=[("X-Forwarded-For", f"9.9.9.{i}{suffix}")], peer=peer)
        x.client, x.trusted = addresses.resolve(peer, x.headers)
        statuses.append(serve(limited, x).status)
    assert statuses == [200] * 5 + [429] * 15


def test_an_ipv6_client_is_counted_by_its_network() -> None:
    assert counted_as("2001:db8:1:2:3::4") == counted_as("2001:db8:1:2::5") == "2001:db8:1:2::/64"
    assert counted_as("198.51.100.1") == "198.51.100.1"
    assert counted_as("") == ""
