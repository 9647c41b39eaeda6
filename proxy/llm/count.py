"""How many tokens the text of a prompt has, by the one encoder of this process: o200k, which OpenAI's models use.

Text is encoded in pieces, so that nobody else waits for more than one of them, and long text in a thread; where it is
cut, one token may become two. No text is refused and none is special: what looks like a control token is counted as it
is spelt. Other models count differently, by some percent in most languages: whoever judges allows for a margin.
"""

from __future__ import annotations

import asyncio
import gzip
from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distribution
from typing import Final, NamedTuple

import tiktoken

from proxy.exchange import Exchange
from proxy.held_body import body_threads
from proxy.llm.context import ANSWER_TOKENS, MESSAGE_TOKENS

PIECE_CHARACTERS: Final = 4096  # take about 2 ms
_NAME: Final = "prompt_tokens"
_RANKS: Final = "bpe_openai/data/o200k_base.tiktoken.gz"  # of the distribution bpe-openai, whose code is not loaded
#: How text is split before merging: tiktoken's own, of which the ranks would be downloaded.
_LETTERS: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PATTERN: Final = "|".join(
    [
        rf"""[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}*{_LETTERS[1]}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        rf"""[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}+{_LETTERS[1]}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)


class PromptTokens(NamedTuple):
    """exact: counted as the model itself does."""

    tokens: int
    exact: bool


@cache
def encoder() -> tiktoken.Encoding:
    """Reads its ranks when it is first asked for, which takes a good part of a second."""
    with gzip.open(str(distribution("bpe-openai").locate_file(_RANKS))) as lines:
        pairs = (line.split() for line in lines)
        ranks = {b64decode(token): int(rank) for token, rank in pairs}
    return tiktoken.Encoding("o200k", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})


async def count_prompt(x: Exchange) -> PromptTokens:
    """The tokens of a request whose body was read, counted once; 0 if it asks nothing of a language model."""
    known: PromptTokens | None = x.scratch.get(_NAME)
    if known is None:
        llm = x.body.llm if x.body is not None else None
        known = PromptTokens(0, False)
        if llm is not None:
            texts = llm.texts if not llm.tools else (*llm.texts, str(llm.tools))
            if sum(map(len, texts)) <= PIECE_CHARACTERS:
                tokens = count_texts(texts)
            else:
                tokens = await asyncio.get_running_loop().run_in_executor(body_threads(), count_texts, texts)
            around = len(llm.messages) * MESSAGE_TOKENS + (ANSWER_TOKENS if llm.messages else 0)
            known = PromptTokens(tokens + llm.num_token_ids + around, False)
        x.scratch[_NAME] = known
    return known


def count_texts(texts: Sequence[str]) -> int:
    """The tokens of all these texts."""
    encode = encoder().encode_ordinary
    tokens = 0
    for text in texts:
        for at in range(0, len(text), PIECE_CHARACTERS):
            piece = text[at : at + PIECE_CHARACTERS].encode("utf-8", "replace").decode()
            tokens += len(encode(piece))
    return tokens
