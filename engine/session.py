"""The one place that makes ONNX Runtime sessions: telemetry, providers, threads, memory.

Everything that runs a graph takes its session from here, so that every model of an engine shares the same bounds.
"""

import os
from collections.abc import Sequence
from pathlib import Path

# The wheels report usage unless this is set before the module is first imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort
from onnxruntime import InferenceSession, IOBinding

from engine.model_folder import ModelError

__all__ = ["CPU", "IOBinding", "InferenceSession", "open_session"]

CPU = "CPUExecutionProvider"

# How long a thread of a run waits awake for its next task. The tasks of a decode step lie some microseconds apart, so
# this spares a wake-up at each: one stream 19.6 -> 11.8 ms a step and eight 38 -> 29 ms on two free cores, for less
# processor time in all. Between runs it is nothing. With both cores taken by others it costs 7 to 14 %; longer
# spinning gains no more on free cores and costs 20 to 28 % on busy ones.
SPIN_US = 20

ort.set_default_logger_severity(3)  # errors only; what matters is raised


def open_session(
    graph: Path, *, threads: int, spin_us: int = SPIN_US, providers: Sequence[str] = (CPU,)
) -> InferenceSession:
    """Load a graph on the first of `providers` that takes each node.

    `threads` work inside one run (0: one per core); one that has nothing to do stays awake for `spin_us` before it
    sleeps. Raises ModelError when a provider is not installed or the graph cannot be loaded.
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
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin_us else "0")
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_us))
    try:
        return InferenceSession(str(graph), options, providers=list(providers))
    except Exception as error:  # the module's exceptions share no class but Exception
        raise ModelError(f"{graph}: ONNX Runtime cannot load it ({error}); import the model again") from error
