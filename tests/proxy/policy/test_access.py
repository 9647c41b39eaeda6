"""Which addresses pass."""

from __future__ import annotations

import pytest

from tests.proxy.make import chain, exchange, serve

RULES = {
    "only allow": {"allow": ["192.0.2.0/24", "2001:db8::/32"]},
    "only deny": {"deny": ["192.0.2.0/24"]},
    "deny wins": {"allow": ["192.0.2.0/24"], "deny": ["192.0.2.128/25"]},
    "nothing": {},
}


@pytest.mark.parametrize(
    ("rules", "client", "status"),
    [
        ("only allow", "192.0.2.1", 200),
        ("only allow", "2001:db8::1", 200),
        ("only allow", "198.51.100.1", 403),
        ("only allow", "2001:db9::1", 403),
        ("only allow", "", 403),
        ("only deny", "192.0.2.1", 403),
        ("only deny", "198.51.100.1", 200),
        ("only deny", "2001:db8::1", 200),
        ("only deny", "", 200),
        ("deny wins", "192.0.2.1", 200),
        ("deny wins", "192.0.2.200", 403),
        ("nothing", "198.51.100.1", 200),
    ],
)
def test_access(rules: str, client: str, status: int) -> None:
    served = chain({"access": RULES[rules]})
    assert [serve(served, exchange(peer=client)).status for _ in range(2)] == [status] * 2


def test_it_judges_the_client_not_the_proxy_before_it() -> None:
    x = exchange(peer="10.0.0.1", client="192.0.2.1", trusted=True)
    assert serve(chain({"access": {"allow": ["192.0.2.0/24"]}}), x).status == 200
