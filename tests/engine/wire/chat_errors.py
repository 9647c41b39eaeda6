"""What tests of chat completions share."""

from __future__ import annotations

from typing import Any


def assert_openai_error(body: Any) -> None:
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
