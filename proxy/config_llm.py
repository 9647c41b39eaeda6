"""The tables of the policies that count a prompt: ``tokens`` and ``context_guard``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from proxy.config import Table
from proxy.held_body import HELD_BYTES
from proxy.llm.encodings import EncodingName
from proxy.llm.fitting import Truncate, Window
from proxy.units import Percent, Size


class Tokens(Table):
    encoding: EncodingName | None = None  # for models whose own tokenizer is not here; None: o200k
    read: Annotated[Size, Field(le=HELD_BYTES)] = HELD_BYTES  # longer bodies are not read but guessed; 0: none is read
    answer: Annotated[int, Field(ge=1)] = 1024  # tokens reserved for an answer whose max_tokens is not named
    max_answer: Annotated[int, Field(ge=1)] = 8192  # reserved at most for one answer, whatever max_tokens says
    debt: Percent = 1.0  # of a limit's burst: how much may be owed
    include_usage: bool = True  # ask for the usage of streams whose client did not


class ContextGuard(Table):
    context: Annotated[int, Field(ge=1)] | None = None  # tokens, of models that have not told theirs; None: not judged
    reserve: Percent = 0.15  # of the context, kept for an answer whose max_tokens is not named
    margin: Percent = 0.05  # added to what another tokenizer than the model's own has counted
    status: Literal[422, 400] = 422  # of the refusal; 400 is OpenAI's
    truncate: Truncate | None = None  # instead of a refusal
    window: Window | None = None  # the same, for long documents

    @model_validator(mode="after")
    def _one_way(self) -> ContextGuard:
        if self.truncate is not None and self.window is not None:
            raise ValueError("truncate and window exclude each other: name one")
        return self
