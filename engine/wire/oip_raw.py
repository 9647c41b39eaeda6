"""A request of the Open Inference Protocol without a header: its body is the bytes of the model's only input.

Triton's raw binary request (binary tensor data extension, ``Inference-Header-Content-Length: 0``). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.errors import invalid
from engine.tensor_facts import TensorFacts
from engine.tensors.datatypes import element_bytes
from engine.wire import oip_binary
from engine.wire.oip_request import InferRequest


def parse_raw(body: memoryview, inputs: Sequence[TensorFacts]) -> InferRequest:
    """The request in a body that is the bytes of one tensor. Its answer is binary.

    inputs: the model's. One axis may be free, and is as long as the bytes are; where two are, the first is the batch
    and 1 long. The bytes of BYTES are one element, without a length. Raises RequestError (400).
    """
    if len(inputs) != 1:
        raise invalid(f"the model has {len(inputs)} inputs; a body without a JSON header can hold only one")
    (tensor,) = inputs
    place = f"the input {tensor.name!r}"
    free = [axis for axis, length in enumerate(tensor.shape) if length == -1]
    shape = [abs(length) for length in tensor.shape]
    if tensor.datatype == "BYTES":
        if math.prod(shape) != 1:
            raise invalid(f"{place}: has more than one element; send a JSON header and binary_data_size")
        body = memoryview(len(body).to_bytes(4, "little") + body)
    else:
        if len(free) > 1 and free[0] == 0:
            del free[0]
        if len(free) > 1:
            raise invalid(f"{place}: {len(free)} of its axes are free; send a JSON header that says how long they are")
        for axis in free:
            shape[axis] = max(1, len(body) // (math.prod(shape) * (element_bytes(tensor.datatype) or 1)))
    return InferRequest({tensor.name: oip_binary.to_array(body, tensor.datatype, shape, place)}, None, True)
