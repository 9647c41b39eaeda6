"""The one place that makes ONNX Runtime sessions: telemetry, providers, threads, memory.

Everything that runs a graph takes its session from here, so that every model of an engine shares the same bounds.
"""

import os
from collections.abc import Sequence
from pathlib import Path

# The wheels report usage unless this is set before the module is first imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

from engine.model_folder import ModelError

CPU = "CPUExecutionProvider"

ort.set_default_logger_severity(3)  # errors only; what matters is raised


def open_session(
    graph: Path, *, threads: int, spinning: bool = False, providers: Sequence[str] = (CPU,)
) -> ort.InferenceSession:
    """Load a graph on the first of `providers` that takes each node.

    `threads` work inside one run (0: one per core). `spinning` keeps them busy between runs, which is faster by some
    per cent on a box that does nothing else and slows everything else on one that does. Raises ModelError when a provider
    is not installed or the graph cannot be loaded.
    """
    installed = ort.get_available_providers()
    if absent := [name for name in providers if name not in installed]:
        raise ModelError(
            f"the execution provider {absent[0]} is not in this onnxruntime, which has {', '.join(installed)}; "
            "install onnxruntime-gpu in place of onnxruntime or choose a provider that is there"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    # A hand-made graph may hold what a later optimiser would fuse; nothing may fall back to another provider unseen.
    try:
        return ort.InferenceSession(str(graph), options, providers=list(providers))
    except Exception as error:  # the module's exceptions share no class but Exception
        raise ModelError(f"{graph}: ONNX Runtime cannot load it ({error}); import the model again") from error
