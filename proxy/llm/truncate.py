"""What goes of a prompt that is too long: the oldest turns, then parts of messages; or all but a window. Pure.

A turn begins with what the user says and has all that follows up to the next one, so that nothing is left that
answers a call which is gone. What the system says stays as it is, and the last turn. If these are too long together,
the longest texts of that turn lose sentences and lines. Of a prompt that comes as token ids the oldest go. Tokens are
counted by whoever asks; a message costs some more than its text (``proxy.llm.context``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from proxy.llm.context import ANSWER_TOKENS, MESSAGE_TOKENS
from proxy.llm.places import SYSTEM, places, replaced
from proxy.llm.request import message_texts
from proxy.llm.segments import segments, sentences
from proxy.llm.shorten import Part, shorten
from proxy.llm.windows import text_of, windows

Count = Callable[[str], int]
#: A text is not made shorter than this: what is left says nothing.
_LEAST_TOKENS: Final = 16


class Cut(NamedTuple):
    """value: what the messages or the prompt become. tokens: of all of it."""

    value: Any
    tokens: int


def tokens_of(value: Any, count: Count) -> int:
    """Tokens of messages or of a prompt."""
    if isinstance(value, str):
        return count(value)
    rows = value if isinstance(value, list) else ()
    tokens = ANSWER_TOKENS if any(isinstance(row, dict) for row in rows) else 0
    for row in rows:
        if isinstance(row, dict):
            tokens += _tokens_of_message(row, count)
        else:
            tokens += 1 if isinstance(row, int) else tokens_of(row, count)
    return tokens


def truncated(value: Any, room: int, inside: Part | None, count: Count) -> Cut | None:
    """Messages or a prompt of no more than so many tokens, or prompts of no more each. None: that cannot be. inside:
    what of a text goes; None: no text is torn."""
    if room <= 0:
        return None
    if isinstance(value, list) and value and isinstance(value[0], int):
        return Cut(value[-room:], min(room, len(value)))
    if isinstance(value, list) and value and all(isinstance(each, str | list) for each in value):
        cuts = [truncated(each, room, inside, count) for each in value]
        left = [cut for cut in cuts if cut is not None]
        if len(left) < len(cuts):
            return None
        return Cut([cut.value for cut in left], sum([cut.tokens for cut in left]))
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        value = _newest_turns(value, room, count)
    tokens = tokens_of(value, count)
    if tokens > room and inside is not None:
        value = _shortened(value, tokens, room, inside, count)
        tokens = tokens_of(value, count)
    return Cut(value, tokens) if tokens <= room else None


def last_window(value: Any, room: int, max_len: int, stride: int, count: Count) -> Cut | None:
    """Messages or a prompt of which the longest text is only seen through the last window. None: that does not fit, or
    is no shorter."""
    found = longest(value)
    if found is None:
        return None
    place, text = found
    known = list(segments(sentences(text), max_len, count))
    slices = windows(known, max_len, stride)
    value = replaced(value, place, text_of(known, slices[-1])) if slices else value
    tokens = tokens_of(value, count)
    return Cut(value, tokens) if tokens <= room and len(slices) > 1 else None


def longest(value: Any) -> tuple[Any, str] | None:
    """The longest text of messages or of a prompt, and its place."""
    return max(places(value), key=lambda found: len(found[1].encode("utf-8", "replace")), default=None)


def _newest_turns(messages: Sequence[dict[str, Any]], room: int, count: Count) -> list[dict[str, Any]]:
    """Without the oldest turns that do not fit; the last one always stays."""
    room -= ANSWER_TOKENS + sum(_tokens_of_message(each, count) for each in messages if each.get("role") in SYSTEM)
    begin = len(messages)
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].get("role") in SYSTEM:
            continue
        room -= _tokens_of_message(messages[at], count)
        if room < 0 and begin < len(messages):
            break
        if messages[at].get("role") == "user":
            begin = at
    if begin == len(messages) or room >= 0:
        return list(messages)  # no turn among them, or they fit
    return [each for at, each in enumerate(messages) if at >= begin or each.get("role") in SYSTEM]


def _shortened(value: Any, tokens: int, room: int, inside: Part, count: Count) -> Any:
    """With the longest texts made shorter, one after the other, until all fits or nothing is left to go."""
    known = [(count(text), place, text) for place, text in places(value)]
    for cost, place, text in sorted(known, reverse=True):
        if tokens <= room or cost <= _LEAST_TOKENS:
            break
        left = shorten(text, max(_LEAST_TOKENS, cost - (tokens - room)), inside, count)
        value = replaced(value, place, left)
        tokens += count(left) - cost
    return value


def _tokens_of_message(message: dict[str, Any], count: Count) -> int:
    return MESSAGE_TOKENS + sum(count(text) for text in message_texts(message))
