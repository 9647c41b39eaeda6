"""What is to be classified: JSON, a form or a raw body -> a frozen ClassifyRequest, or a 400 that names the field.

Knows no model: which of a picture and a text a model takes, and what a plain string means to it, is for ``rows_for``
to be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import Kind, RequestError, invalid
from engine.wire.multipart import Part, parse_form
from engine.wire.openai_fields import integer, present, refuse_unsupported

MAX_ROWS = 64
_KNOWN = {"model", "input", "top_k"}
_FORM = {"model", "top_k", "image", "text"}
_MAX_TOP_K = 1000

What = Literal["image", "text"]
WHATS: tuple[What, ...] = ("image", "text")
Raw = bytes | str
Row = Mapping[What, Raw]


@dataclass(frozen=True, slots=True)
class ClassifyRequest:
    """A checked request. An item that is no mapping is whatever the model takes alone."""

    model: str | None
    items: Sequence[Raw | Row]  # at least one
    is_list: bool  # whether they stood in a list, so that an error says which
    top_k: int | None
    ignored: tuple[str, ...] = ()

    def places(self) -> list[str]:
        """Where each item stood."""
        return [f"input[{index}]" for index in range(len(self.items))] if self.is_list else ["input"]

    def rows_for(self, takes: Sequence[What], model: str) -> list[Row]:
        """Each item as a row of just what the model takes. Raises RequestError (400)."""
        rows: list[Row] = []
        for item, place in zip(self.items, self.places(), strict=True):
            if not isinstance(item, Mapping):
                if len(takes) != 1:
                    raise invalid(
                        f'{place}: the model {model!r} takes an image with a text; send {{"image": …, "text": …}}',
                        "input",
                    )
                item = {takes[0]: item}
            for what in WHATS:
                if (what in item) != (what in takes):
                    wants = " and ".join(takes)
                    has = "has" if what in item else "lacks"
                    raise invalid(f"{place} {has} {what}; the model {model!r} takes {wants}", "input")
            rows.append(item)
        return rows


def of_json(body: Mapping[str, Any]) -> ClassifyRequest:
    """``input``: a string, an object with ``image`` and/or ``text``, or a list of either. Raises RequestError (400)."""
    fields = present(body)
    ignored = refuse_unsupported(fields, _KNOWN, {})
    value = fields.get("input")
    is_list = isinstance(value, list)
    items = value if isinstance(value, list) else [value]
    if not items:
        raise invalid("input is an empty list; send something to classify", "input")
    if len(items) > MAX_ROWS:
        raise invalid(f"input has {len(items)} items; at most {MAX_ROWS} are taken at a time", "input")
    top_k = integer(fields, "top_k", 1, low=1, high=_MAX_TOP_K) if "top_k" in fields else None
    return ClassifyRequest(fields.get("model"), [_item(item) for item in items], is_list, top_k, ignored)


def of_form(content_type: str, body: bytes, query: Mapping[str, str]) -> ClassifyRequest:
    """Parts ``image`` (files), ``text``, ``model``, ``top_k``; of several images and texts the first belong together,
    and so on. Raises RequestError (400)."""
    parts = parse_form(content_type, body)
    if unknown := next((part.name for part in parts if part.name not in _FORM), None):
        raise invalid(f"the form has a part {unknown[:64]!r}; it may have {', '.join(sorted(_FORM))}", unknown[:64])
    files = [part.content for part in parts if part.name == "image"]
    texts = [_text(part) for part in parts if part.name == "text"]
    num_rows = max(len(files), len(texts))
    if not num_rows:
        raise invalid("the form has neither an image nor a text", "input")
    if num_rows > MAX_ROWS:
        raise invalid(f"the form has {num_rows} images or texts; at most {MAX_ROWS} are taken at a time", "input")
    if files and texts and len(files) != len(texts):
        raise invalid(f"the form has {len(files)} images and {len(texts)} texts; send one of each for a row", "input")
    rows: list[dict[What, Raw]] = [{} for _ in range(num_rows)]
    for row, file in zip(rows, files, strict=False):
        row["image"] = file
    for row, text in zip(rows, texts, strict=False):
        row["text"] = text
    said = {part.name: _text(part) for part in parts if part.name in ("model", "top_k")}
    return ClassifyRequest(said.get("model", query.get("model")), rows, num_rows > 1, _top_k(said, query))


def of_raw(media_type: str, body: bytes, query: Mapping[str, str]) -> ClassifyRequest:
    """One file or one text as the whole body; the rest in the query. Raises RequestError (400, 415)."""
    if media_type.startswith("text/"):
        rows: list[Row] = [{"text": body}]
    elif media_type.startswith("image/") or media_type == "application/octet-stream":
        rows = [{"image": body}]
    else:
        raise RequestError(
            Kind.MEDIA_TYPE,
            "the body must be JSON, multipart/form-data, an image or text/plain; send its Content-Type",
        )
    return ClassifyRequest(query.get("model"), rows, False, _top_k({}, query))


def _item(value: Any) -> Raw | Row:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value:
        if unknown := next((name for name in value if name not in WHATS), None):
            raise invalid(f"an item of input has the field {unknown[:64]!r}; it may have image and text", "input")
        if all(isinstance(raw, str) for raw in value.values()):
            return value
    raise invalid('input must be a string, {"image": base64, "text": …}, or a list of either', "input")


def _text(part: Part) -> str:
    try:
        return part.content.decode()
    except UnicodeDecodeError:
        raise invalid(f"the part {part.name!r} is not UTF-8", part.name) from None


def _top_k(said: Mapping[str, str], query: Mapping[str, str]) -> int | None:
    value = said.get("top_k", query.get("top_k"))
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:9]) <= _MAX_TOP_K:
        raise invalid(f"top_k must be a whole number from 1 to {_MAX_TOP_K}", "top_k")
    return int(value)
