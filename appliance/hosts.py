"""Names and addresses of hosts as certificates carry them, and what a CA may be constrained to.

Pure but for ``own_hosts``, which asks the operating system what this box is called; it sends nothing.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from cryptography import x509

#: How every box calls itself.
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_LOCAL_DOMAINS = ("localhost", "local", "internal", "lan", "home.arpa")
_PRIVATE_NETWORKS = tuple(
    ip_network(network)
    for network in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    )
)


@dataclass(frozen=True, slots=True)
class Host:
    """A DNS name (ASCII, lower case) or an address."""

    value: str | IPv4Address | IPv6Address

    def __str__(self) -> str:
        return str(self.value)

    def general_name(self) -> x509.GeneralName:
        """The entry for a certificate's subjectAltName."""
        return x509.DNSName(self.value) if isinstance(self.value, str) else x509.IPAddress(self.value)


def parse_host(text: str) -> Host:
    """The Host of a name, an internationalised name or an address. Raises ValueError on anything else."""
    try:
        return Host(ip_address(text.strip("[]").partition("%")[0]))
    except ValueError:
        pass
    try:
        name = text.rstrip(".").encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    labels = name.removeprefix("*.").split(".")
    if len(name) > 253 or labels[-1].isdigit() or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is neither a host name nor an address; write one like ai.example.com or 10.0.0.5")
    return Host(name)


def unique(hosts: Iterable[Host]) -> list[Host]:
    """The hosts in their order, each once."""
    return list(dict.fromkeys(hosts))


def own_hosts() -> list[Host]:
    """This box's name and the addresses that it uses towards others, as they are now."""
    hosts = []
    for text in (socket.gethostname(), *_outward_addresses()):
        try:
            hosts.append(parse_host(text))
        except ValueError:
            continue  # a box may be called what no certificate can carry
    return unique(hosts)


def _outward_addresses() -> Iterable[str]:
    """Source addresses of packets to the documentation networks; connecting a datagram socket sends none."""
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                yield probe.getsockname()[0]
        except OSError:
            continue  # no route or no such family


def permitted_subtrees(hosts: Sequence[Host]) -> list[x509.GeneralName]:
    """What a CA made for ``hosts`` may speak for: them, local domains and private networks (RFC 5280, 4.2.1.10)."""
    names = [*_LOCAL_DOMAINS, *(host.value.removeprefix("*.") for host in hosts if isinstance(host.value, str))]
    networks = [*_PRIVATE_NETWORKS, *(ip_network(str(host)) for host in hosts if not isinstance(host.value, str))]
    subtrees: list[x509.GeneralName] = [x509.DNSName(name) for name in dict.fromkeys(names)]
    return subtrees + [x509.IPAddress(network) for network in dict.fromkeys(networks)]


def covers(subtrees: Iterable[x509.GeneralName], host: Host) -> bool:
    """Whether one of a CA's permitted subtrees holds the host. A kind of name without any subtree is free."""
    wanted = host.general_name()
    same_kind = [subtree for subtree in subtrees if isinstance(subtree, type(wanted))]
    return not same_kind or any(_holds(subtree, host) for subtree in same_kind)


def _holds(subtree: x509.GeneralName, host: Host) -> bool:
    if isinstance(host.value, str):
        name = host.value.removeprefix("*.")
        return name == subtree.value or name.endswith(f".{subtree.value}")
    return host.value in subtree.value
