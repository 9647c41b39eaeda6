"""What a key that may use some models only may ask of an upstream that is not chosen by model. Pure.

Not among ``policies:``: it stands in the chain of a route with ``auth`` whose answers are language models', where a key
of the file names models; routes ``to: {models: ...}`` judge by what they serve (``by_model``). Other keys' bodies are
not read for it. All models that a request names must be the key's, in its path, its query and its body; one that names
none, or hides it in a body that is not read here, is refused, as it could be for any. Lists of models are shortened to
those that the key may use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import orjson

from proxy.answer_filter import AnswerFilter, add_filter
from proxy.chain import Policy
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Head, Reply
from proxy.keys import Allowed, parse_keys
from proxy.policy.env import PolicyEnv

_MODELS: Final = "/models"
_CLASSIFY: Final = "/classify"  # takes pictures and texts as they are; the query names the model
_MAX_LIST_BYTES: Final = 1 << 20
#: What a list is not asked for by: encoded, or a piece of it, it could not be read.
_OF_A_PIECE: Final = frozenset({b"accept-encoding", b"range", b"if-range"})
_OF_THE_WHOLE: Final = frozenset({b"content-encoding", b"content-range", b"etag", b"content-digest", b"repr-digest"})
_NONE_NAMED: Final = (
    "This API key may use some models only, and the request names none that can be checked: name one in the field"
    " `model` of a JSON body."
)


def build(env: PolicyEnv) -> Policy | None:
    """The policy of one route; None: no key that it takes is bound to models. ``auth`` has read the same file."""
    auth = getattr(env.beside, "auth", None)
    if auth is None or all(entry.allow.models is None for entry in parse_keys(env.materials[auth.keys])):
        return None
    return KeyModels()


class KeyModels(Policy):
    def reads_body(self) -> bool:
        return True

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        if x.body is None or _bounds(x) is None or x.body.json_at_once():
            return None
        return self._read(x)

    async def _read(self, x: Exchange) -> None:
        assert x.body is not None
        await x.body.read_json()

    def admit(self, x: Exchange, now: float) -> Reply | None:
        allowed = _bounds(x)
        if allowed is None:
            return None
        names = [*_of_path(x.path), *_of_query(x.query)]
        document = x.body.json if x.body is not None else None
        if isinstance(document, dict) and "model" in document:
            named = document["model"]
            names.append(named if isinstance(named, str) else "")
        elif x.has_body and not _of_path(x.path) and not (document is None and x.path.endswith(_CLASSIFY)):
            names = []  # whatever the query says, the body may say something else
        if not all(allowed.model(name) for name in names):
            return refuse(x, Kind.MODEL_NOT_FOUND, "There is no such model here for this API key.", param="model")
        if not names and (x.has_body or x.method not in ("GET", "HEAD")):
            return refuse(x, Kind.FORBIDDEN, _NONE_NAMED)
        if x.method == "GET" and x.path.rstrip("/").endswith(_MODELS):
            x.drop |= _OF_A_PIECE
            add_filter(x, _Listed(allowed))
        return None


def _bounds(x: Exchange) -> Allowed | None:
    """What the key may use, if that is not everything."""
    return x.key.allow if x.key is not None and x.key.allow.models is not None else None


def _of_path(path: str) -> list[str]:
    """The models that a path names: of the Open Inference Protocol, or the one that is described."""
    return [unquote(rest.partition("/")[0]) for rest in path.split(_MODELS + "/")[1:] if rest]


def _of_query(query: str) -> list[str]:
    return parse_qs(query, keep_blank_values=True).get("model", [])


class _Listed(AnswerFilter):
    """A list of models without those that are not the key's. What is no list that can be read is not sent at all."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._held = bytearray()
        self._passes = False

    def head(self, x: Exchange, head: Head) -> None:
        self._passes = not 200 <= head.status < 300
        self._held.clear()
        if not self._passes:
            head.content_length = None
            head.headers = [field for field in head.headers if field[0].lower() not in _OF_THE_WHOLE]

    def data(self, data: bytes) -> bytes:
        if self._passes:
            return data
        if len(self._held) <= _MAX_LIST_BYTES:
            self._held += data
        return b""

    def end(self) -> bytes:
        if self._passes:
            return b""
        try:
            document: Any = orjson.loads(self._held) if len(self._held) <= _MAX_LIST_BYTES else {}
        except orjson.JSONDecodeError:
            document = {}
        rows = document.get("data") if isinstance(document, dict) else None
        if not isinstance(rows, list):
            return b'{"object":"list","data":[]}'
        return orjson.dumps({**_plain(document), "data": list(self._own(rows))})

    def _own(self, rows: list[Any]) -> Iterator[Any]:
        for row in rows:
            name = row.get("id") if isinstance(row, dict) else None
            if isinstance(name, str) and self._allowed.model(name):
                yield row


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """What such a list says beside its rows, but for lists: they would name the others."""
    return {name: value for name, value in document.items() if isinstance(value, str | int | float | bool)}
