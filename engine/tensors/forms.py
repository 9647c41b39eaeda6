"""The shapes of a row that a model is warmed up with: what its requests will bring, as far as the manifest tells.

Pure.
"""

from __future__ import annotations

from engine.manifest import Manifest
from engine.tensor_facts import TensorModelFacts

Form = dict[str, tuple[int, ...]]  # of each input its shape, without the axis of rows when the model is batched

#: Lengths that free axes are tried with, all of them alike, when nobody has said which are usual.
TRIED_LENGTHS = (16, 32, 64, 224, 8, 1)


def form_of(facts: TensorModelFacts, free: int) -> Form:
    """A row whose free axes all have the length ``free``."""
    skipped = 1 if facts.batched else 0
    return {
        tensor.name: tuple(free if length == -1 else length for length in tensor.shape[skipped:])
        for tensor in facts.inputs
    }


def has_free_axes(facts: TensorModelFacts) -> bool:
    """Whether rows may differ in shape."""
    return any(-1 in tensor.shape[1 if facts.batched else 0 :] for tensor in facts.inputs)


def forms(manifest: Manifest, example: Form) -> list[Form]:
    """The example, or where an adapter sets sizes, a row of each of its own, the smallest first."""
    adapter, facts = manifest.adapter, manifest.tensors
    if adapter is None or facts is None:
        return [example]
    rows = [example]
    if (image := adapter.image) is not None:
        rows = [{**example, image.input: image.row(width)} for width in image.widths or image.size[:1]]
    if (text := adapter.text) is None:
        return rows
    names = [name for name in (text.ids, text.mask, text.types) if name is not None]
    lengths = text.buckets or (text.max_tokens,)
    return [{**row, **dict.fromkeys(names, (length,))} for row in rows for length in lengths]


def batch_sizes(max_batch: int) -> list[int]:
    """1, 2, 4 and so on, and max_batch: a kernel that is chosen by the number of rows has been chosen for each."""
    sizes = [1 << power for power in range(max_batch.bit_length()) if 1 << power < max_batch]
    return [*sizes, max_batch]
