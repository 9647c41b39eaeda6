"""What the proxy is built from: listeners, upstreams, limits and routes, as pydantic models.

Owns the YAML vocabulary of the edge. Models are strict and frozen, and validated from JSON (``model_validate_json``),
so that a list becomes a tuple and nothing else is coerced; the appliance turns YAML into JSON and problems into line
numbers. Defaults are plain numbers in SI units, input carries its unit (see ``proxy.units``). Knows nothing of sockets
or files: a path is a name under which the worker is handed the bytes (``Materials``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    model_serializer,
    model_validator,
)

from proxy.limit_kinds import check_kind
from proxy.units import Duration, Percent, RateText, Size

#: Contents of every file that the configuration names, read once by the supervisor: path -> bytes.
Materials = Mapping[str, bytes]


def _network(value: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    if isinstance(value, IPv6Network) and value.network_address.ipv4_mapped is not None:
        raise ValueError(f"{value} is IPv4 in the spelling of IPv6 and would match nobody; write it as an IPv4 network")
    return value


Network = Annotated[IPv4Network | IPv6Network, AfterValidator(_network)]


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
    strict: bool = False  # refuse clients that name no host, or one without a certificate
    match_host: bool = True  # a request for another host than the client named in TLS -> 421


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
    connections: Annotated[int, Field(ge=1)] = 10000  # open at once -> 503
    connections_per_client: Annotated[int, Field(ge=1)] = 1000  # of one address (IPv6: /64) -> 429


class Listener(Table):
    address: Address
    tls: Tls | None = None
    redirect: Literal["https"] | None = None
    trusted_proxies: tuple[Network | Literal["unix"], ...] = ()  # "unix": who connects to a unix socket
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
    slow: Duration | None = 0.8  # mean time to the first byte above which it is degraded; None: never


class StatusRange(NamedTuple):
    """Statuses from ``low`` to ``high``, both included."""

    low: int
    high: int


def _status(value: Any) -> StatusRange:
    found = re.fullmatch(r"([1-5]\d\d)(?:-([1-5]\d\d))?", str(value))
    if found is None or isinstance(value, bool) or (found[2] and int(found[2]) < int(found[1])):
        raise ValueError(f"{value!r} is not a status; write one like 200, or a range like 200-399")
    return StatusRange(int(found[1]), int(found[2] or found[1]))


def _spell_status(value: StatusRange) -> str:
    return str(value.low) if value.low == value.high else f"{value.low}-{value.high}"


StatusText = Annotated[
    StatusRange, PlainValidator(_status), PlainSerializer(_spell_status, return_type=str, when_used="json")
]


def _check_path(value: str) -> str:
    if not re.fullmatch(r"/[!-~]*", value):
        raise ValueError(f"{value!r} is not a path to ask for; write /PATH or /PATH?QUERY, in ASCII, without spaces")
    return value


class Health(Table):
    """When a server is left out. Passive: it has ``fails`` failures running, for ``eject``. Active, with a ``path``: it
    is asked every ``interval``, and ``fall`` bad answers running take it out until ``rise`` good ones."""

    fails: Annotated[int, Field(ge=1)] = 3
    eject: Duration = 10.0
    path: Annotated[str, AfterValidator(_check_path)] | None = None
    host: Annotated[str, Field(min_length=1, pattern=r"^[!-~]+$")] | None = None  # None: the server's own
    interval: Annotated[Duration, Field(gt=0)] = 10.0
    timeout: Annotated[Duration, Field(gt=0)] = 5.0
    rise: Annotated[int, Field(ge=1, le=100)] = 2
    fall: Annotated[int, Field(ge=1, le=100)] = 3
    status: Annotated[tuple[StatusText, ...], Field(min_length=1)] = (StatusRange(200, 399),)
    body: Annotated[str, Field(min_length=1, max_length=1000)] | None = None  # within the first 64 KiB


class UpstreamTls(Table):
    verify: bool = True
    ca: MaterialPath | None = None  # instead of the system's
    server_name: str | None = None
    client: Certificate | None = None  # shown to servers that ask for one


def _server(value: str) -> str:
    scheme, _, rest = value.partition("://")
    if "@" in rest:
        raise ValueError("a server's URL carries no user or password; give the key in `key: {secret: NAME}`")
    if value.startswith("unix:/") or (scheme in ("http", "https") and rest.strip("/") and "/" not in rest.rstrip("/")):
        return value.rstrip("/")
    raise ValueError(f"{value!r} is not a server; write http://HOST:PORT, https://HOST or unix:/PATH, without a path")


class UpstreamServer(Table):
    """One server: its URL alone, or a table. A weight of 0 takes nothing new, so that it can be emptied."""

    url: Annotated[str, AfterValidator(_server)]
    weight: Annotated[int, Field(ge=0, le=1000)] = 1

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"url": _server(value)} if isinstance(value, str) else value

    @model_serializer(mode="plain")
    def _spell(self) -> str | dict[str, Any]:
        return self.url if self.weight == 1 else {"url": self.url, "weight": self.weight}


class HashOf(Table):
    """What of a request is hashed: a field's value, or a cookie's."""

    header: Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")] | None = None
    cookie: Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")] | None = None

    @model_validator(mode="after")
    def _one(self) -> HashOf:
        if (self.header is None) == (self.cookie is None):
            raise ValueError("name one of header and cookie")
        return self


def _shape(value: Any) -> str:
    """Which arm of a union of text and table is meant, so that only its problems are told."""
    return "text" if isinstance(value, str) else "table"


class HashBalance(Table):
    """The same server for the same value, as long as the server is there."""

    hash: Annotated[
        Annotated[Literal["client", "path"], Tag("text")] | Annotated[HashOf, Tag("table")], Discriminator(_shape)
    ]


Balance = Annotated[
    Annotated[Literal["least_requests", "round_robin"], Tag("text")] | Annotated[HashBalance, Tag("table")],
    Discriminator(_shape),
]


class Dns(Table):
    """Names of servers. The system's resolver does not tell how long an answer holds, so it is said here."""

    ttl: Annotated[Duration, Field(gt=0)] = 30.0


class Upstream(Table):
    servers: Annotated[tuple[UpstreamServer, ...], Field(min_length=1)]
    kind: Literal["http", "openai"] = "http"
    key: SecretRef | None = None  # sent as Authorization: Bearer
    spare_keys: Annotated[tuple[SecretRef, ...], Field(max_length=15)] = ()  # used while those before are refused
    balance: Balance = "least_requests"
    connections: Annotated[int, Field(ge=1, le=10000)] = 100  # idle kept per server
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 10000  # open to each server, by each worker
    pending: Annotated[int, Field(ge=0, le=1_000_000)] = 1000  # requests waiting for one of them -> 503
    pending_timeout: Duration = 5.0  # for so long -> 503
    dns: Dns = Dns()
    keep_alive: Duration = 30.0  # idle life of a pooled connection; keep it below the server's own
    health: Health = Health()
    breaker: Breaker = Breaker()
    tls: UpstreamTls = UpstreamTls()
    timeouts: Timeouts | None = None  # None: defaults.timeouts
    retry: Retry | None = None  # None: defaults.retry


LimitKey = Annotated[str, AfterValidator(check_kind)]


class Limit(Table):
    """A named rate limit. ``key`` says whose requests are counted together: of several, those that agree in all."""

    key: Annotated[
        Annotated[LimitKey, Tag("text")]
        | Annotated[tuple[LimitKey, ...], Field(min_length=1, max_length=8), Tag("table")],
        Discriminator(_shape),
    ] = "client"
    requests: RateText | None = None
    tokens: RateText | None = None  # of language models, as the policy ``tokens`` counts them
    burst: Annotated[int, Field(ge=1)] | None = None  # None: the whole count at once; of requests, if these are limited
    algorithm: Literal["gcra", "sliding"] = "gcra"  # sliding: exact in any window, without a burst
    dry_run: bool = False  # counts, and refuses nobody
    jitter: Percent | None = None  # how much longer the waits that are told may be; None: 20% where clients share it
    headers: tuple[Literal["ietf", "x-ratelimit", "openai"], ...] = ("ietf",)

    @property
    def kinds(self) -> tuple[str, ...]:
        """``key`` as a combination, of one in most cases."""
        return (self.key,) if isinstance(self.key, str) else self.key

    @model_validator(mode="after")
    def _whole(self) -> Limit:
        if self.requests is None and self.tokens is None:
            raise ValueError("say how many: `requests: 600/min`, `tokens: 100000/min`, or both")
        if self.algorithm == "sliding" and self.burst is not None:
            raise ValueError(
                "a sliding window has no burst: its whole count may come at once; remove burst, or use gcra"
            )
        if self.algorithm == "sliding" and max(rate.events for rate in (self.requests, self.tokens) if rate) >= 1 << 30:
            raise ValueError(f"a sliding window counts to {(1 << 30) - 1} at most; use gcra")
        return self


class Defaults(Table):
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
