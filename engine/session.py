"""The one place that makes ONNX Runtime sessions: telemetry, providers, threads, memory.

Everything that runs a graph takes its session from here, so that every model of an engine shares the same bounds.
"""

import logging
import math
import os
import re
from itertools import pairwise
from pathlib import Path

# The wheels report usage unless this is set before the module is first imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession, IOBinding, OrtValue

from engine.model_folder import ModelError
from engine.providers import ORT_NAMES, Placement, ProviderList, why_absent

__all__ = [
    "DeviceArray",
    "IOBinding",
    "InferenceSession",
    "device_of",
    "installed_providers",
    "num_beside",
    "open_session",
]

# How long a thread of a run waits awake for its next task. The tasks of a decode step lie some microseconds apart, so
# this spares a wake-up at each: one stream 19.6 -> 11.8 ms a step and eight 38 -> 29 ms on two free cores, for less
# processor time in all. Between runs it is nothing. With both cores taken by others it costs 7 to 14 %; longer
# spinning gains no more on free cores and costs 20 to 28 % on busy ones.
SPIN_US = 20

CPU_ALONE = Placement()

_CPU_INFO = Path("/proc/cpuinfo")
_EXACT_SUMS = {"avx512_vnni", "avx_vnni"}  # flags of processors that add products of eight bits up in 32
_MOST_BESIDE = 4  # runs; with more cores each has several

ort.set_default_logger_severity(3)  # errors only; what matters is raised
_log = logging.getLogger(__name__)


def installed_providers() -> list[str]:
    """ONNX Runtime's names of the execution providers that this onnxruntime was built with."""
    installed: list[str] = ort.get_available_providers()
    return installed


def open_session(
    graph: Path,
    *,
    threads: int,
    spin_us: int = SPIN_US,
    placement: Placement = CPU_ALONE,
    instead: bytes | None = None,
) -> InferenceSession:
    """Load a graph on the first of the placement's providers that is installed and starts.

    instead: the graph that is run in place of what the file holds, over the weights that lie beside the file.
    `threads` work inside one run on the CPU (0: one per core); one that has nothing to do stays awake for `spin_us`
    before it sleeps. Raises ModelError when no provider is there or the graph cannot be loaded.
    """
    installed = installed_providers()
    if why := why_absent(placement, installed):
        raise ModelError(why)
    there = [name for name in placement.tried if ORT_NAMES[name] in installed]
    if there[0] != placement.provider:
        _log.warning("%s: %s is not installed; falling back to %s", graph.parent, placement.provider, there[0])
    for provider, following in pairwise(there):
        try:
            return _open(graph, placement.provider_list(provider, graph.parent), threads, spin_us, instead)
        except ModelError as error:
            _log.warning("%s; falling back to %s", error, following)
    return _open(graph, placement.provider_list(there[-1], graph.parent), threads, spin_us, instead)


def _open(graph: Path, providers: ProviderList, threads: int, spin_us: int, instead: bytes | None) -> InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # A plan of the memory for every shape that ever came is no faster, and is never forgotten (bench/llm_soak.py).
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin_us else "0")
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_us))
    if not _sums_exactly():
        options.add_session_config_entry("session.x64quantprecision", "1")
    if instead is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
    try:
        session = InferenceSession(instead or str(graph), options, providers=providers, enable_fallback=0)
    except Exception as error:  # the module's exceptions share no class but Exception
        raise ModelError(f"{graph}: ONNX Runtime cannot load it ({error}); import the model again") from error
    wanted, active = providers[0][0], session.get_providers()
    if active[0] != wanted:  # it goes on without a provider whose libraries it does not find
        raise ModelError(f"{graph}: {wanted} does not start, only {', '.join(active)}; are its libraries installed?")
    return session


def _sums_exactly() -> bool:
    """Whether ONNX Runtime may multiply uint8 by int8 as it does by itself.

    Without VNNI an x86 processor adds two such products up in 16 bits, which overflows: answers would be wrong without
    a word. ONNX Runtime then makes both uint8 where it is asked to, which takes twice as long where there is VNNI. On
    other processors it asks for nothing.
    """
    try:
        flags = re.search(r"^flags\s*:(.*)", _CPU_INFO.read_text(), re.MULTILINE)
    except OSError:
        return False
    return flags is not None and not _EXACT_SUMS.isdisjoint(flags[1].split())


def device_of(session: InferenceSession) -> tuple[str, int] | None:
    """Name and number of the GPU that the session runs on; None: it runs on the CPU."""
    provider = session.get_providers()[0]
    if provider == ORT_NAMES["cpu"]:
        return None
    return "cuda", int(session.get_provider_options()[provider].get("device_id", 0))


def num_beside(session: InferenceSession, threads: int) -> int:
    """How many runs may go on beside each other: some on a CPU of several cores, 1 where there is nothing to share."""
    return 1 if device_of(session) is not None else max(1, min(threads, _MOST_BESIDE))


class DeviceArray:
    """A float32 array of zeros in a device's memory, which goes with it."""

    def __init__(self, shape: tuple[int, ...], device: str, device_id: int) -> None:
        """Raises ModelError when the device has too little memory."""
        try:
            self._value = OrtValue.ortvalue_from_shape_and_type(shape, np.float32, device, device_id)
            self._value.update_inplace(np.zeros(shape, np.float32))
        except Exception as error:  # the module's exceptions share no class but Exception
            mib = math.prod(shape) * 4 >> 20
            raise ModelError(
                f"{device} {device_id} has no {mib} MiB more ({error}); set fewer slots or less"
            ) from error

    @property
    def address(self) -> int:
        """Where it begins, as the device counts."""
        return int(self._value.data_ptr())
