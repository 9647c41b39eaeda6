"""Prompts as token ids: of exactly the length that is wanted, and with nothing in common unless that is wanted.

Owns what the language model is asked. Texts of the project's own would be known to no model, but repeat themselves;
random ids share no prefix, and what they cost does not depend on what they say.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.processes import HERE
from engine import model_folder
from engine.llm.vocabulary import load_vocabulary

_IDS = range(1000, 30000)  # ordinary tokens of every vocabulary that models have


def fresh(generator: random.Random, num_tokens: int) -> list[int]:
    """A prompt that nobody has asked before."""
    return generator.choices(_IDS, k=num_tokens)


def reading(folder: Path, num_tokens: int) -> list[int]:
    """The first tokens of this project's own readme: text that no model was trained on."""
    words = (HERE.parent / "README.md").read_text()
    vocabulary = load_vocabulary(model_folder.read(folder))
    return vocabulary.encode_text(words, max_tokens=len(words))[:num_tokens]


def body(model: str, tokens: Sequence[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    """A completion request, greedy unless ``more`` says otherwise, whose answer has exactly ``max_tokens``."""
    fields = {"model": model, "prompt": list(tokens), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return {**fields, **more}
