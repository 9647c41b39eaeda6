"""A chat model that is loaded: messages in, jobs for its lane out.

Owns what belongs to one model folder: decoder, vocabulary, template, lane. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from datetime import datetime
from functools import partial
from typing import Any, Literal

import numpy as np

from engine import memory
from engine.admission import Admission
from engine.errors import Kind, RequestError, invalid
from engine.llm.calibrate import measure_cost
from engine.llm.decoder import Decoder, load_decoder
from engine.llm.detokenize import TextStream
from engine.llm.runner import LanguageLane
from engine.llm.sampler import Sampler
from engine.llm.sampling import Sampling
from engine.llm.sequence import Sequence
from engine.llm.template import BadTemplateError, ChatTemplate, RefusedByTemplateError
from engine.llm.vocabulary import TextTooLong, Vocabulary, load_vocabulary
from engine.model_folder import CHAT_TEMPLATE, ModelError, ModelFolder
from engine.settings import ModelSettings

_MEMORY_PART = 0.7  # of what is free after loading; the rest is for answers, other processes and the page cache
_ENCODED_IN_PLACE_BYTES = 4096  # a longer prompt is encoded in a thread


class ChatModel:
    """One chat model and its lane on the device."""

    kind: Literal["chat"] = "chat"

    def __init__(
        self,
        settings: ModelSettings,
        *,
        decoder: Decoder,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        end_ids: SequenceOf[int],
        max_chunk: int,
        max_held: int,
        bos_id: int | None = None,
        created: int = 0,
    ) -> None:
        self.name = settings.name
        self.created = created
        self.context = decoder.context
        self.admission = Admission(running=decoder.slots, queue=settings.max_queue)
        self.lane = LanguageLane(
            settings.name,
            decoder,
            vocabulary.token_bytes,
            measure_cost(decoder),
            max_stall_s=settings.max_stall_s,
            max_chunk=max_chunk,
            max_held=max_held,
        )
        self._decoder = decoder
        self._template = template
        self._end_ids = frozenset(end_ids)
        self._bos_id = bos_id
        self._max_text_bytes = self.context * vocabulary.longest_token_bytes

    @classmethod
    def load(
        cls, folder: ModelFolder, settings: ModelSettings, *, threads: int, memory_share: float = 1.0
    ) -> ChatModel:
        """Load and warm up the folder's model. Blocking. Raises ModelError, and MemoryError when the memory that is
        free cannot hold one full context. memory_share: the part of it that this model may plan with.
        """
        facts = folder.chat
        vocabulary = load_vocabulary(folder)
        decoder = load_decoder(folder, slots=settings.slots, context=settings.context, threads=threads)
        decoder.warm()
        return cls(
            settings,
            decoder=decoder,
            vocabulary=vocabulary,
            template=_load_template(folder, vocabulary, decoder.context),
            end_ids=facts.eos_ids,
            max_chunk=facts.max_chunk,
            max_held=_tokens_in_memory(decoder, memory.available_bytes() * _MEMORY_PART * memory_share),
            bos_id=facts.bos_id if facts.add_bos else None,
            created=int(datetime.fromisoformat(folder.manifest.created).timestamp()),
        )

    async def encode(self, messages: SequenceOf[Mapping[str, Any]]) -> list[int]:
        """The prompt's tokens; at least one more fits the context. Raises RequestError (400, 422)."""
        num_bytes = sum(map(_count_bytes, messages))
        if num_bytes > self._max_text_bytes or len(messages) >= self.context:
            raise self._too_long(f"{len(messages)} messages of {num_bytes} bytes cannot fit")
        try:
            if num_bytes <= _ENCODED_IN_PLACE_BYTES:
                tokens = self._template.encode(messages)
            else:
                tokens = await asyncio.to_thread(self._template.encode, messages)
        except TextTooLong:
            raise self._too_long(f"{num_bytes} bytes of text do not fit") from None
        except RefusedByTemplateError as error:
            raise invalid(f"the model's chat template refuses these messages: {error}", "messages") from None
        except ValueError as error:
            raise invalid(str(error), "messages") from None
        if self._bos_id is not None and tokens[:1] != [self._bos_id]:
            tokens.insert(0, self._bos_id)
        if len(tokens) >= self.context:
            raise self._too_long(f"the messages make {len(tokens)} and the answer needs at least 1")
        return tokens

    def sequence(
        self,
        tokens: list[int],
        *,
        max_tokens: int | None,
        sampling: Sampling,
        seed: int | None,
        stops: SequenceOf[str],
        deliver: Callable[[Any], None],
    ) -> Sequence:
        """A job for the lane. max_tokens is cut to what the context leaves; without a seed each job draws its own."""
        room = self.context - len(tokens)
        generator = np.random.default_rng(None if seed is None else seed % (1 << 64))
        return Sequence(
            deliver=deliver,
            arrived_at=time.monotonic(),
            tokens=tokens,
            max_tokens=room if max_tokens is None else min(max_tokens, room),
            sampler=Sampler(sampling, generator.random),
            text=TextStream(stops),
            end_ids=self._end_ids,
        )

    def statistics(self) -> dict[str, float]:
        """See ``engine.serving.Model``."""
        return {
            "slots": self._decoder.slots,
            "running": len(self.lane.scheduler.running),
            "waiting": len(self.lane.scheduler.waiting),
            "prompt_tokens_total": self.lane.num_prompt_tokens,
            "output_tokens_total": self.lane.num_output_tokens,
            "kv_bytes": self._decoder.kv_bytes_committed,
        }

    def close(self) -> None:
        """Free the decoder."""
        self._decoder.close()

    def _too_long(self, what: str) -> RequestError:
        message = f"this model's context is {self.context} tokens; {what}; shorten the messages"
        return RequestError(Kind.CONTEXT_LENGTH, message, param="messages")


def _tokens_in_memory(decoder: Decoder, budget_bytes: float) -> int:
    """How many tokens all slots may hold within the budget. Raises MemoryError when it is less than one context."""
    one_context_bytes = decoder.kv_bytes_for(decoder.context)
    if budget_bytes < one_context_bytes:
        fitting = int(decoder.context * budget_bytes / one_context_bytes)
        raise MemoryError(
            f"a context of {decoder.context} tokens takes {one_context_bytes >> 20} MiB, of the free memory"
            f" {int(budget_bytes) >> 20} MiB are for it; set a context of at most {fitting} or free some memory"
        )
    return int(decoder.context * budget_bytes / one_context_bytes)


def _load_template(folder: ModelFolder, vocabulary: Vocabulary, context: int) -> ChatTemplate:
    facts = folder.chat
    texts = {token: text for text, token in vocabulary.special.items()}
    path = folder.file(CHAT_TEMPLATE)
    try:
        return ChatTemplate(
            path.read_text(encoding="utf-8"),
            special=vocabulary.special,
            encode_text=partial(vocabulary.encode_text, max_tokens=context),
            bos="" if facts.bos_id is None else texts.get(facts.bos_id, ""),
            eos=texts.get(facts.eos_ids[0], "") if facts.eos_ids else "",
        )
    except (OSError, UnicodeDecodeError, BadTemplateError) as error:
        raise ModelError(f"{path}: {error}; import the model again") from error


def _count_bytes(value: Any) -> int:
    """UTF-8 bytes of all strings in a message."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    return sum(map(_count_bytes, value)) if isinstance(value, list) else 0
