"""How many tokens the text of a prompt has, as its model's own tokenizer counts, where that is known; else as o200k.

Text is encoded in pieces, so that nobody else waits for more than one of them, and long text in a thread; where it is
cut, one token may become two. No text is refused and none is special: what looks like a control token is counted as it
is spelt. Other models than OpenAI's count differently, by some percent in most languages: whoever judges allows for a
margin. What a conversation says again with every turn is counted once: counts are remembered, texts are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from proxy.config import Table
from proxy.exchange import Exchange
from proxy.held_body import body_threads
from proxy.llm.context import ANSWER_TOKENS, MESSAGE_TOKENS, SENT
from proxy.llm.encodings import TextCounter, text_counter
from proxy.llm.request import LlmRequest

PIECE_CHARACTERS: Final = 4096  # take about 2 ms
_SHORT_BODY_BYTES: Final = 16 << 10  # a longer one may have many messages of little text, each of which takes its time
_NAME: Final = "prompt_tokens"
_REMEMBERED_CHARACTERS: Final = 256  # shorter text is counted sooner than it is found
_MAX_REMEMBERED: Final = 1 << 15  # counts, of 100 bytes or so

CounterOf = Callable[[str], TextCounter]
_known: dict[bytes, int] = {}


class PromptTokens:
    """exact: counted as the model itself does."""

    __slots__ = ("exact", "tokens")

    def __init__(self, tokens: int, exact: bool) -> None:
        self.tokens = tokens
        self.exact = exact


def counters_of(own: Mapping[str, TextCounter], other: TextCounter) -> CounterOf:
    """Which counter is for a model: its own, or the other one. own: by the models' names."""
    return lambda model: own.get(model, other)


def counter_beside(policies: Table | None) -> TextCounter:
    """For models whose own tokenizer is not known, on a route with these ``policies:``; all that count go by what its
    ``tokens`` say, so that nothing is counted twice."""
    tokens = getattr(policies, "tokens", None)
    return text_counter((tokens.encoding if tokens is not None else None) or "o200k")


async def count_prompt(x: Exchange, counter_of: CounterOf | None = None) -> PromptTokens:
    """The tokens of a request whose body was read, counted once; 0 if it asks nothing of a language model. Where a
    shorter prompt is sent instead of the client's, that one's."""
    known = count_at_once(x, counter_of)
    if known is None:
        llm = x.body.llm if x.body is not None else None
        assert llm is not None
        counter = _counter_for(x, llm, counter_of)
        tokens = await asyncio.get_running_loop().run_in_executor(body_threads(), _count_all, llm, counter)
        known = _remember(x, llm, counter, tokens, short=False)
    return known


def count_at_once(x: Exchange, counter_of: CounterOf | None = None) -> PromptTokens | None:
    """The same, where nothing need be waited for; None: ``count_prompt`` must be."""
    sent: PromptTokens | None = x.scratch.get(SENT)
    if sent is not None:
        return sent
    body = x.body
    llm = body.llm if body is not None else None
    if body is None or llm is None:
        return PromptTokens(0, False)
    counter = _counter_for(x, llm, counter_of)
    counted: dict[str, PromptTokens] = x.scratch.get(_NAME) or {}
    known = counted.get(counter.name)
    if known is None:
        if len(body.data or b"") > _SHORT_BODY_BYTES or sum(map(len, llm.texts)) > PIECE_CHARACTERS:
            return None
        known = _remember(x, llm, counter, _count_all(llm, counter), short=True)
    return known


def _counter_for(x: Exchange, llm: LlmRequest, counter_of: CounterOf | None) -> TextCounter:
    return counter_of(x.scratch.get("model") or llm.model) if counter_of is not None else text_counter("o200k")


def _remember(x: Exchange, llm: LlmRequest, counter: TextCounter, tokens: int, *, short: bool) -> PromptTokens:
    """The tokens of a prompt whose texts have so many, known from now on."""
    around = len(llm.messages) * MESSAGE_TOKENS + (ANSWER_TOKENS if llm.messages else 0)
    exact = counter.own and short and not llm.messages and not llm.tools
    known = PromptTokens(tokens + llm.num_token_ids + around, exact)
    x.scratch.setdefault(_NAME, {})[counter.name] = known
    return known


def _count_all(llm: LlmRequest, counter: TextCounter) -> int:
    return count_texts(llm.texts if not llm.tools else (*llm.texts, str(llm.tools)), counter)


async def count_longest(x: Exchange, prompts: Sequence[Any], counter_of: CounterOf) -> PromptTokens:
    """The tokens of the longest of several prompts, texts or lists of token ids, of a request that was read."""
    assert x.body is not None
    assert x.body.llm is not None
    counter = counter_of(x.scratch.get("model") or x.body.llm.model)
    texts = [each for each in prompts if isinstance(each, str)]
    short = sum(map(len, texts)) <= PIECE_CHARACTERS
    if short:
        tokens = _most(texts, counter)
    else:
        tokens = await asyncio.get_running_loop().run_in_executor(body_threads(), _most, texts, counter)
    most_ids = max([len(each) for each in prompts if isinstance(each, list)], default=0)
    return PromptTokens(max(tokens, most_ids), counter.own and short)


def _most(texts: Sequence[str], counter: TextCounter) -> int:
    return max([_count(text, counter) for text in texts], default=0)


async def count_tools(llm: LlmRequest, counter: TextCounter) -> int:
    """The tokens of what a request says of its tools, as ``count_prompt`` counts them with the rest."""
    if not llm.tools:
        return 0
    return await asyncio.get_running_loop().run_in_executor(
        body_threads(), lambda: count_texts((str(llm.tools),), counter)
    )


def count_texts(texts: Sequence[str], counter: TextCounter | None = None) -> int:
    """The tokens of all these texts."""
    counter = counter or text_counter("o200k")
    return sum([_count(text, counter) for text in texts])


def _count(text: str, counter: TextCounter) -> int:
    if len(text) < _REMEMBERED_CHARACTERS:
        return _count_piece(text, counter)
    hashed = blake2b(b"%b\0" % counter.name.encode(), digest_size=16)
    hashed.update(text.encode("utf-8", "replace"))
    digest = hashed.digest()
    tokens = _known.get(digest)
    if tokens is None:
        pieces = [text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS)]
        tokens = sum([_count_piece(piece, counter) for piece in pieces])
        if len(_known) >= _MAX_REMEMBERED:
            _known.clear()
        _known[digest] = tokens
    return tokens


def _count_piece(piece: str, counter: TextCounter) -> int:
    if not piece.isascii():
        piece = piece.encode("utf-8", "replace").decode()  # no tokenizer takes lone surrogates
    try:
        return len(counter.encode(piece))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in the encoders' Rust; no text has more tokens than bytes
        return len(piece.encode())
