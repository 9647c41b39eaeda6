"""How large each column becomes of what a text encoder's products read, found by reading a text.

Runs the graph in float32, written for it and removed. Knows nothing of rounding.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine import session
from engine.importers import bert_graph
from engine.importers.bert_graph import BertShape
from engine.importers.calibration_text import CALIBRATION_TEXT
from engine.importers.weights import WeightsFile
from engine.model_folder import GRAPH, WEIGHTS

Floats = NDArray[np.float32]

TEXT_TOKENS = (1, 3, 14, 30, 62, 6, 100, 2, 20, 48)  # of the texts that the whole is cut into, one after another
_READ = {"LayerNormalization", "Gelu"}


def calibration_rows(tokenizer: Tokenizer, *, max_tokens: int) -> Iterator[list[int]]:
    """Texts of many lengths as ids, start and end included."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    start, end = tokenizer.encode("").ids
    ids = tokenizer.encode(CALIBRATION_TEXT, add_special_tokens=False).ids
    for length in cycle(min(length, max_tokens - 2) for length in TEXT_TOKENS):
        if not ids:
            return
        yield [start, *ids[:length], end]
        ids = ids[length:]


def column_sizes(
    shape: BertShape, weights: Mapping[str, Floats], rows: Iterable[Sequence[int]], directory: Path
) -> dict[str, Floats]:
    """By value, the largest size of each column over all tokens. directory: has room for the weights meanwhile."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        place = Path(name)
        with WeightsFile(place / WEIGHTS) as file:
            model = bert_graph.build(shape, weights, file)
        names = [node.output[0] for node in model.graph.node if node.op_type in _READ]
        model.graph.output.extend(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names
        )
        onnx.save_model(model, place / GRAPH)
        reading = session.open_session(place / GRAPH, threads=0)
        sizes: dict[str, Floats] = {}
        for row in rows:
            feeds = {"token_ids": np.array([row], np.int32), "lengths": np.array([len(row)], np.int32)}
            for value, found in zip(names, reading.run(names, feeds), strict=True):
                largest = np.abs(found).max(axis=0)
                sizes[value] = np.maximum(sizes.get(value, largest), largest)
        return sizes
