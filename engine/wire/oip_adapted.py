"""Files and texts in an inference request: BYTES for an input that an adapter of the model fills.

An input that takes pictures or token ids by an adapter may also be sent as BYTES of shape [rows] or [rows, 1]: a file
or a text in each element. In JSON, whose strings hold no files, a picture is in base64. The other inputs are tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.adapters.image import ImageAdapter
from engine.adapters.image_header import is_image
from engine.batching.request import Runner
from engine.errors import invalid
from engine.pool import Pool
from engine.tensors.check import Feeds, check_inputs
from engine.tensors.model import TensorModel
from engine.tensors.raw_rows import RawRow, infer_raw

MAX_ROWS = 256  # with elements for an adapter

Arrays = Mapping[str, NDArray[Any]]


def adapted_inputs(model: TensorModel, inputs: Arrays) -> list[str]:
    """The inputs whose elements an adapter is to read."""
    return [
        name
        for name, array in inputs.items()
        if array.dtype == object and name in model.adapters and not _takes_bytes(model, name)
    ]


async def infer_adapted(
    pool: Pool,
    device: Runner,
    model: TensorModel,
    inputs: Arrays,
    adapted: Sequence[str],
    *,
    level: int,
    deadline_at: float | None,
) -> Feeds:
    """As ``TensorModel.infer``, for inputs of which ``adapted`` are BYTES. Raises RequestError."""
    rows, places = rows_of(model, inputs, adapted)
    names = [tensor.name for tensor in model.facts.outputs]
    results = await infer_raw(pool, device, model, rows, places, outputs=names, level=level, deadline_at=deadline_at)
    for name in names:
        if len({result[name].shape for result in results}) > 1:
            raise invalid(f"the rows give the output {name!r} in different shapes; send them one at a time", name)
    return {name: np.concatenate([result[name] for result in results]) for name in names}


def rows_of(model: TensorModel, inputs: Arrays, adapted: Sequence[str]) -> tuple[list[RawRow], list[str]]:
    """The request's rows, and what an error calls each. Raises RequestError (400) naming an input."""
    num_rows = _num_rows(inputs, adapted)
    filled = {name for each in adapted for name in model.adapters[each].inputs}
    facts = model.facts
    others = tuple(tensor for tensor in facts.inputs if tensor.name not in filled)
    given = {name: array for name, array in inputs.items() if name not in adapted}
    if others:
        given = check_inputs(facts.model_copy(update={"inputs": others}), given)
    elif given:
        raise invalid(f"the input {next(iter(given))!r} is filled by the model's adapter; leave it out")
    for name, array in given.items():
        if len(array) != num_rows:
            raise invalid(f"the input {name!r} has {len(array)} rows and {adapted[0]!r} has {num_rows}", name)
    rows: list[RawRow] = [
        {
            **{name: _as_sent(model, name, inputs[name].flat[index]) for name in adapted},
            **{name: array[index : index + 1] for name, array in given.items()},
        }
        for index in range(num_rows)
    ]
    what = " or ".join(f"the input {name!r}" for name in adapted)
    return rows, [f"{what}: element {index}" for index in range(num_rows)]


def _num_rows(inputs: Arrays, adapted: Sequence[str]) -> int:
    for name in adapted:
        if (shape := inputs[name].shape)[1:] not in ((), (1,)) or not shape:
            raise invalid(f"the input {name!r} is BYTES of shape {list(shape)}; send [rows] or [rows, 1]", name)
    num_rows = len(inputs[adapted[0]])
    for name in adapted[1:]:
        if len(inputs[name]) != num_rows:
            raise invalid(f"the input {name!r} has {len(inputs[name])} rows and {adapted[0]!r} has {num_rows}", name)
    if num_rows > MAX_ROWS:
        raise invalid(
            f"the input {adapted[0]!r} has {num_rows} rows; of BYTES at most {MAX_ROWS} are taken", adapted[0]
        )
    return num_rows


def _as_sent(model: TensorModel, name: str, element: bytes) -> bytes | str:
    """A file, or the base64 of one."""
    if isinstance(model.adapters[name], ImageAdapter) and not is_image(element) and element.isascii():
        return element.decode()
    return element


def _takes_bytes(model: TensorModel, name: str) -> bool:
    tensor = model.facts.input(name)
    return tensor is not None and tensor.datatype == "BYTES"
