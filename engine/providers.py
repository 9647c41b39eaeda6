"""Where a model's graph runs: the execution providers by the names that a configuration uses, and in which order they
are tried.

Pure. Falling back is by configuration only: what is not named is not tried. ONNX Runtime itself runs single nodes that
a provider has no kernel for on the next one of its list, at last on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ProviderName = Literal["cpu", "cuda", "tensorrt"]
ProviderList = list[tuple[str, dict[str, str]]]

#: What each is called in ONNX Runtime, and which providers take over nodes that it has no kernel for.
ORT_NAMES: dict[ProviderName, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_BEHIND: dict[ProviderName, tuple[ProviderName, ...]] = {"cpu": (), "cuda": ("cpu",), "tensorrt": ("cuda", "cpu")}
TENSORRT_CACHE = "tensorrt"  # in the model's folder: engines take minutes to build and fit one GPU and version


@dataclass(frozen=True, slots=True)
class Placement:
    """A provider, its options as ONNX Runtime knows them, and what to try when it is not there or does not start."""

    provider: ProviderName = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    fallback: tuple[ProviderName, ...] = ()

    @property
    def tried(self) -> tuple[ProviderName, ...]:
        """The providers in the order in which they are tried."""
        return (self.provider, *self.fallback)

    def provider_list(self, provider: ProviderName, folder: Path) -> ProviderList:
        """What a session on one of ``tried`` is made with. folder: of the model, for what TensorRT builds."""
        options = dict(self.options) if provider == self.provider else {}
        if provider == "tensorrt":
            cache = str(folder / TENSORRT_CACHE)
            options = {
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": cache,
                "trt_timing_cache_enable": "1",
                "trt_timing_cache_path": cache,
                **options,
            }
        return [(ORT_NAMES[provider], options), *((ORT_NAMES[name], {}) for name in _BEHIND[provider])]


def why_absent(placement: Placement, installed: Sequence[str]) -> str | None:
    """None when one of the placement's providers is in this onnxruntime, else what is missing and what is there."""
    if any(ORT_NAMES[name] in installed for name in placement.tried):
        return None
    there = ", ".join(name for name, ort_name in ORT_NAMES.items() if ort_name in installed)
    wanted = " or ".join(placement.tried)
    return (
        f"this onnxruntime has {there or 'no provider that we know'}, not {wanted}; install onnxruntime-gpu in place of"
        " onnxruntime, or name a provider that is there"
    )
