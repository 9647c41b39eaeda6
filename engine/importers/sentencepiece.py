"""A SentencePiece vocabulary of scored pieces as the tokenizer.json that the `tokenizers` package reads.

SentencePiece's BPE joins the two neighbours whose product has the best score. Listed by the score of what they make,
all pairs of pieces that make a piece are merges that say the same. Spaces are spelt ▁, and a character that is no
piece becomes its bytes. Knows no file format.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from engine.manifest import TokenizerFacts

TOKENIZER = "tokenizer.json"
_SPACE = "▁"


def sentencepiece_vocabulary(
    pieces: Sequence[str],
    scores: Sequence[float],
    *,
    special: Mapping[str, int],
    shown: Iterable[str],
    unknown: str,
    prefix: bool,
) -> tuple[TokenizerFacts, bytes]:
    """The facts and the tokenizer.json. special: pieces that text must never become; prefix: whether every text, also
    between control tokens, begins with a space that it does not have."""
    ids = {piece: id_ for id_, piece in enumerate(pieces) if piece not in special}
    marked = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    document: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*marked, {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {unknown: pieces.index(unknown), **ids},
            "merges": _merges(ids, scores, unknown),
        },
    }
    facts = TokenizerFacts(kind="tokenizers", file=TOKENIZER, special=dict(special), shown=tuple(shown))
    return facts, orjson.dumps(document)


def _merges(ids: Mapping[str, int], scores: Sequence[float], unknown: str) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, best score first; equal scores in the order of the ids."""
    found: list[tuple[float, int, int, int]] = []
    texts = list(ids)
    order = {piece: at for at, piece in enumerate(texts)}
    for piece, id_ in ids.items():
        if piece == unknown or is_byte(piece):
            continue
        for at in range(1, len(piece)):
            left, right = order.get(piece[:at]), order.get(piece[at:])
            if left is not None and right is not None:
                found.append((-scores[id_], id_, left, right))
    return [(texts[left], texts[right]) for _, _, left, right in sorted(found)]


def is_byte(piece: str) -> bool:
    """Whether the piece stands for one byte, as <0x0A> does."""
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
