"""tiktoken over the model's ranks says what the tokenizer of the model's training said."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from engine.importers.gguf_vocabulary import PATTERNS
from engine.llm import byte_pairs
from engine.llm.vocabulary import TextTooLong, Vocabulary, load_vocabulary
from engine.model_folder import ModelError, ModelFolder
from tests.engine.tiny_gguf import ABSENT_BYTES

LIMIT = 1 << 20

TEXTS = [
    "",
    " ",
    "Hello, world! It's John's; they'll've been HERE'S.",
    "    indented\n\tcode = {'a': 1}\r\n\r\n\n  # done   ",
    "def f(x):\n    return x ** 2 if x > 10_000 else -x\n",
    "SELECT * FROM t WHERE a<=3.14 AND b!='x';",
    "1234567890 3.1415 1,000,000 ½ Ⅷ ٣٤٥ १२३ 7th  8   9\n10",
    "x1y2z3 a 1 b  2 c   3\t4\n5",
    "The café’s naïve façade — “quoted” … ¿qué? Ærøskøbing",
    "日本語のテキストと中文文本以及한국어",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "नमस्ते दुनिया สวัสดีชาวโลก",
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽 🤖✨ e\u0301 \u200b\u00a0\ufeff",
    "a" * 200 + " " * 50 + "\n" * 20 + "!?" * 40,
    "<|im_start|>system <|im_end|> <|endoftext|>",
    "tab\tvertical\x0b form\x0c unit\x1f\u2028line\u3000wide",
]


@pytest.fixture(scope="module")
def vocabulary(smollm2: ModelFolder) -> Vocabulary:
    return load_vocabulary(smollm2)


@pytest.fixture(scope="module")
def metadata(smollm2_gguf: gguf.GGUFReader) -> dict[str, Any]:
    return {part: smollm2_gguf.fields[f"tokenizer.ggml.{part}"].contents() for part in ("tokens", "merges")}


def peer(metadata: dict[str, Any], *splits: Any) -> Tokenizer:
    """The same vocabulary and merges under Hugging Face's BPE, after its own splits of the text."""
    ids = {token: id_ for id_, token in enumerate(metadata["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["merges"]]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def scrambled(count: int) -> list[str]:
    """Random mixtures of the texts' characters and of what lies near them."""
    chance = random.Random(11)
    alphabet = [*"".join(TEXTS), *"  \n\t'sreldvm0123456789"]
    return ["".join(chance.choices(alphabet, k=chance.randint(1, 60))) for _ in range(count)]


@pytest.mark.model
def test_ids_are_those_of_the_models_own_tokenizer(vocabulary: Vocabulary, metadata: dict[str, Any]) -> None:
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer = peer(metadata, digits, pre_tokenizers.ByteLevel(add_prefix_space=False))
    code = Path(__file__).read_text()
    for text in [*TEXTS, code, *scrambled(400)]:
        assert vocabulary.encode_text(text, max_tokens=LIMIT) == tokenizer.encode(text).ids, json.dumps(text)


@pytest.mark.model
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_other_splits_are_those_of_their_models(metadata: dict[str, Any], pre: str, smollm2: ModelFolder) -> None:
    ranks = load_vocabulary(smollm2)
    if pre == "gpt-2":
        tokenizer = peer(metadata, pre_tokenizers.ByteLevel(add_prefix_space=False))
    else:
        split = pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")
        tokenizer = peer(metadata, split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    facts = smollm2.tokenizer
    encode = byte_pairs.encoder(
        {ranks.token_bytes(id_): id_ for id_ in range(ranks.count) if ranks.token_bytes(id_)},
        count=ranks.count,
        pattern=PATTERNS[pre],
        unknown_id=facts.unknown_id,
    )
    for text in [*TEXTS, *scrambled(200)]:
        assert encode(text) == tokenizer.encode(text).ids, json.dumps(text)


@pytest.mark.model
def test_text_comes_back_from_its_tokens(vocabulary: Vocabulary) -> None:
    for text in TEXTS[:10]:
        ids = vocabulary.encode_text(text, max_tokens=LIMIT)
        assert b"".join(map(vocabulary.token_bytes, ids)).decode() == text


def test_text_that_spells_a_control_token_is_ordinary_text(tiny_chat: ModelFolder) -> None:
    vocabulary = load_vocabulary(tiny_chat)
    ids = vocabulary.encode_text("hello<|im_end|><|im_start|>system", max_tokens=LIMIT)
    assert not set(ids) & set(vocabulary.special.values())
    assert b"".join(map(vocabulary.token_bytes, ids)) == b"hello<|im_end|><|im_start|>system"
    assert vocabulary.special["<|im_end|>"] == 2
    assert vocabulary.token_bytes(2) == b""


def test_bytes_that_the_model_lacks_become_the_unknown_token(tiny_chat: ModelFolder) -> None:
    vocabulary = load_vocabulary(tiny_chat)
    assert 0 in ABSENT_BYTES
    ids = vocabulary.encode_text("a\0hello", max_tokens=LIMIT)
    assert ids[1] == 0
    assert vocabulary.token_bytes(ids[2]) == b"hello"
    assert max(ids) < vocabulary.count


def test_merges_are_applied(tiny_chat: ModelFolder) -> None:
    vocabulary = load_vocabulary(tiny_chat)
    ids = vocabulary.encode_text("hello world 42", max_tokens=LIMIT)
    assert [vocabulary.token_bytes(id_) for id_ in ids] == [b"hello", b" world", b" ", b"4", b"2"]


def test_text_that_cannot_fit_is_refused_before_it_is_encoded(tiny_chat: ModelFolder) -> None:
    vocabulary = load_vocabulary(tiny_chat)
    assert vocabulary.longest_token_bytes == 6
    assert len(vocabulary.encode_text("hello" * 12, max_tokens=10)) == 12
    with pytest.raises(TextTooLong, match="61 bytes and cannot fit 10 tokens"):
        vocabulary.encode_text("x" * 61, max_tokens=10)


def test_lone_surrogates_are_refused(tiny_chat: ModelFolder) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        load_vocabulary(tiny_chat).encode_text("\ud800", max_tokens=LIMIT)


def test_a_panic_of_the_encoder_is_an_error_of_the_text(
    tiny_chat: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """What tiktoken's Rust raises."""

    def panic(text: str) -> list[int]:
        raise Panic("stack overflow")

    vocabulary = load_vocabulary(tiny_chat)
    monkeypatch.setattr(vocabulary, "_encode", panic)
    with pytest.raises(ValueError, match="cannot be split into tokens"):
        vocabulary.encode_text("hello", max_tokens=LIMIT)


def test_ranks_that_do_not_fit_the_manifest_are_refused(tiny_chat: ModelFolder, tmp_path: Path) -> None:
    for content in (b"no ranks at all", b"aGk= 99999\n", b""):
        (tmp_path / "tokenizer.tiktoken").write_bytes(content)
        damaged = replace(tiny_chat, path=tmp_path)
        with pytest.raises(ModelError, match=r"tokenizer\.tiktoken: .*import the model again"):
            load_vocabulary(damaged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"special": {"<|x|>": -3}}, "does not fit"),
        ({"unknown_id": 10**6}, "does not fit"),
        ({"unknown_id": -1}, "does not fit"),
        ({"pattern": "(("}, "parenthesis"),
    ],
)
def test_a_manifest_that_does_not_fit_the_ranks_is_refused(
    tiny_chat: ModelFolder, change: dict[str, Any], message: str
) -> None:
    manifest = tiny_chat.manifest
    tokenizer = tiny_chat.tokenizer.model_copy(update=change)
    with pytest.raises(ModelError, match=message):
        load_vocabulary(replace(tiny_chat, manifest=manifest.model_copy(update={"tokenizer": tokenizer})))
