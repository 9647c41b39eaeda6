"""A chat model that is loaded: messages in, jobs for its lane out.

Owns what belongs to one model folder: decoder, vocabulary, template, lane. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

import numpy as np

from engine.admission import Admission
from engine.llm.calibrate import measure_cost
from engine.llm.cost import StepCost
from engine.llm.decoder import Decoder, load_decoder
from engine.llm.detokenize import TextStream
from engine.llm.prompts import Prompts
from engine.llm.recipe import Recipe
from engine.llm.runner import LanguageLane
from engine.llm.sampler import Sampler
from engine.llm.sequence import Sequence
from engine.llm.slots import Slots
from engine.llm.standing import NOBODY, Standing
from engine.llm.template import BadTemplateError, ChatTemplate
from engine.llm.vocabulary import Vocabulary, load_vocabulary
from engine.model import ModelKind
from engine.model_folder import CHAT_TEMPLATE, ModelError, ModelFolder
from engine.settings import ModelSettings


class ChatModel:
    """One chat model and its lane on the device."""

    kind: ClassVar[ModelKind] = "chat"

    def __init__(
        self,
        settings: ModelSettings,
        *,
        decoder: Decoder,
        cost: StepCost,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        end_ids: SequenceOf[int],
        max_chunk: int,
        kv_bytes: int,
        bos_id: int | None = None,
        created: int = 0,
    ) -> None:
        self.name = settings.name
        self.created = created
        self.context = decoder.context
        by_key = settings.prefix_sharing == "key"
        slots = Slots(decoder.kv_shape, kv_bytes, keep_s=settings.prefix_ttl_s, by_key=by_key)
        self.lane = LanguageLane(
            settings.name,
            decoder,
            vocabulary.token_bytes,
            cost,
            max_stall_s=settings.max_stall_s,
            max_chunk=max_chunk,
            slots=slots,
            speculation=settings.speculation and not settings.deterministic,
            deterministic=settings.deterministic,
        )
        work_s = self.lane.scheduler.work_s
        self.admission = Admission(running=decoder.slots, queue=settings.max_queue, work_s=work_s)
        self.prompts = Prompts(vocabulary, template, context=decoder.context, bos_id=bos_id)
        self._decoder = decoder
        self._end_ids = frozenset(end_ids)
        self._token_bytes = vocabulary.token_bytes
        self._control_texts = {token: text for text, token in vocabulary.special.items()}

    @classmethod
    def load(
        cls,
        folder: ModelFolder,
        settings: ModelSettings,
        *,
        threads: int,
        kv_bytes: int,
        quiet: Callable[[], object] | None = None,
    ) -> ChatModel:
        """Load and warm up the folder's model. kv_bytes: what keys and values may take; quiet: waits until nothing
        disturbs the timing of its steps. Blocking. Raises ModelError, and MemoryError when not even one full context
        fits.
        """
        facts = folder.chat
        decoder = load_decoder(
            folder,
            slots=settings.slots,
            context=settings.context,
            threads=threads,
            placement=settings.placement,
            deterministic=settings.deterministic,
        )
        _check_context_fits(decoder, kv_bytes)
        vocabulary = load_vocabulary(folder)
        template = _load_template(folder, vocabulary, decoder.context)
        if quiet is not None:
            quiet()
        return cls(
            settings,
            decoder=decoder,
            cost=measure_cost(decoder),
            vocabulary=vocabulary,
            template=template,
            end_ids=facts.eos_ids,
            max_chunk=decoder.max_chunk,
            kv_bytes=kv_bytes,
            bos_id=facts.bos_id if facts.add_bos else None,
            created=int(datetime.fromisoformat(folder.manifest.created).timestamp()),
        )

    def sequence(
        self,
        tokens: list[int],
        recipe: Recipe,
        number: int,
        deliver: Callable[[Any], None],
        standing: Standing = NOBODY,
    ) -> Sequence:
        """A job for the lane: the answer with this number to a prompt that leaves room for one token.

        max_tokens is cut to what the context leaves. Each number has random numbers of its own, from the seed if there
        is one. Raises RequestError (400) for tokens that the model does not have.
        """
        sampling = recipe.sampling
        self.prompts.check_ids([*sampling.logit_bias], "logit_bias")
        self.prompts.check_ids(recipe.stop_token_ids, "stop_token_ids")
        room = self.context - len(tokens)
        seed = None if recipe.seed is None else (recipe.seed % (1 << 64), number)
        end_ids = frozenset(recipe.stop_token_ids) if recipe.ignore_eos else self._end_ids.union(recipe.stop_token_ids)
        return Sequence(
            deliver=deliver,
            arrived_at=time.monotonic(),
            tokens=tokens.copy(),
            max_tokens=room if recipe.max_tokens is None else min(recipe.max_tokens, room),
            sampler=Sampler(sampling, np.random.default_rng(seed).random, prompt=tokens, end_ids=end_ids),
            text=TextStream(recipe.stops),
            end_ids=end_ids,
            min_tokens=sampling.min_tokens,
            key=standing.key,
            priority=standing.priority,
            deadline_at=standing.deadline_at,
        )

    def spell(self, token: int) -> tuple[str, bytes | None]:
        """A token's text and its bytes, None for a control token, which is no part of any text."""
        if (text := self._control_texts.get(token)) is not None:
            return text, None
        raw = self._token_bytes(token)
        return raw.decode(errors="replace"), raw

    def text_of(self, tokens: SequenceOf[int]) -> str:
        """The text that tokens stand for, control tokens by their names."""
        spelt = map(self.spell, tokens)
        return b"".join(text.encode() if raw is None else raw for text, raw in spelt).decode(errors="replace")

    def allot(self, num_bytes: int) -> None:
        """See ``engine.model.Model``."""
        self.lane.allot(max(num_bytes, self._decoder.kv_bytes_for(self.context)))

    def statistics(self) -> dict[str, float]:
        """See ``engine.model.Model``."""
        return {
            "slots": self._decoder.slots,
            "running": len(self.lane.scheduler.running),
            "waiting": len(self.lane.scheduler.waiting),
            "prompt_tokens_total": self.lane.num_prompt_tokens,
            "output_tokens_total": self.lane.num_output_tokens,
            "preempted_total": self.lane.scheduler.num_preempted,
            "parked_out_total": self.lane.scheduler.num_parked_out,
            "late_total": self.lane.num_late,
            "drafted_tokens_total": self.lane.num_drafted,
            "accepted_tokens_total": self.lane.num_accepted,
            "bad_rows_total": self.lane.num_bad_rows,
            "run_seconds_total": self.lane.run_s,
            **self.lane.scheduler.slots.statistics(),
        }

    def close(self) -> None:
        """Free the decoder."""
        self._decoder.close()


def _check_context_fits(decoder: Decoder, kv_bytes: int) -> None:
    one_context_bytes = decoder.kv_bytes_for(decoder.context)
    if kv_bytes < one_context_bytes:
        fitting = decoder.context * kv_bytes // one_context_bytes
        raise MemoryError(
            f"a context of {decoder.context} tokens takes {one_context_bytes >> 20} MiB and {kv_bytes >> 20} MiB are"
            f" left for it; set a context of at most {fitting} or free some memory"
        )


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
