"""A request as an endpoint sees it, and the whole answer that it gives. Plain data; knows no socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from engine.http.incoming import Incoming
    from engine.http.stream import Stream

#: What an answer's body is made of.
Piece = bytes | memoryview


class Exchange(Protocol):
    """What a request's connection does for its endpoint."""

    def begin(self, request: Request, headers: Mapping[str, str]) -> Stream:
        """Begin an answer whose length is not known yet."""
        ...


class Request:
    """One request. Names of headers are in lower case; a header that came twice is joined by commas (RFC 9110 5.3)."""

    __slots__ = (
        "_connection",
        "_query",
        "body",
        "headers",
        "keep_alive",
        "method",
        "names",
        "path",
        "stream",
        "version",
    )

    def __init__(
        self,
        connection: Exchange,
        method: str,
        target: str,
        version: str,
        headers: dict[str, str],
        body: Incoming,
        *,
        keep_alive: bool,
    ) -> None:
        """target: path and query, as they were sent."""
        self._connection = connection
        self.method = method
        self.path, _, self._query = target.partition("?")
        self.version = version
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive  # False: the connection ends with the answer
        self.names: Mapping[str, str] = {}  # what stands in the path where its pattern has a name
        self.stream: Stream | None = None  # the answer, once its head is out

    @property
    def content_type(self) -> str:
        """The media type, in lower case and without parameters."""
        return self.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()

    @property
    def query(self) -> dict[str, str]:
        """The query's fields; of one that stands there twice the first."""
        fields: dict[str, str] = {}
        for name, value in parse_qsl(self._query, keep_blank_values=True):
            fields.setdefault(name, value)
        return fields

    def begin(self, headers: Mapping[str, str]) -> Stream:
        """Begin an answer whose length is not known yet; the endpoint returns it when it has ended."""
        self.stream = self._connection.begin(self, headers)
        return self.stream


class Response:
    """A whole answer. body: what lies in several pieces is written from where it lies."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        body: Piece | Sequence[Piece] = b"",
        content_type: str = "application/octet-stream",
        headers: Mapping[str, Any] | None = None,
        status: int = 200,
    ) -> None:
        self.body: Sequence[Piece] = (body,) if isinstance(body, bytes | memoryview) else body
        self.content_type = content_type
        self.headers = headers
        self.status = status
