"""What a request is told whose prompt somebody here must read and cannot: only its upstream would have known. Pure."""

from __future__ import annotations

from typing import Final

from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Reply
from proxy.llm.request import kind_of

_PLAIN: Final = ("", "identity")


def is_encoded(x: Exchange) -> bool:
    """Whether the body is compressed, or says so."""
    return x.fields.get("Content-Encoding", "").strip().lower() not in _PLAIN


def unreadable(x: Exchange) -> Reply | None:
    """The refusal of a body that was read and not as its path takes it; None: it is, or nobody knows the path."""
    assert x.body is not None
    if kind_of(x.path) == "other":
        return None
    if is_encoded(x):
        message = "Compressed request bodies are not taken on this path. Send it without Content-Encoding."
        return refuse(x, Kind.MEDIA_TYPE, message, headers=((b"Accept-Encoding", b"identity"),))
    if x.body.llm is None:
        return refuse(x, Kind.BAD_REQUEST, "The body is not a JSON object as this path takes it.")
    return None
