"""A model of 7B shape, far past the 2 GB of a protobuf: imported with progress and bounded memory, and served.

Not in the default run: it writes 9 GB, takes minutes, and needs about 12 GB of memory for the engine's copy of the
weights and the page cache. `python -m pytest -m huge -s` prints the figures. In eight bits one layer is enough: of a
weight that is being rounded no more than one is in memory.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine import memory, model_folder
from tests.engine.tiny_gguf import random_blocks, tokens

LAYERS, HIDDEN, FEED_FORWARD, HEADS, VOCABULARY = 32, 4096, 11008, 32, 32_000
IMPORT_DATA_BYTES = 768 << 20  # all memory of the import that is not the mapped file, its 90 MiB of modules included
ROUNDING_DATA_BYTES = 1280 << 20  # the same of an import to int8

IMPORT = """
import json, resource, sys
from pathlib import Path
from engine.importers.gguf import import_gguf

resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[3]),) * 2)
steps = []
import_gguf(Path(sys.argv[1]), Path(sys.argv[2]), progress=lambda *step: steps.append(step), weights=sys.argv[4])
print(json.dumps({"steps": steps, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))
"""
SERVE = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from engine import model_folder
from engine.llm.decoder import RowWork, load_decoder

begin = time.monotonic()
decoder = load_decoder(model_folder.read(Path(sys.argv[1])), slots=1, context=256, threads=2)
loaded = time.monotonic()
((row,),) = decoder.run([RowWork(0, [1, 70, 80], 0, 1)])
first = row.whole()
stepped = time.monotonic()
((row,),) = decoder.run([RowWork(0, [int(row.ids[0])], 3, 1)])
print(json.dumps({
    "finite": bool(np.isfinite(first).all() and np.isfinite(row.whole()).all()),
    "spread": float(first.std()),
    "load_s": loaded - begin,
    "step_s": time.monotonic() - stepped,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.huge]


def _write(file: Path, layers: int, words: int = VOCABULARY) -> None:
    """Every layer holds the same random blocks, so that writing takes the memory of one."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(file, "llama")
    vocabulary = tokens()
    vocabulary += [f"[{at}]" for at in range(words - len(vocabulary))]
    numbers = {
        "block_count": layers,
        "context_length": 4096,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "smollm")
    writer.add_array("tokenizer.ggml.tokens", vocabulary)
    writer.add_string("tokenizer.chat_template", "{{ messages[0].content }}")
    square, up = random_blocks("Q4_K", (HIDDEN, HIDDEN), random), random_blocks("Q4_K", (FEED_FORWARD, HIDDEN), random)
    down = random_blocks("Q6_K", (HIDDEN, FEED_FORWARD), random)
    embedding = random_blocks("Q4_K", (words, HIDDEN), random)
    ones = np.ones(HIDDEN, np.float32)
    matrices = {f"attn_{part}": square for part in ("q", "k", "v", "output")} | {"ffn_gate": up, "ffn_up": up}
    q4, q6 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K
    writer.add_tensor("token_embd.weight", embedding, raw_dtype=q4)
    writer.add_tensor("output.weight", embedding, raw_dtype=q4)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(layers):
        for name, blocks in matrices.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", blocks, raw_dtype=q4)
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", down, raw_dtype=q6)
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    file = tmp_path_factory.mktemp("seven") / "seven.gguf"
    _write(file, LAYERS)
    yield file
    for left in file.parent.glob("*/weights.bin"):
        left.unlink()
    file.unlink()


def _run(script: str, *arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def test_seven_billion_weights_import_in_bounded_memory_and_serve(file: Path) -> None:
    folder = file.parent / "seven"
    imported = _run(IMPORT, file, folder, IMPORT_DATA_BYTES, "exact")
    weights = [(done, total) for stage, done, total in imported["steps"] if stage == "weights"]
    assert weights == sorted(weights)
    assert len(weights) > 5 * LAYERS
    assert weights[-1][0] == weights[-1][1]
    assert (folder / model_folder.GRAPH).stat().st_size < 4 << 20
    weights_bytes = (folder / model_folder.WEIGHTS).stat().st_size
    assert weights_bytes > 4 << 30
    print(f"import: {file.stat().st_size >> 20} to {weights_bytes >> 20} MiB, peak RSS {imported['peak']} MiB")
    if memory.available_bytes() < 2 * weights_bytes:
        pytest.fail(f"{2 * weights_bytes - memory.available_bytes() >> 20} MiB more are needed to serve it here")
    served = _run(SERVE, folder)
    print(f"serve: {served}")
    assert served["finite"]
    assert served["spread"] > 0


def test_a_layer_of_that_shape_is_rounded_to_eight_bits_in_bounded_memory(tmp_path: Path) -> None:
    file, folder = tmp_path / "layer.gguf", tmp_path / "layer"
    _write(file, 1, words=2000)
    imported = _run(IMPORT, file, folder, ROUNDING_DATA_BYTES, "int8")
    print(f"import to int8: peak RSS {imported['peak']} MiB, the file of {file.stat().st_size >> 20} MiB included")
    rounded_bytes = HIDDEN * (4 * HIDDEN + 3 * FEED_FORWARD)
    assert (folder / model_folder.WEIGHTS).stat().st_size > rounded_bytes
