"""docs/api.md names every field that a request may have."""

from __future__ import annotations

from pathlib import Path

from engine.wire import classify_request, openai_completion_request, openai_request
from engine.wire.openai_fields import IGNORED

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text()


def test_every_field_is_documented() -> None:
    fields = {
        *openai_request._KNOWN,
        *classify_request._KNOWN,
        *classify_request._FORM,
        *openai_completion_request._KNOWN,
        *IGNORED,
    }
    assert {field for field in fields if f"`{field}`" not in DOCUMENT} == set()
