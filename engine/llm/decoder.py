"""The decode graph as a call: rows of tokens in, the best logits after each row's last tokens out.

The only file of the language model that knows ONNX Runtime. It knows nothing of requests, sampling or scheduling, and
one thread drives it. Its arrays are made once and bound by address, so a step costs little beside the graph's own run.

A run covers the slots from the lowest to the highest that has work; idle ones between them have no new tokens and cost
next to nothing. Tokens of all rows lie one after another; `gather` spreads them over [slots, longest row] for attention
and `scatter` brings them back.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine import model_folder
from engine.llm.device_kv import DeviceKvMemory
from engine.llm.kv import KvMemory, KvShape
from engine.manifest import ChatFacts
from engine.model_folder import ModelError, ModelFolder
from engine.providers import Placement
from engine.session import CPU_ALONE, InferenceSession, IOBinding, device_of, open_session

MAX_BINDINGS = 64  # stretches of slots whose bindings are kept; about 100 KiB each


@dataclass(frozen=True, slots=True)
class RowWork:
    """One slot's share of a step: `tokens` come after `past` tokens that the slot already holds.

    A smaller `past` than the slot holds takes the tokens beyond it back: memory is written by position.
    """

    slot: int
    tokens: Sequence[int]
    past: int
    num_logits: int  # after how many of `tokens`, counted from the end, logits are wanted


@dataclass(frozen=True, slots=True)
class RowLogits:
    """The distribution of the token after one of a row's tokens."""

    ids: NDArray[np.int64]  # [K], by descending logit
    logits: NDArray[np.float32]  # [K]
    logsumexp: float  # over the whole vocabulary, so that exp(logits - logsumexp) are true probabilities
    vocabulary: NDArray[np.float32]  # [V], a view that the decoder's next run overwrites

    def whole(self) -> NDArray[np.float32]:
        """A copy of all logits [V]; to be asked for before the decoder's next run."""
        return self.vocabulary.copy()


@dataclass(slots=True)
class _Binding:
    """The graph's names bound to one stretch of slots, and the sizes for which the step's arrays were bound last."""

    binding: IOBinding
    sizes: tuple[int, ...] = ()


class Decoder:
    """A loaded model with `slots` independent sequences of up to `context` tokens each."""

    def __init__(
        self,
        session: InferenceSession,
        facts: ChatFacts,
        *,
        slots: int,
        context: int,
        device: tuple[str, int] | None = None,
        deterministic: bool = False,
    ) -> None:
        """device: where keys and values lie beside the graph, by name and number; None: in the box's own memory.

        deterministic: the logits of a row of two tokens or more are the same to the bit whatever rows it comes with and
        however it was cut. Kernels for one token or one row of logits are others, so a run is padded to two of each.
        """
        self.slots = slots
        self.context = context
        self.vocab_size = facts.vocab_size
        self.max_chunk = facts.max_chunk  # tokens that one row may bring into a run
        if deterministic:  # attention takes a row in tiles, and a token that is left over alone meets another kernel
            self.max_chunk = min(self.max_chunk, 2 * facts.head_dim)
        self._session = session
        self._shape = KvShape.of(facts, slots=slots, context=context)
        self._memory = KvMemory(self._shape) if device is None else DeviceKvMemory(self._shape, *device)
        self._on_device = device is not None
        self._kv_type = np.dtype(facts.kv_cache)
        self._held_tokens = np.zeros(slots, np.int32)
        self._step = _StepArrays(slots, facts, least=2 if deterministic else 1)
        self._bindings: dict[tuple[int, int], _Binding] = {}

    def run(self, rows: Sequence[RowWork]) -> list[list[RowLogits]]:
        """Advance every row in one run; the answer has, per row, as many logits as it asked for, in their order.

        Raises ValueError when two rows share a slot, a row is empty or longer than `max_chunk`, passes `context`, or
        asks for more logits than it brings tokens.
        """
        if not rows:
            return []
        self._check(rows)
        first = min(row.slot for row in rows)
        end = max(row.slot for row in rows) + 1
        for row in rows:
            held = row.past + len(row.tokens)
            self._held_tokens[row.slot] = held
            self._memory.touch(row.slot, held)
        self._step.lay_out(rows, first, end, self._held_tokens)
        bound = self._bindings.get((first, end)) or self._bind_memory(first, end)
        if self._on_device:
            bound.sizes = ()  # the runtime took the step's arrays over to the device when they were bound
        self._step.bind(bound)
        self._session.run_with_iobinding(bound.binding)
        return self._step.results(rows)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Let the target hold the first `tokens` tokens that the source holds, instead of what it held."""
        self._held_tokens[target] = tokens
        self._memory.copy(source, target, tokens)

    def trim(self, slot: int, tokens: int) -> None:
        """Give back the slot's memory beyond its first `tokens` tokens; what it held there is gone."""
        self._held_tokens[slot] = min(int(self._held_tokens[slot]), tokens)
        self._memory.trim(slot, tokens)

    def release(self, slot: int) -> None:
        """Give the slot's memory back; whatever it held is gone."""
        self.trim(slot, 0)

    @property
    def kv_shape(self) -> KvShape:
        """The sizes of the key/value memory."""
        return self._shape

    @property
    def kv_bytes_committed(self) -> int:
        """Bytes of key/value memory that sequences have touched and not given back."""
        return self._memory.committed_bytes

    def kv_bytes_for(self, tokens: int) -> int:
        """What a sequence of `tokens` tokens commits, for admission."""
        return self._shape.committed_bytes(tokens)

    def close(self) -> None:
        """Free the session and the key/value memory; the decoder cannot be used again."""
        del self._bindings, self._session, self._memory

    def _check(self, rows: Sequence[RowWork]) -> None:
        if len({row.slot for row in rows}) != len(rows):
            raise ValueError("two rows of a step share a slot")
        for row in rows:
            count = len(row.tokens)
            if not 0 <= row.slot < self.slots:
                raise ValueError(f"slot {row.slot} is not one of {self.slots}")
            if not 1 <= count <= self.max_chunk:
                raise ValueError(f"slot {row.slot}: {count} new tokens; a row brings 1 to {self.max_chunk}")
            if row.past < 0 or row.past + count > self.context:
                raise ValueError(f"slot {row.slot}: {row.past} + {count} tokens pass the context of {self.context}")
            if not 0 <= row.num_logits <= count:
                raise ValueError(f"slot {row.slot}: logits after {row.num_logits} of {count} tokens")

    def _bind_memory(self, first: int, end: int) -> _Binding:
        """Bind the stretch of the slots [first, end) as past and, to be written in place, as present.

        Four names a layer take a large model about a millisecond, so the stretches bound last are kept.
        """
        if len(self._bindings) == MAX_BINDINGS:
            del self._bindings[next(iter(self._bindings))]
        binding = self._session.io_binding()
        shape = (end - first, self._shape.kv_heads, self._shape.length, self._shape.head_dim)
        offset = first * self._shape.slot_bytes
        memory = self._memory
        for number in range(2 * self._shape.layers):
            name = f"{('key', 'value')[number % 2]}.{number // 2}"
            place = (memory.device, memory.device_id, self._kv_type, shape, memory.address_of(number) + offset)
            binding.bind_input(f"past_{name}", *place)
            binding.bind_output(f"present_{name}", *place)
        bound = self._bindings[first, end] = _Binding(binding)
        return bound


class _Outputs(NamedTuple):
    """The graph's outputs but for keys and values, by their names there, with a row for each of the logits."""

    top_ids: NDArray[np.int64]
    top_logits: NDArray[np.float32]
    logsumexp: NDArray[np.float32]
    logits: NDArray[np.float32]

    @classmethod
    def make(cls, rows: int, facts: ChatFacts) -> "_Outputs":
        """All zero. The vocabularies have a mapping of their own, so the box has it back as soon as nobody looks."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        whole = np.frombuffer(mmap.mmap(-1, 4 * rows * facts.vocab_size, flags=flags), np.float32)
        best = np.zeros((rows, facts.top_k), np.int64), np.zeros((rows, facts.top_k), np.float32)
        return cls(*best, np.zeros((rows, 1), np.float32), whole.reshape(rows, facts.vocab_size))


class _StepArrays:
    """The small arrays of a run, made once for the largest run and bound by address for the part in use.

    A run that wants more logits than there are slots, after drafts, has arrays of its own for them, which go with it: a
    vocabulary takes up to 600 KiB a row, and the most that was ever wanted would stay.
    """

    def __init__(self, slots: int, facts: ChatFacts, *, least: int) -> None:
        """least: a run is padded to so many tokens, tokens of the longest row and logits."""
        most = max(least, facts.max_chunk) * slots
        self._least = least
        self._tokens = np.zeros(most, np.int64)
        self._gather = np.zeros(most, np.int64)
        self._scatter = np.zeros(most, np.int64)
        self._last = np.zeros(most, np.int64)
        self._seqlens_k = np.zeros(slots, np.int32)
        self._query_seqlens = np.zeros(slots, np.int32)
        self._total = np.zeros((), np.int32)
        self._facts = facts
        self._sizes = (0, 0, 0, 0, 0)  # slots covered, longest row, tokens, logits, which outputs
        self._usual = self._outputs = _Outputs.make(max(least, slots), facts)
        self._num_large = 0  # runs with outputs of their own so far

    def lay_out(self, rows: Sequence[RowWork], first: int, end: int, held_tokens: NDArray[np.int32]) -> None:
        """Fill the inputs of a run over the slots [first, end)."""
        covered = end - first
        longest = max(self._least, *(len(row.tokens) for row in rows))
        self._query_seqlens[:covered] = 0
        np.maximum(held_tokens[first:end] - 1, 0, out=self._seqlens_k[:covered])  # an empty idle slot may not say -1
        gather = self._gather[: covered * longest].reshape(covered, longest)
        gather[:] = 0
        start = logits = 0
        for row in rows:
            count = len(row.tokens)
            at = row.slot - first
            stop = start + count
            self._tokens[start:stop] = row.tokens
            gather[at, :count] = range(start, stop)
            self._scatter[start:stop] = range(at * longest, at * longest + count)
            self._query_seqlens[at] = count
            self._last[logits : logits + row.num_logits] = range(stop - row.num_logits, stop)
            logits += row.num_logits
            start = stop
        tokens, num_logits = max(self._least, start), max(self._least, logits)  # the graph needs at least one place
        self._tokens[start:tokens] = self._tokens[start - 1]
        self._scatter[start:tokens] = self._scatter[start - 1]
        self._last[logits:num_logits] = start - 1
        self._outputs, which = self._usual, 0
        if num_logits > len(self._usual.logits):
            self._num_large += 1
            self._outputs, which = _Outputs.make(num_logits, self._facts), self._num_large
        self._total[()] = max(longest, int(self._seqlens_k[:covered].max()) + 1)
        self._sizes = (covered, longest, tokens, num_logits, which)

    def bind(self, bound: _Binding) -> None:
        """Bind the parts in use as the graph's inputs and outputs, unless they are bound so already."""
        if bound.sizes == self._sizes:
            return
        bound.sizes = self._sizes
        covered, longest, tokens, logits, _ = self._sizes
        inputs: list[tuple[str, NDArray[Any], tuple[int, ...]]] = [
            ("tokens", self._tokens, (tokens,)),
            ("gather", self._gather, (covered, longest)),
            ("scatter", self._scatter, (tokens,)),
            ("last", self._last, (logits,)),
            ("seqlens_k", self._seqlens_k, (covered,)),
            ("query_seqlens", self._query_seqlens, (covered,)),
            ("total", self._total, ()),
        ]
        for name, array, shape in inputs:
            bound.binding.bind_input(name, "cpu", 0, array.dtype, shape, array.ctypes.data)
        for name, array in self._outputs._asdict().items():
            bound.binding.bind_output(name, "cpu", 0, array.dtype, (logits, *array.shape[1:]), array.ctypes.data)

    def results(self, rows: Sequence[RowWork]) -> list[list[RowLogits]]:
        """What the run wrote, by row; a copy but for the whole vocabulary."""
        count = sum(row.num_logits for row in rows)
        outputs = self._outputs
        ids, logits = outputs.top_ids[:count].copy(), outputs.top_logits[:count].copy()
        sums: list[float] = outputs.logsumexp[:count, 0].tolist()
        every = map(RowLogits, ids, logits, sums, outputs.logits)
        return [list(islice(every, row.num_logits)) for row in rows]


def load_decoder(
    folder: ModelFolder,
    *,
    slots: int,
    context: int | None = None,
    threads: int,
    placement: Placement = CPU_ALONE,
    deterministic: bool = False,
) -> Decoder:
    """Load a chat model; `context` None takes the model's own. deterministic: see Decoder. Raises ModelError."""
    facts = folder.chat
    if context is not None and context > facts.context:
        raise ModelError(f"{folder.path}: a context of {context} passes the model's {facts.context}; set it lower")
    session = open_session(folder.file(model_folder.GRAPH), threads=threads, placement=placement)
    if device_of(session) is not None and facts.kv_cache != "float32":
        raise ModelError(f"{folder.path}: keys and values in {facts.kv_cache} are for the CPU; import it in float32")
    try:
        return Decoder(
            session,
            facts,
            slots=slots,
            context=context or facts.context,
            device=device_of(session),
            deterministic=deterministic,
        )
    except OSError as error:
        what = f"{slots} slots of {context or facts.context} tokens"
        raise ModelError(f"{folder.path}: no address space for {what} ({error}); set fewer slots or less") from error
