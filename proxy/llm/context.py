"""Whether a prompt and the answer to it fit into a model's context, and what is said if not. Pure.

The arithmetic: prompt and answer share the context, so a request needs the tokens of its prompt and those of its
answer: ``max_tokens`` where it names them, else a reserve, a share of the context, and always at least one. It fits
when both together are no more than the context. A token of byte-level BPE is at least one byte, so text that has fewer
bytes than there is room needs no counting; most requests are decided that way.
"""

from __future__ import annotations

from math import ceil
from typing import Final

#: Tokens of a chat template for each message, and to open the answer: OpenAI's templates take 3 to 4 and 3, ChatML 5
#: and 3. One that takes more is what ``margin`` is for.
MESSAGE_TOKENS: Final = 5
ANSWER_TOKENS: Final = 3
#: By which ``x.scratch`` knows the tokens of what is sent instead of the client's prompt (``count.PromptTokens``).
SENT: Final = "prompt_tokens_sent"
#: The same of (prompt, completion, cached) tokens that requests of ours have used, which were made for it.
USED: Final = "tokens_used_before"


class Need:
    """What a request needs of a context, in tokens. reserved: the answer's were not named by the request."""

    __slots__ = ("answer", "prompt", "reserved")

    def __init__(self, prompt: int, answer: int, reserved: bool) -> None:
        self.prompt = prompt
        self.answer = answer
        self.reserved = reserved

    def fits(self, context: int) -> bool:
        return self.prompt + self.answer <= context


def answer_tokens(context: int, max_tokens: int | None, reserve: float) -> tuple[int, bool]:
    """How many tokens the answer is to have, and whether that is the reserve. reserve: a share of the context."""
    if max_tokens is not None:
        return max(1, max_tokens), False
    return max(1, ceil(reserve * context - 1e-9)), True


def most_tokens(num_bytes: int, num_messages: int, margin: float) -> int:
    """More tokens than text of so many bytes in so many messages can have."""
    return with_margin(num_bytes + num_messages * MESSAGE_TOKENS + ANSWER_TOKENS, margin)


def with_margin(tokens: int, margin: float) -> int:
    """What is reckoned with when another tokenizer than the model's own has counted: so much more, as a share."""
    return ceil(tokens * (1.0 + margin) - 1e-9)


def too_long(need: Need, context: int, *, exact: bool, what: str = "prompt", kept: str | None = None) -> str:
    """The message of a refusal, with the numbers. what: of the request's has so many tokens. kept: a sentence about
    what is not left out of it, where something would be; None: nothing is."""
    about = "" if exact else "about "
    if not need.answer:  # there is none to an embedding
        return f"This model's context is {context} tokens; the {what} has {about}{need.prompt}. Shorten it."
    alone = not need.reserved and need.answer >= context  # no prompt is short enough for that
    if alone and kept is not None:
        asks = f"max_tokens asks {need.answer}, which leaves none for a prompt"
        return f"This model's context is {context} tokens, and {asks}. Lower max_tokens."
    if need.prompt >= context:
        answer = "leaves no token for an answer"
    elif need.reserved:
        answer = f"leaves {context - need.prompt} for an answer, for which {need.answer} are kept free"
    else:
        answer = f"leaves {context - need.prompt} for an answer, of which max_tokens asks {need.answer}"
    if alone:
        advice = "Lower max_tokens." if need.prompt < context else f"Shorten the {what} and lower max_tokens."
    else:
        lower = "" if need.reserved or need.prompt >= context else " or lower max_tokens"
        advice = f"Shorten the {what}{lower}."
    said = f"This model's context is {context} tokens; the {what} has {about}{need.prompt}, which {answer}."
    return f"{said} {kept} {advice}" if kept else f"{said} {advice}"
