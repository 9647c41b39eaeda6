"""How long drafts of the tokens to come are to be, so that they gain more time than they take.

Pure. A draft is verified in the run that reads it: tokens are chosen row by row as ever, as long as they are those of
the draft, so what is chosen has the same distribution, and for a seed the same text, as without drafts. The drafts of a
step are as long as makes it choose the most tokens per second; where a text does not repeat itself there is none.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.llm.cost import StepCost
from engine.llm.lookup import Lookup
from engine.llm.scheduler import Share
from engine.llm.sequence import Sequence

MAX_TOKENS = 16  # of a draft

Drafts = dict[Sequence, list[int]]


def make_drafts(shares: SequenceOf[Share], cost: StepCost, allowance_s: float) -> Drafts:
    """Drafts for a step that only decodes; none when it reads prompts, which the allowance is for then."""
    if not all(sequence.decoding for sequence, _ in shares):
        return {}
    num_before = sum(sequence.num_cached for sequence, _ in shares)
    step_s = cost.decode_s(len(shares), num_before)
    least = cost.draft_s * len(shares) / step_s  # less likely ones come at fewer tokens per second than the step's own
    guesses, chances = [], []
    for sequence, _ in shares:
        if sequence.lookup is None:
            sequence.lookup = Lookup(sequence.tokens)
        sequence.lookup.follow()
        likely = sequence.lookup.chances(min(MAX_TOKENS, sequence.max_tokens - sequence.num_output_tokens - 1), least)
        guess = sequence.lookup.draft(len(likely))
        length = next((at for at, token in enumerate(guess) if token in sequence.end_ids), len(guess))
        guesses.append(guess[:length])  # to read an end, or what comes after it, is of no use
        chances.append(likely[:length])
    if not any(chances):
        return {}
    most = int(cost.planned_s(allowance_s, len(shares), num_before) / cost.draft_s)
    lengths = draft_lengths(chances, step_s=step_s, token_s=cost.draft_s, most=most)
    planned = zip(shares, guesses, lengths, strict=True)
    return {sequence: guess[:length] for (sequence, _), guess, length in planned if length}


def draft_lengths(chances: SequenceOf[SequenceOf[float]], *, step_s: float, token_s: float, most: int) -> list[int]:
    """How long each row's draft has to be so that the step chooses the most tokens per second.

    chances: per row, falling, see ``Lookup.chances``. step_s: of the step without drafts. token_s: what a draft token
    adds. most: of all rows' draft tokens. The likeliest are taken while they come at more per second than the rest.
    """
    lengths = [0] * len(chances)
    likeliest = sorted(((chance, row) for row, falling in enumerate(chances) for chance in falling), reverse=True)
    num_tokens, took_s = float(len(chances)), step_s
    for chance, row in likeliest[:most]:
        if chance * took_s <= token_s * num_tokens:
            break
        lengths[row] += 1
        num_tokens += chance
        took_s += token_s
    return lengths
