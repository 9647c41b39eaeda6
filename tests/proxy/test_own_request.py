"""What a request of the edge's own has of the client's for which it is made."""

from __future__ import annotations

from proxy.own_request import _exchange
from tests.proxy.make import exchange


def test_it_waits_as_its_client_does_and_has_nothing_else_of_policies() -> None:
    x = exchange("/v1/chat/completions", method="POST")
    x.scratch = {"priority": "low", "shed": 0.8, "tokens": object()}
    assert _exchange(x, b"{}", {}).scratch == {"priority": "low", "shed": 0.8}
