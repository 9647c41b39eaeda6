"""The ``messages`` of a chat request, validated and put in the one form that templates take.

After it a message has a known role, a string as content (never null: templates print it), and, where they were sent,
``name``, ``tool_calls`` and ``tool_call_id``. Source: OpenAI API reference, chat completions, ``messages``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError, invalid

#: What users call a role -> what templates know.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def parse_messages(value: Any) -> list[dict[str, Any]]:
    """Messages for ``ChatTemplate.encode``. Raises RequestError naming the place."""
    if not isinstance(value, list):
        raise invalid("messages must be a list of messages", "messages")
    if not value:
        raise invalid("messages must hold at least one message", "messages")
    return [_parse_message(item, f"messages[{index}]") for index, item in enumerate(value)]


def _parse_message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object with role and content", where)
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    content = value.get("content")
    if content is None and role != "assistant":
        raise invalid(f"{where}.content must be a string or a list of text parts", f"{where}.content")
    message: dict[str, Any] = {
        "role": _ROLES[role],
        "content": "" if content is None else _parse_content(content, f"{where}.content"),
    }
    for name in ("name", "tool_call_id"):
        if value.get(name) is not None:
            message[name] = _text(value[name], f"{where}.{name}")
    if role == "tool" and "tool_call_id" not in message:
        raise invalid(
            f"{where}.tool_call_id is missing: a tool message says which call it answers", f"{where}.tool_call_id"
        )
    if role == "assistant" and value.get("tool_calls") is not None:
        message["tool_calls"] = _parse_tool_calls(value["tool_calls"], f"{where}.tool_calls")
    return message


def _parse_content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(f"{where} must be a string or a list of text parts", where)
    texts = []
    for index, part in enumerate(value):
        place = f"{where}[{index}]"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise invalid(f"{place} must be a part of type text; this model takes nothing else", f"{place}.type")
        texts.append(_text(part.get("text"), f"{place}.text"))
    return "\n".join(texts)


def _parse_tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise invalid(f"{where} must be a list of tool calls", where)
    return [_parse_tool_call(call, f"{where}[{index}]") for index, call in enumerate(value)]


def _parse_tool_call(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping):
        raise _bad_tool_call(where)
    return {
        "id": _text(value.get("id"), f"{where}.id"),
        "type": "function",
        "function": {
            "name": _text(function.get("name"), f"{where}.function.name"),
            "arguments": _text(function.get("arguments"), f"{where}.function.arguments"),
        },
    }


def _bad_tool_call(where: str) -> RequestError:
    return invalid(f"{where} must be a tool call with id and function", where)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where} must be a string", where)
    return value
