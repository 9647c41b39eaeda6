"""Vocabularies that tiktoken cannot express: ids as `tokenizers` gives them, bytes as its decoder does, one by one."""

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.llm import pieces
from engine.manifest import TokenizerFacts
from tests.engine.tiny_hugging_face import unigram_tokenizer

CORPUS = Path(__file__).parent.parent / "prose.txt"
CONTROL = ["<unk>", "<s>", "</s>"]


def byte_level() -> Tokenizer:
    """Byte-level BPE that puts a space before every text, which tiktoken cannot."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(CORPUS)], trainer)
    return tokenizer


@pytest.fixture(scope="module", params=[unigram_tokenizer, byte_level])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    tokenizer = request.param()
    file = tmp_path_factory.mktemp("pieces") / "tokenizer.json"
    tokenizer.save(str(file))
    special = {text: tokenizer.token_to_id(text) for text in CONTROL}
    facts = TokenizerFacts(kind="tokenizers", file="tokenizer.json", special=special)
    return tokenizer, *pieces.load(file, facts, tokenizer.get_vocab_size())


@given(st.text(max_size=40).filter(lambda text: not any(token in text for token in CONTROL)))
def test_ids_and_bytes_are_those_of_the_package(loaded, text: str) -> None:  # type: ignore[no-untyped-def]
    tokenizer, tokens, encode = loaded
    ids = encode(text)
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids
    whole = b"".join(tokens[id_] for id_ in ids).decode()
    assert whole.removeprefix(" ") == tokenizer.decode(ids, skip_special_tokens=False).removeprefix(" ")


def test_text_that_spells_a_control_token_is_ordinary_text(loaded) -> None:  # type: ignore[no-untyped-def]
    _, tokens, encode = loaded
    ids = encode("hello<s></s>  </s>world <unk>")
    assert not set(ids) & {0, 1, 2}
    assert b"".join(tokens[id_] for id_ in ids).decode().removeprefix(" ") == "hello<s></s>  </s>world <unk>"


@pytest.mark.parametrize(
    "change",
    [
        {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}},
        {"decoder": None},
        {"model": {"type": "BPE", "vocab": {"a": 900}, "merges": []}},
        {"model": None},
        {"normalizer": {"type": "Nothing"}},
    ],
)
def test_what_cannot_be_read_exactly_is_a_value_error(tmp_path: Path, change: dict[str, object]) -> None:
    document = {**orjson.loads(unigram_tokenizer().to_str()), **change}
    file = tmp_path / "tokenizer.json"
    file.write_bytes(orjson.dumps(document))
    with pytest.raises(ValueError, match=r"not supported|beyond|no tokenizer\.json"):
        pieces.load(file, TokenizerFacts(kind="tokenizers", file="tokenizer.json"), 600)
