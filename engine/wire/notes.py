"""What an answer says about itself where it is not quite what was asked for: as headers, and as its field ``headrace``.

truncated_tokens: so many tokens of the prompt were cut off, because the request allowed it (``truncate``). max_tokens:
what max_tokens was lowered to, because the context leaves no more. Fields that had no effect are only in a header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.llm.prompts import Prompt
from engine.llm.recipe import Recipe


def notes_on(prompts: Sequence[Prompt], recipe: Recipe, context: int) -> dict[str, int]:
    """The notes on an answer to these prompts. context: tokens of a prompt and its answer."""
    notes: dict[str, int] = {}
    if num_cut := sum(prompt.num_cut for prompt in prompts):
        notes["truncated_tokens"] = num_cut
    room = context - max(len(prompt.tokens) for prompt in prompts)
    if recipe.max_tokens is not None and recipe.max_tokens > room:
        notes["max_tokens"] = room
    return notes


def to_headers(notes: Mapping[str, int], ignored: Sequence[str]) -> dict[str, str]:
    """The same for those who do not read bodies; and the names of the fields that were ignored."""
    headers = {f"headrace-{name.replace('_', '-')}": str(value) for name, value in notes.items()}
    if ignored:
        headers["headrace-ignored"] = ", ".join(ignored)
    return headers
