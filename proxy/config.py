"""What the proxy is built from: listeners, upstreams, limits and routes, as pydantic models.

Owns the YAML vocabulary of the edge. Models are strict and frozen, and validated from JSON (``model_validate_json``),
so that a list becomes a tuple and nothing else is coerced; the appliance turns YAML into JSON and problems into line
numbers. Defaults are plain numbers in SI units, input carries its unit (see ``proxy.units``). Knows nothing of sockets
or files: a path is a name under which the worker is handed the bytes (``Materials``).
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from proxy.units import Duration, Percent, RateText, Size

#: Contents of every file that the configuration names, read once by the supervisor: path -> bytes.
Materials = Mapping[str, bytes]

Network = IPv4Network | IPv6Network


class Table(BaseModel):
    """A YAML table: unknown keys are errors, nothing is coerced, nothing changes after it was built."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", validate_default=False)


#: A path to a file that must be readable at ``check``. The marker in the metadata is how the appliance finds it.
MaterialPath = Annotated[str, Field(min_length=1, json_schema_extra={"headrace": "material"})]


class SecretRef(Table):
    """``{secret: NAME}``: a value from the top-level ``secrets`` table. The appliance resolves it into Materials under
    the name ``secret:NAME``; the value itself is never part of the configuration, so dumping it shows no secret."""

    secret: Annotated[str, Field(min_length=1)]


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if value.startswith("unix:"):
        return value
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{value!r} is not an address; write HOST:PORT, [IPV6]:PORT or unix:/PATH")
    return value


Address = Annotated[str, AfterValidator(_address)]


class Certificate(Table):
    cert: MaterialPath
    key: MaterialPath


class Tls(Table):
    certificates: Annotated[tuple[Certificate, ...], Field(min_length=1)]
    min_version: Literal["1.2", "1.3"] = "1.2"


class ListenerLimits(Table):
    """Bounds on what a client may cost before and around its requests."""

    head: Duration = 10.0  # whole request head read -> 408
    body_idle: Duration = 60.0  # no byte of the request body -> 408
    send_idle: Duration = 60.0  # the client takes no byte of the answer -> abort
    keep_alive: Duration = 75.0  # idle between requests -> close
    handshake: Duration = 10.0  # TLS handshake
    line: Size = 16384  # request line -> 414
    header: Size = 16384  # one header line -> 431
    headers: Size = 65536  # all header lines -> 431
    num_headers: Annotated[int, Field(ge=1, le=1000)] = 128  # -> 431
    connections: Annotated[int, Field(ge=1)] = 10000


class Listener(Table):
    address: Address
    tls: Tls | None = None
    redirect: Literal["https"] | None = None
    trusted_proxies: tuple[Network, ...] = ()
    limits: ListenerLimits = ListenerLimits()


class Timeouts(Table):
    connect: Duration = 10.0
    first_byte: Duration = 60.0
    idle: Duration = 60.0
    total: Duration | None = None  # opt-in: a stream may last for hours


class Retry(Table):
    attempts: Annotated[int, Field(ge=1, le=5)] = 2  # tries in all
    budget: Percent = 0.2  # of requests, with a floor of 3


class Breaker(Table):
    window: Duration = 10.0
    min_requests: Annotated[int, Field(ge=1)] = 20
    failures: Percent = 0.5
    open: Duration = 10.0  # first time; doubles to max_open while probes fail
    max_open: Duration = 300.0
    probes: Annotated[int, Field(ge=1, le=100)] = 1  # in flight while half-open


class PassiveHealth(Table):
    """A server with ``fails`` failures running is left out for ``eject``; never more than half of the servers."""

    fails: Annotated[int, Field(ge=1)] = 3
    eject: Duration = 10.0


class UpstreamTls(Table):
    verify: bool = True
    ca: MaterialPath | None = None  # instead of the system's
    server_name: str | None = None


def _server(value: str) -> str:
    scheme, _, rest = value.partition("://")
    if "@" in rest:
        raise ValueError("a server's URL carries no user or password; give the key in `key: {secret: NAME}`")
    if value.startswith("unix:/") or (scheme in ("http", "https") and rest.strip("/") and "/" not in rest.rstrip("/")):
        return value.rstrip("/")
    raise ValueError(f"{value!r} is not a server; write http://HOST:PORT, https://HOST or unix:/PATH, without a path")


class Upstream(Table):
    servers: Annotated[tuple[Annotated[str, AfterValidator(_server)], ...], Field(min_length=1)]
    kind: Literal["http", "openai"] = "http"
    key: SecretRef | None = None  # sent as Authorization: Bearer
    balance: Literal["least_requests"] = "least_requests"
    connections: Annotated[int, Field(ge=1, le=10000)] = 100  # idle kept per server
    keep_alive: Duration = 30.0  # idle life of a pooled connection; keep it below the server's own
    health: PassiveHealth = PassiveHealth()
    breaker: Breaker = Breaker()
    tls: UpstreamTls = UpstreamTls()
    timeouts: Timeouts | None = None  # None: defaults.timeouts
    retry: Retry | None = None  # None: defaults.retry


class Limit(Table):
    """A named rate limit. ``key`` says whose requests are counted together."""

    key: Literal["client", "api_key", "route", "all"] = "client"
    requests: RateText
    burst: Annotated[int, Field(ge=1)] | None = None  # None: the whole count at once
    headers: tuple[Literal["ietf", "x-ratelimit", "openai"], ...] = ("ietf",)


class Match(Table):
    host: str | None = None  # "ai.example.com", "*.example.com"; None: any
    path: str = "/*"  # "/exact" or "/prefix/*"

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        if not value.startswith("/") or "*" in value[:-1] or (value.endswith("*") and not value.endswith("/*")):
            raise ValueError(f"{value!r} is not a path; write /exact or /prefix/*")
        return value


class Defaults(Table):
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
