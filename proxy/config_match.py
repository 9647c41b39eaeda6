"""The tables of ``match``, ``rewrite``, ``redirect`` and ``respond``: what a route takes, and what it does itself.

Owns their vocabulary and what each must hold alone; whether a rewrite or redirect fits the path of its route is judged
in ``proxy.rewrite`` and ``proxy.answers``, which compile them.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from proxy.config import Table
from proxy.patterns import parse_pattern

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(r"[\t\x20-\x7e]*")
_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9_-][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")
#: Of the message itself: made by the proxy, or not what its framing says.
_FRAMING = frozenset(
    {"connection", "content-length", "transfer-encoding", "trailer", "upgrade", "date", "content-type"}
)

Line = Annotated[str, Field(max_length=4096)]


def _path(value: str) -> str:
    return parse_pattern(value).text


def _method(value: str) -> str:
    if not re.fullmatch(r"[A-Z][A-Z-]{0,19}", value):
        raise ValueError(f"{value!r} is not a method; write it in capitals, like GET")
    return value


Path = Annotated[str, Field(max_length=1024), AfterValidator(_path)]
Method = Annotated[str, AfterValidator(_method)]


class ValueMatch(Table):
    """A condition on a value that is not the exact text. One of the two."""

    present: bool | None = None  # it is there, or it is not, whatever its value
    like: Line | None = None  # text in which * stands for any characters

    @model_validator(mode="after")
    def _one(self) -> ValueMatch:
        if (self.present is None) == (self.like is None):
            raise ValueError("expected a text, `present: true`, `present: false`, or `like: TEXT*`")
        return self


Condition = Line | ValueMatch


class Match(Table):
    """What a request must be. All that is said must hold; what is left out is not looked at."""

    host: str | None = None  # "ai.example.com", "*.example.com"; None: any
    path: Path = "/*"  # "/exact", "/prefix/*", "/users/{id}/posts", "/files/{rest*}"
    methods: tuple[Method, ...] = ()  # empty: every method; GET takes HEAD, too
    headers: Annotated[dict[str, Condition], Field(default_factory=dict)]
    query: Annotated[dict[str, Condition], Field(default_factory=dict)]
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0  # before all other rules of order

    @field_validator("host")
    @classmethod
    def _host(cls, value: str | None) -> str | None:
        if value is not None and not _HOST.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a host; write a name like ai.example.com or *.example.com, without port"
            )
        return value

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, Condition]) -> dict[str, Condition]:
        for name in value:
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is not a header name")
            if name.lower() == "host":
                raise ValueError("the Host field is matched by `host`")
        if len({name.lower() for name in value}) < len(value):
            raise ValueError("names one header twice; upper and lower case are the same")
        return value


class QueryChanges(Table):
    """Parameters of the query that are set, after their old ones went, or only removed."""

    set: Annotated[dict[str, Line], Field(default_factory=dict)]  # values may hold placeholders of the path
    remove: tuple[str, ...] = ()


class Rewrite(Table):
    """The request target that the upstream receives: the client's bytes, but for this."""

    strip_prefix: Path | None = None  # what every path of this route begins with
    add_prefix: Path | None = None
    path: Annotated[str, Field(max_length=1024)] | None = None  # instead of the two: a whole path with placeholders
    query: QueryChanges | None = None

    @model_validator(mode="after")
    def _something(self) -> Rewrite:
        if self.path is not None and (self.strip_prefix is not None or self.add_prefix is not None):
            raise ValueError("a `path` says all of it; remove strip_prefix and add_prefix, or path")
        if (self.path, self.strip_prefix, self.add_prefix, self.query) == (None,) * 4:
            raise ValueError("expected strip_prefix, add_prefix, path or query")
        return self

    @field_validator("strip_prefix", "add_prefix")
    @classmethod
    def _prefix(cls, value: str | None) -> str | None:
        if value is not None and (value.endswith("/") or parse_pattern(value).tail or parse_pattern(value).names):
            raise ValueError(f"{value!r} is not a prefix; write /some/path without a slash or * at its end")
        return value


class Redirect(Table):
    """An answer that sends the client elsewhere."""

    to: Annotated[str, Field(min_length=1, max_length=2048)]
    status: Literal[301, 302, 303, 307, 308] = 308  # 307 and 308 keep the method and its body


class Respond(Table):
    """A fixed answer."""

    status: Annotated[int, Field(ge=200, le=599)] = 200
    body: Annotated[str, Field(max_length=65536)] = ""
    content_type: Line = "text/plain; charset=utf-8"  # of a body
    headers: Annotated[dict[str, Line], Field(default_factory=dict)]

    @model_validator(mode="after")
    def _bodiless(self) -> Respond:
        if self.body and self.status in (204, 205, 304):
            raise ValueError(f"an answer {self.status} has no body; remove it or change the status")
        if not _LINE.fullmatch(self.content_type):
            raise ValueError("content_type is not printable ASCII on one line")
        return self

    @field_validator("headers")
    @classmethod
    def _fields(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is not a header name")
            if name.lower() in _FRAMING:
                raise ValueError(f"{name} is made by the proxy; a body's type is `content_type`")
            if not _LINE.fullmatch(text):
                raise ValueError(f"{name}: a header value is printable ASCII on one line")
        return value
