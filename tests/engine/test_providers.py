"""Which provider a model runs on: what is tried, what is missing, what TensorRT keeps."""

from __future__ import annotations

from pathlib import Path

from engine.providers import Placement, why_absent

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
FOLDER = Path("/models/m")


def test_cuda_has_the_cpu_behind_it_and_its_options_are_passed_through() -> None:
    placement = Placement("cuda", {"device_id": "1"})
    assert placement.provider_list("cuda", FOLDER) == [(CUDA, {"device_id": "1"}), (CPU, {})]


def test_tensorrt_keeps_its_engines_in_the_models_folder_unless_told_otherwise() -> None:
    [(name, options), (second, _), (third, _)] = Placement(
        "tensorrt", {"trt_fp16_enable": "1", "trt_timing_cache_path": "/cache"}
    ).provider_list("tensorrt", FOLDER)
    assert (name, second, third) == (TENSORRT, CUDA, CPU)
    assert options == {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/models/m/tensorrt",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "/cache",
        "trt_fp16_enable": "1",
    }


def test_the_options_of_one_provider_are_not_another_ones() -> None:
    assert Placement("cuda", {"device_id": "1"}, ("cpu",)).provider_list("cpu", FOLDER) == [(CPU, {})]


def test_what_is_missing_is_told_with_what_is_there_and_a_fallback_is_enough() -> None:
    why = why_absent(Placement("tensorrt", fallback=("cuda",)), [CPU, "AzureExecutionProvider"])
    assert why is not None
    assert why.startswith("this onnxruntime has cpu, not tensorrt or cuda; install onnxruntime-gpu")
    assert why_absent(Placement("tensorrt", fallback=("cuda", "cpu")), [CPU]) is None
    assert why_absent(Placement(), [CPU]) is None
