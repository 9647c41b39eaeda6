"""TLS towards clients: what is spoken, and which certificate is shown to whom."""

from __future__ import annotations

import re
import ssl
from typing import Any

import pytest

from proxy.worker import BuildError
from tests.wire.certificates import certificate
from tests.wire.harness import OK, answering, app, edge, raw_upstream
from tests.wire.tls import CLOSE, MATERIALS, PAIRS, TLS, client_context, der, materials, tls_client

STRICT = {"tls": {**TLS["tls"], "strict": True}}


@pytest.mark.parametrize("name", ["a.example", "A.Example", "x.b.example", "127.0.0.1"])
async def test_the_certificate_is_chosen_by_name_and_the_request_served(name: str) -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge(
            {**app(upstream.port), "listener": {"tls": {**TLS["tls"], "match_host": False}}}, materials=MATERIALS
        ) as running,
    ):
        context = client_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        async with tls_client(running, name, context) as client:
            assert (await client.ask(CLOSE)).endswith(b"\r\n\r\nok")
            assert client.connection.selected_alpn_protocol() == "http/1.1"
        assert b"X-Forwarded-Proto: https" in upstream.heads[0]


@pytest.mark.parametrize("name", ["other.example", "b.example", "x.y.b.example"])
async def test_an_unknown_name_gets_the_first_certificate(name: str) -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        with pytest.raises(ssl.SSLCertVerificationError, match=f"not valid for '{re.escape(name)}'"):
            async with tls_client(running, name):
                pass
        context = client_context()
        context.check_hostname = False
        async with tls_client(running, name, context) as client:
            assert client.shown == der(PAIRS["a"])


@pytest.mark.parametrize("name", ["a.example", "x.b.example"])
async def test_a_strict_listener_serves_the_names_it_has_certificates_for(name: str) -> None:
    async with (
        edge({**app(1), "listener": STRICT}, materials=MATERIALS) as running,
        tls_client(running, name) as client,
    ):
        assert client.connection.version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["other.example", "x.y.b.example", None])
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_a_strict_listener_refuses_other_names_and_none_with_an_alert(name: str | None, version: str) -> None:
    async with edge({**app(1), "listener": STRICT}, materials=MATERIALS) as running:
        context = client_context()
        context.maximum_version = ssl.TLSVersion[version]
        with pytest.raises(ssl.SSLError) as raised:
            async with tls_client(running, name, context):
                pass
        assert raised.value.reason == "TLSV1_UNRECOGNIZED_NAME"


async def test_old_versions_are_not_spoken() -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        context = client_context()
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(ssl.SSLError):
            async with tls_client(running, context=context):
                pass


@pytest.mark.parametrize("name", ["a.example", "x.b.example", "other.example"])
async def test_the_bounds_of_the_listener_hold_whichever_certificate_is_chosen(name: str) -> None:
    listener = {"tls": {**TLS["tls"], "min_version": "1.3"}}
    async with edge({**app(1), "listener": listener}, materials=MATERIALS) as running:
        context = client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            async with tls_client(running, name, context):
                pass


@pytest.mark.parametrize("name", ["a.example", "x.b.example"])
@pytest.mark.parametrize("cipher", ["ECDHE-ECDSA-AES128-SHA256", "DHE-RSA-AES128-GCM-SHA256", "AES128-GCM-SHA256"])
async def test_ciphers_without_forward_secrecy_or_authenticated_encryption_are_refused(name: str, cipher: str) -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        context = client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(cipher)
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
            async with tls_client(running, name, context):
                pass


def get(host: str, target: str = "/") -> bytes:
    """A request for a host."""
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


OTHERS = [get("x.b.example"), get("a.example.evil"), get("a.example", "http://x.b.example/")]


@pytest.mark.parametrize("request_for_another", OTHERS, ids=["Host", "a longer name", "absolute form"])
async def test_G01_a_request_for_another_host_than_the_handshake_is_misdirected(request_for_another: bytes) -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
        tls_client(running) as client,
    ):
        assert (await client.ask(get("a.example"))).endswith(b"ok")
        assert (await client.ask(get("A.Example:443"))).endswith(b"ok")
        client.writer.write(request_for_another)
        assert (await client.reader.readuntil(b"\r\n")) == b"HTTP/1.1 421 Misdirected Request\r\n"
        assert len(upstream.heads) == 2


async def test_G01_a_client_that_named_no_host_in_tls_may_ask_for_every_one() -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
        tls_client(running, None) as client,
    ):
        assert (await client.ask(get("x.b.example"))).endswith(b"ok")


@pytest.mark.parametrize("name", ["x.b.example", "other.example"])
async def test_G01_hosts_need_not_match_where_the_listener_says_so(name: str) -> None:
    listener = {"tls": {**TLS["tls"], "match_host": False}}
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": listener}, materials=MATERIALS) as running,
        tls_client(running) as client,
    ):
        assert (await client.ask(get(name))).endswith(b"ok")


ADDRESS = certificate("127.0.0.1")
UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({**MATERIALS, "/a.pem": b"nothing"}, "/a.pem"),
    (materials(a=(PAIRS["a"][0], PAIRS["b"][1])), "do not belong together"),
    ({k: v for k, v in MATERIALS.items() if k != "/a.key"}, "/a.key"),
]


@pytest.mark.parametrize(("files", "message"), UNUSABLE)
async def test_a_certificate_that_cannot_be_used_is_named(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        async with edge({**app(1), "listener": TLS}, materials=files):
            pass


async def test_a_strict_listener_needs_a_name_to_serve() -> None:
    with pytest.raises(BuildError, match=r"listeners\.0\.tls: no certificate names a host"):
        async with edge({**app(1), "listener": STRICT}, materials=materials(a=ADDRESS, b=ADDRESS)):
            pass


async def test_http_is_redirected_with_method_host_path_and_query() -> None:
    async with edge({**app(1), "listener": {"redirect": "https"}}) as running:
        answer = await running.ask(b"POST /a/../b?c=%20d HTTP/1.1\r\nHost: a.example:80\r\nContent-Length: 2\r\n\r\nhi")
        assert answer.status == 308
        assert answer.get("location") == "https://a.example/b?c=%20d"


async def test_a_redirect_to_https_comes_before_the_policies_of_its_route() -> None:
    policies = {"access": {"allow": ["10.0.0.0/8"]}}
    config = {**app(1), "routes": [{"to": "app", "policies": policies}], "listener": {"redirect": "https"}}
    async with edge(config) as running:
        assert (await running.ask(b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n")).status == 308
