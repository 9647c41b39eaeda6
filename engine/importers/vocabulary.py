"""What an importer has found out about a model's vocabulary, in the form in which a model folder keeps it.

Byte-level BPE becomes tiktoken ranks where both say the same: tiktoken merges the pair whose product has the lowest
rank, BPE the pair that stands first among its merges. They agree when ids grow in the order of the merges, so that is
checked, and then the rank of a token is its id. Knows no file format, no weights and no graph.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine import model_folder
from engine.llm.byte_pairs import byte_of_character
from engine.manifest import TokenizerFacts

# Control tokens that end a turn or a text; many files name only one of those that their model was trained to say.
ENDS_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")

# GPT-2's split of text before merging, and the same where every digit is cut out first: then what lies between digits
# is split, so white space before a digit belongs together.
GPT_2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT_2_AND_DIGITS = r"\p{N}|'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class ModelVocabulary:
    """A vocabulary, ready to be written."""

    facts: TokenizerFacts
    content: bytes  # of the file that the facts name
    count: int  # ids that it names or knows
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    chat_template: str | None


def tiktoken_vocabulary(
    ranks: Mapping[bytes, int],
    *,
    pattern: str,
    special: Mapping[str, int],
    shown: Iterable[str],
    unknown_id: int | None,
    nfc: bool = False,
) -> tuple[TokenizerFacts, bytes]:
    """The facts and the file of ranks: base64 of the token, a space, its rank, one a line."""
    facts = TokenizerFacts(
        kind="tiktoken",
        file=model_folder.RANKS,
        pattern=pattern,
        special=dict(special),
        shown=tuple(shown),
        unknown_id=unknown_id,
        nfc=nfc,
    )
    return facts, b"".join(b"%s %d\n" % (b64encode(token), rank) for token, rank in ranks.items())


def ranks_of(ids: Mapping[str, int], merges: Iterable[tuple[str, str]], *, whole: bool) -> dict[bytes, int]:
    """Ranks of the single bytes and of what merges make; other ids can be sampled but never encoded.

    ids: ordinary tokens as GPT-2 spells them. whole: a word that is a token is taken before any merge, as in Llama 3,
    so every token has a rank. Raises ValueError, naming the merge, where the order of ids is not that of the merges.
    """
    spelt = byte_of_character()
    found = {id_ for text, id_ in ids.items() if len(text) == 1 and text in spelt}
    previous = -1
    for number, (left, right) in enumerate(merges):
        id_ = ids.get(left + right)
        if id_ is None or id_ < previous or not spelt.keys() >= set(left + right):
            raise ValueError(f"merge {number} ({f'{left} {right}'!r}) breaks the order of the ids")
        previous = id_
        found.add(id_)
    texts = {id_: text for text, id_ in ids.items() if id_ in found or (whole and text and spelt.keys() >= set(text))}
    return {bytes(spelt[character] for character in texts[id_]): id_ for id_ in sorted(texts)}
