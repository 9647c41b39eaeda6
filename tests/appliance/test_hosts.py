"""Names and addresses as certificates carry them."""

from __future__ import annotations

import pytest

from appliance.hosts import own_hosts, parse_host


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("AI.Example.com", "ai.example.com"),
        ("example.com.", "example.com"),
        ("*.example.com", "*.example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("10.0.0.5", "10.0.0.5"),
        ("[::1]", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("my_box", "my_box"),
    ],
)
def test_what_is_a_host(text: str, spelt: str) -> None:
    assert str(parse_host(text)) == spelt


@pytest.mark.parametrize(
    "text",
    ["", ".", "a..b", "-a.com", "a b", "https://a.com", "a.com:443", "10.0.0.300", "a" * 64, "*", "a/b", "é" * 300],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a host name nor an address"):
        parse_host(text)


def test_a_box_knows_its_own_names_each_once() -> None:
    assert len(set(own_hosts())) == len(own_hosts())


def test_a_name_that_no_certificate_can_carry_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "my box!")
    assert "my box!" not in map(str, own_hosts())
