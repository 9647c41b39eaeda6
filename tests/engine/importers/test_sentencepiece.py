"""SentencePiece's scored pieces: ids as its own algorithm gives them, bytes as its own decoder does."""

import random
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.importers.gguf import import_gguf
from engine.importers.sentencepiece import sentencepiece_vocabulary
from engine.llm import pieces
from engine.llm.vocabulary import load_vocabulary
from tests.engine.tiny_gguf import write_tiny_gguf

SPECIAL = ["<unk>", "<s>", "</s>"]
LETTERS = "▁abcdehlorwé日"
LIMIT = 1 << 20


def scored_pieces() -> tuple[list[str], list[float]]:
    """Control pieces, all bytes, some letters, and random words of them, the better the earlier."""
    chance = random.Random(3)
    words = {"".join(chance.choices(LETTERS, k=length)) for length in (2, 3, 4) for _ in range(60)}
    words |= {"<s", "s>", "▁hello", "he", "ll", "llo", "▁he", "<0x4", "hel"}
    listed = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(words), *LETTERS, "<", ">", "s", "0", "x"]
    first = len(SPECIAL) + 256
    return listed, [0.0] * first + [-float(at) for at in range(len(listed) - first)]


def best_joined(text: str, listed: list[str], scores: list[float]) -> list[int]:
    """SentencePiece's BPE: join the two neighbours whose product scores best, the leftmost of equals."""
    ids = {piece: at for at, piece in enumerate(listed) if at >= len(SPECIAL) + 256}
    parts = list(("▁" + text).replace(" ", "▁"))
    while True:
        pairs = [(-scores[ids[a + b]], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not pairs:
            return [id_ for part in parts for id_ in ([ids[part]] if part in ids else [3 + b for b in part.encode()])]
        at = min(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]


@pytest.fixture(scope="module")
def encode(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    listed, scores = scored_pieces()
    special = {text: listed.index(text) for text in SPECIAL}
    facts, content = sentencepiece_vocabulary(listed, scores, special=special, shown=[], unknown="<unk>", prefix=True)
    file = tmp_path_factory.mktemp("pieces") / facts.file
    file.write_bytes(content)
    return pieces.load(file, facts, len(listed))


@given(st.text(alphabet=LETTERS + " <s>0x\n\t🙂", max_size=30))
def test_ids_are_those_of_sentencepieces_own_algorithm(encode, text: str) -> None:  # type: ignore[no-untyped-def]
    tokens, ids_of = encode
    listed, scores = scored_pieces()
    ids = ids_of(text)
    assert ids == (best_joined(text, listed, scores) if text else ids)
    assert not {0, 1, 2} & set(ids)
    assert b"".join(tokens[id_] for id_ in ids).decode() == (" " + text).replace("▁", " ") if text else not ids


def test_a_gguf_file_with_pieces_is_served_by_them(tmp_path: Path) -> None:
    listed, scores = scored_pieces()
    types = [2, 3, 3, *[6] * 256, *[1] * (len(listed) - 259)]
    metadata = {"model": "llama", "tokens": listed, "scores": scores, "token_type": types, "merges": None, "pre": None}
    file = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={f"tokenizer.ggml.{key}": v for key, v in metadata.items()})
    folder = import_gguf(file, tmp_path / "tiny")
    vocabulary = load_vocabulary(folder)
    assert vocabulary.count == len(listed)
    assert folder.chat.add_bos
    ids = vocabulary.encode_text("hello</s>é\n", max_tokens=LIMIT)
    assert b"".join(map(vocabulary.token_bytes, ids)).decode() == " hello</s>é\n"
    assert vocabulary.token_bytes(2) == b""
    assert vocabulary.special == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert orjson.loads(folder.file("tokenizer.json").read_bytes())["added_tokens"] == []
