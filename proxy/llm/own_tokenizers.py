"""Tokenizers of this box's own models: read from their folders, once in a process for each file, however it is called.

What cannot be read is left out and told: its model is counted as models are whose tokenizer nobody knows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from proxy.config_models import MAX_TOKENIZERS, Tokenizer
from proxy.llm.encodings import TextCounter, counter_by_pieces, counter_by_ranks

log = logging.getLogger("headrace.proxy")

MAX_FILE_BYTES: Final = 64 << 20


def counters_by_name(tokenizers: Mapping[str, Tokenizer]) -> dict[str, TextCounter]:
    """The counters of models, by their names."""
    counters = {}
    for name, tokenizer in tokenizers.items():
        try:
            counters[name] = own_counter(tokenizer)
        except (OSError, ValueError) as error:
            log.warning("the tokenizer of the model %s cannot be used, so its prompts are estimated: %s", name, error)
    return counters


@lru_cache(maxsize=2 * MAX_TOKENIZERS)  # those of a reload beside those before it
def own_counter(tokenizer: Tokenizer) -> TextCounter:
    """The counter of one tokenizer, which takes up to a second to make. Raises OSError and ValueError."""
    path = Path(tokenizer.file)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
    data = path.read_bytes()
    if tokenizer.kind == "tokenizers":
        return counter_by_pieces(tokenizer.sha256, data)
    return counter_by_ranks(tokenizer.sha256, data, tokenizer.pattern or "", nfc=tokenizer.nfc)
