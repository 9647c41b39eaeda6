"""multipart/form-data, read from bytes that are all there (RFC 7578, RFC 2046 section 5.1).

Pure. Parts are slices of the body, cut where the boundary stands; nothing is decoded but the names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import RequestError, invalid

MAX_PARTS = 512
_MAX_HEAD_BYTES = 8 << 10
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70})(?=[\s;]|$))', re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:[ \t]*form-data[ \t]*;(.*)$", re.IGNORECASE | re.MULTILINE)
_NAME = re.compile(rb'(?:^|;)[ \t]*name=(?:"([^"\r\n]*)"|([^\s;"]+))', re.IGNORECASE)
_ENCODED = re.compile(rb"^content-transfer-encoding:[ \t]*(?!binary|8bit|7bit)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form."""

    name: str
    content: bytes


def parse_form(content_type: str, body: bytes) -> list[Part]:
    """The parts of a form, in their order. content_type: the request's header. Raises RequestError (400)."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise invalid("the Content-Type multipart/form-data needs a boundary of 1 to 70 characters")
    delimiter = b"\r\n--" + (match[1] or match[2]).encode()
    pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 1)
    if len(pieces) > MAX_PARTS + 1:
        raise invalid(f"the form has more than {MAX_PARTS} parts")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise _damaged("its last boundary is missing")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> Part:
    line, separator, rest = piece.partition(b"\r\n")
    if not separator or line.strip(b" \t"):  # only white space may follow a boundary
        raise _damaged("something follows a boundary on its line")
    end = 0 if rest.startswith(b"\r\n") else rest.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
    if end < 0:
        raise _damaged(f"a part has no end of its header within {_MAX_HEAD_BYTES} bytes")
    head = rest[:end].replace(b"\r\n", b"\n")
    disposition = _DISPOSITION.search(head)
    name = _NAME.search(disposition[1]) if disposition else None
    if name is None:
        raise _damaged("a part has no name")
    if _ENCODED.search(head):
        raise _damaged("a part has a Content-Transfer-Encoding; send its bytes as they are")
    return Part((name[1] if name[1] is not None else name[2]).decode("utf-8", "replace"), rest[end + 4 :])


def _damaged(why: str) -> RequestError:
    return invalid(f"the body is not multipart/form-data that can be taken: {why}")
