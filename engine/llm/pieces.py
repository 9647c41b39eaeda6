"""Vocabularies that tiktoken cannot express, by the `tokenizers` package over a tokenizer.json.

Control tokens are taken out of the file before it is used: what the package does not know, no text can become. The
bytes of a piece follow from the file's decoder, so a text that is streamed is the text that is decoded whole.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from engine.llm.byte_pairs import byte_of_character
from engine.manifest import TokenizerFacts

_SPACE = "▁"


def load(file: Path, facts: TokenizerFacts, count: int) -> tuple[list[bytes], Callable[[str], list[int]]]:
    """The bytes of every id below `count`, and the encoder of ordinary text. Raises OSError and ValueError."""
    return read(orjson.loads(file.read_bytes()), facts, count)


def read(
    document: Mapping[str, Any], facts: TokenizerFacts, count: int
) -> tuple[list[bytes], Callable[[str], list[int]]]:
    """The same of a tokenizer.json that is read already. Raises ValueError."""
    try:
        tokens = _tokens(document, set(facts.special.values()), count)
        tokenizer = Tokenizer.from_str(orjson.dumps(_without_control(document, facts.special)).decode())
    except ValueError:
        raise
    except Exception as error:  # the package raises bare Exception, and whatever is not there is a KeyError
        raise ValueError(f"it is no tokenizer.json ({error!r})") from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return tokens, encode


def _without_control(document: Mapping[str, Any], special: Mapping[str, int]) -> dict[str, Any]:
    """The document with every control token spelt so that no text can become it: no piece holds a bare space."""
    model = dict(document["model"])
    if model["type"] == "Unigram":
        hidden = set(special.values())
        model["vocab"] = [
            [f" {id_}" if id_ in hidden else piece, score] for id_, (piece, score) in enumerate(model["vocab"])
        ]
    else:
        model["vocab"] = {_hidden(piece, special): id_ for piece, id_ in model["vocab"].items()}
        model["unk_token"] = _hidden(model.get("unk_token"), special)
    rest: dict[str, Any] = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return {**document, **rest, "model": model}


def _hidden(piece: str | None, special: Mapping[str, int]) -> str | None:
    return f" {special[piece]}" if piece is not None and piece in special else piece


def _tokens(document: Mapping[str, Any], control: set[int], count: int) -> list[bytes]:
    ids = document["model"]["vocab"]
    if document["model"]["type"] == "Unigram":
        ids = {piece: id_ for id_, (piece, _) in enumerate(ids)}
    bytes_of = _spelling(document["decoder"])
    tokens = [b""] * count
    for piece, id_ in ids.items():
        if not 0 <= id_ < count:
            raise ValueError(f"the piece {piece!r} has the id {id_}, beyond the vocabulary of {count}")
        if id_ not in control:
            tokens[id_] = bytes_of(piece)
    return tokens


def _spelling(decoder: Mapping[str, Any]) -> Callable[[str], bytes]:
    """How the decoder turns a piece into bytes. What it cuts off a whole text, a first space, is left where it is."""
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        spelt = byte_of_character()
        return lambda piece: bytes(spelt[character] for character in piece)
    if kinds - {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"} or not kinds & {"Metaspace", "Replace"}:
        raise ValueError(f"the decoder {', '.join(sorted(kinds))} is not supported")
    has_bytes = "ByteFallback" in kinds

    def bytes_of(piece: str) -> bytes:
        if has_bytes and len(piece) == 6 and piece.startswith("<0x"):
            return bytes.fromhex(piece[3:5])
        return piece.replace(_SPACE, " ").encode()

    return bytes_of
