"""tokenizer.json becomes tiktoken ranks that say the same about anything, or stays what it is."""

from collections.abc import Callable

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.importers.gguf_vocabulary import PATTERNS
from engine.importers.hugging_face_vocabulary import read_vocabulary
from engine.llm import byte_pairs
from tests.engine.tiny_hugging_face import CONTROL, CORPUS, SHOWN, byte_level_tokenizer

KINDS = [*PATTERNS, "qwen2 composed", "plain gpt-2", "digits", "whole words"]

# What splits differ about: cases, digits, white space, marks that compose, scripts, symbols of several code points.
MARKED = "aZsré'\u2019 \t\r\n0٣½Ⅷ.,!/-_(<>|\u0301\u0327\u00a0\u3000\u200b\u200d日本िक्षש👩🏽🇫ǅʰ"
TEXT = st.text(st.one_of(st.sampled_from(MARKED), st.characters(exclude_categories=["Cs"])), max_size=40)
WORDS = [" hello", "It's", "DON'T", "123456", "\n\n", "   ", "e\u0301", "def f(x):", "😀"]
TEXTS = st.builds(lambda text, words: text + "".join(words) + text, TEXT, st.lists(st.sampled_from(WORDS), max_size=8))
Both = tuple[Tokenizer, Callable[[str], list[int]]]


def tokenizer_of(kind: str) -> Tokenizer:
    """A trained byte-level BPE with the splits of the kind."""
    if kind in PATTERNS:
        return byte_level_tokenizer(kind)
    tokenizer = byte_level_tokenizer()
    if kind == "qwen2 composed":
        tokenizer.normalizer = normalizers.NFC()
    elif kind == "plain gpt-2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "digits":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        document = orjson.loads(tokenizer.to_str())
        document["model"]["ignore_merges"] = True
        tokenizer = Tokenizer.from_str(orjson.dumps(document).decode())
    return tokenizer


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    tokenizer = tokenizer_of(request.param)
    vocabulary = read_vocabulary(tokenizer.to_str().encode(), {}, {}, {})
    assert vocabulary.facts.kind == "tiktoken"
    file = tmp_path_factory.mktemp("ranks") / vocabulary.facts.file
    file.write_bytes(vocabulary.content)
    _, encode = byte_pairs.load(file, vocabulary.facts, vocabulary.count)
    return tokenizer, encode


@settings(max_examples=150)
@given(text=TEXTS)
def test_ids_are_those_of_the_tokenizer(both: Both, text: str) -> None:
    tokenizer, encode = both
    if not any(token in text for token in [*CONTROL, SHOWN]):
        assert encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_tokens_that_are_not_special_are_text_in_an_answer() -> None:
    facts = read_vocabulary(byte_level_tokenizer().to_str().encode(), {}, {}, {}).facts
    assert facts.shown == (SHOWN,)
    assert facts.special.keys() == {*CONTROL, SHOWN}


def test_what_tiktoken_cannot_say_keeps_its_file() -> None:
    prefixed = byte_level_tokenizer()
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    lowered = byte_level_tokenizer()
    lowered.normalizer = normalizers.Lowercase()
    for tokenizer in (prefixed, lowered):
        content = tokenizer.to_str().encode()
        vocabulary = read_vocabulary(content, {}, {}, {})
        assert vocabulary.facts.kind == "tokenizers"
        assert vocabulary.content == content


def test_ids_in_another_order_than_the_merges_keep_their_file() -> None:
    document = orjson.loads(byte_level_tokenizer().to_str())
    ids = document["model"]["vocab"]
    first, last = (ids["".join(document["model"]["merges"][at])] for at in (0, -1))
    swap = {first: last, last: first}
    document["model"]["vocab"] = {text: swap.get(id_, id_) for text, id_ in ids.items()}
    assert read_vocabulary(orjson.dumps(document), {}, {}, {}).facts.kind == "tokenizers"


def test_a_tokenizer_whose_bytes_are_not_known_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train([str(CORPUS)], trainer)
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="decoder WordPiece is not supported"):
        read_vocabulary(tokenizer.to_str().encode(), {}, {}, {})


def test_a_space_before_the_first_text_alone_is_refused() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    with pytest.raises(ValueError, match="prepend_scheme first"):
        read_vocabulary(tokenizer.to_str().encode(), {}, {}, {})


def test_an_added_token_that_takes_in_its_neighbours_is_refused() -> None:
    document = orjson.loads(byte_level_tokenizer().to_str())
    document["added_tokens"][0]["rstrip"] = True
    with pytest.raises(ValueError, match="takes in what stands beside it"):
        read_vocabulary(orjson.dumps(document), {}, {}, {})


def test_who_ends_a_turn_and_who_begins_a_text() -> None:
    content = byte_level_tokenizer().to_str().encode()
    tables = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|endoftext|>"}
    vocabulary = read_vocabulary(content, {"eos_token_id": [1, 2]}, tables, {"eos_token_id": None})
    assert (vocabulary.eos_ids, vocabulary.bos_id, vocabulary.add_bos) == ((0, 1, 2), 1, False)
