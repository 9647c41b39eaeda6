"""The vocabulary of a Hugging Face folder: tokenizer.json, and what stands beside it about control tokens.

Byte-level BPE whose ids grow with its merges becomes tiktoken ranks, after both have said the same about a sample;
whatever else keeps its tokenizer.json and is served by the `tokenizers` package. Knows no weights and no graph.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from tokenizers import Tokenizer

from engine.importers.sentencepiece import TOKENIZER
from engine.importers.vocabulary import (
    ENDS_OF_TURN,
    GPT_2,
    GPT_2_AND_DIGITS,
    ModelVocabulary,
    ranks_of,
    tiktoken_vocabulary,
)
from engine.llm import byte_pairs, pieces
from engine.manifest import TokenizerFacts

Table = Mapping[str, Any]

_SAMPLE = (
    "Hello, world! It's JOHN'S; they'll've  been\there 1234567.\r\n\n    if x != 3.14:\n\n\n\treturn {'a': [1]}  \n"
    "café naïve Ærøskøbing e\u0301 日本語のテキスト Привет мир! שלום مرحبا नमस्ते สวัสดี 한국어 "
    "👩\u200d👧🇫🇷 ½ Ⅷ ٣٤٥ \u00a0\u3000x\u200b."
)


def read_vocabulary(content: bytes, config: Table, tokenizer_config: Table, generation: Table) -> ModelVocabulary:
    """Read tokenizer.json, `content`, and the three tables beside it.

    Raises ValueError for what would not come out the same.
    """
    document = orjson.loads(content)
    try:
        added = {token["content"]: token for token in document["added_tokens"]}
        tokenizer = Tokenizer.from_str(content.decode())
        facts, content = _facts(document, added, tokenizer, content)
    except ValueError:
        raise
    except Exception as error:  # the package raises bare Exception, and whatever is not there is a KeyError
        raise ValueError(f"is no tokenizer.json that can be read ({error!r})") from error
    bos_id = _named_id(tokenizer_config, config, "bos", facts.special)
    return ModelVocabulary(
        facts=facts,
        content=content,
        count=1 + max(tokenizer.get_vocab(with_added_tokens=True).values()),
        eos_ids=_eos_ids(config, tokenizer_config, generation, facts.special),
        bos_id=bos_id,
        add_bos=bos_id is not None and tokenizer.encode("a").ids[:1] == [bos_id],
        chat_template=_chat_template(tokenizer_config),
    )


def _facts(
    document: Table, added: Mapping[str, Table], tokenizer: Tokenizer, content: bytes
) -> tuple[TokenizerFacts, bytes]:
    for text, token in added.items():
        if token.get("single_word") or token.get("lstrip") or token.get("rstrip"):
            raise ValueError(f"the added token {text!r} takes in what stands beside it, which is not supported")
    special = {text: token["id"] for text, token in added.items()}
    shown = [text for text, token in added.items() if not token.get("special")]
    model, pattern = document["model"], _pattern(document)
    if pattern is not None:
        ids = {text: id_ for text, id_ in model["vocab"].items() if text not in special}
        merges = (merge.partition(" ")[::2] if isinstance(merge, str) else tuple(merge) for merge in model["merges"])
        unknown_id = model["vocab"].get(model.get("unk_token"))
        nfc = document.get("normalizer") is not None
        try:
            ranks = ranks_of(ids, merges, whole=bool(model.get("ignore_merges")))
            count = 1 + max(ids.values())
            encode = byte_pairs.encoder(ranks, count=count, pattern=pattern, unknown_id=unknown_id, nfc=nfc)
        except ValueError:
            pass  # tokenizers can
        else:
            if encode(_SAMPLE) == tokenizer.encode(_SAMPLE, add_special_tokens=False).ids:
                return tiktoken_vocabulary(
                    ranks, pattern=pattern, special=special, shown=shown, unknown_id=unknown_id, nfc=nfc
                )
    if b'"prepend_scheme":"first"' in orjson.dumps(document["pre_tokenizer"]):
        raise ValueError("a space is put before the first text alone (prepend_scheme first), which is not supported")
    facts = TokenizerFacts(kind="tokenizers", file=TOKENIZER, special=special, shown=tuple(shown))
    pieces.read(document, facts, 1 + max(tokenizer.get_vocab(with_added_tokens=True).values()))  # or it says why not
    return facts, content


def _pattern(document: Table) -> str | None:
    """The expression by which byte-level BPE splits text, None for what tiktoken does not do."""
    model, normalizer, splitter = document["model"], document.get("normalizer"), document.get("pre_tokenizer")
    extras = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if model.get("type") != "BPE" or any(model.get(key) for key in extras) or normalizer not in (None, {"type": "NFC"}):
        return None
    steps = splitter.get("pretokenizers", [splitter]) if splitter else []
    if not steps or steps[-1]["type"] != "ByteLevel" or any(step.get("add_prefix_space") for step in steps):
        return None
    match steps:
        case [{"use_regex": False}] | []:
            return None
        case [_]:
            return GPT_2
        case [{"type": "Digits", "individual_digits": True}, {"use_regex": True} | {"type": "ByteLevel"}]:
            return GPT_2_AND_DIGITS
        case [{"type": "Split", "pattern": {"Regex": str(regex)}, "behavior": "Isolated"}, {"use_regex": False}]:
            return None if steps[0].get("invert") else regex
    return None


def _eos_ids(config: Table, tokenizer_config: Table, generation: Table, special: Mapping[str, int]) -> tuple[int, ...]:
    found: set[int] = {special[text] for text in ENDS_OF_TURN if text in special}
    for table in (config, generation):
        said = table.get("eos_token_id")
        found |= {id_ for id_ in (said if isinstance(said, list) else [said]) if type(id_) is int and id_ >= 0}
    named = _named_id(tokenizer_config, {}, "eos", special)
    return tuple(sorted(found if named is None else found | {named}))


def _named_id(tokenizer_config: Table, config: Table, name: str, special: Mapping[str, int]) -> int | None:
    token = tokenizer_config.get(f"{name}_token")
    text = token.get("content") if isinstance(token, Mapping) else token
    if isinstance(text, str) and text in special:
        return special[text]
    id_ = config.get(f"{name}_token_id")
    return id_ if type(id_) is int and id_ in special.values() else None


def _chat_template(tokenizer_config: Table) -> str | None:
    """The template, or of several the one named default."""
    said = tokenizer_config.get("chat_template")
    if isinstance(said, list):
        said = next((each.get("template") for each in said if each.get("name") == "default"), None)
    return said if isinstance(said, str) else None
