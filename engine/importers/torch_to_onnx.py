"""`python -m engine.importers.torch_to_onnx PROGRAM.pt2 GRAPH.onnx`: an exported program as an ONNX graph.

The program has been through engine/importers/pt2_archive.py. PyTorch and onnxscript are imported here and nowhere else.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_MEMORY_FACTOR = 12  # of the program: it, its copy in torch and in ONNX, and what constant folding makes
_MEMORY_BYTES = 16 << 30  # beside it: mostly address space that is never touched


def main() -> None:
    """Translate, with weights beside the graph."""
    program, graph = Path(sys.argv[1]), Path(sys.argv[2])
    limit = _MEMORY_BYTES + _MEMORY_FACTOR * program.stat().st_size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    import torch

    exported = torch.export.load(program)
    translated = torch.onnx.export(exported, dynamo=True, verify=False, verbose=False)
    if translated is None:
        raise SystemExit("torch.onnx.export gave nothing")
    translated.save(graph, external_data=True)


if __name__ == "__main__":
    main()
