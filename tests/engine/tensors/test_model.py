"""A tensor model from its folder to its answers, on a device of its own."""

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine.batching.item import Item
from engine.batching.job import BatchJob
from engine.batching.settings import BatchingSettings
from engine.device import Device
from engine.errors import Kind, RequestError
from engine.job import Job
from engine.manifest import ClassifyFacts, TensorModelFacts
from engine.model_folder import ModelError
from engine.settings import ModelSettings
from engine.tensors import load
from engine.tensors.load import load_tensor_model
from engine.tensors.model import TensorModel
from engine.tensors.runnable import GraphRunnable
from tests.engine.tiny_tensors import WEIGHTS, facts_of, graph_of, identity, linear, write_folder

Serve = Callable[..., tuple[TensorModel, Device]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    devices: list[Device] = []

    def start(model: Any, facts: Any = None, *, max_batch: int = 4, max_queue: int = 32, **tables: Any) -> Any:
        folder = write_folder(tmp_path / "tiny", model, facts, **tables)
        settings = ModelSettings("tiny", str(folder.path), max_queue=max_queue, batching=BatchingSettings(max_batch))
        loaded = load_tensor_model(folder, settings, threads=1)
        device = Device("cpu", [loaded.lane], asyncio.get_running_loop())
        device.start()
        devices.append(device)
        return loaded, device

    yield start
    for device in devices:
        assert await device.stop(60)


def rows(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first * 4, (first + count) * 4, dtype=np.float32).reshape(count, 4)


async def test_tensors_come_back_with_their_own_rows(serve: Serve) -> None:
    model, device = serve(linear())
    answers = await asyncio.gather(*(model.infer(device, {"x": rows(1 + n % 3, n)}) for n in range(20)))
    for n, answer in enumerate(answers):
        np.testing.assert_allclose(answer["y"], rows(1 + n % 3, n) @ WEIGHTS, rtol=1e-6)
        np.testing.assert_allclose(answer["sum"], rows(1 + n % 3, n).sum(1), rtol=1e-6)
    assert model.lane.num_runs < 20
    assert model.num_rows == 0
    assert model.statistics()["inferences_total"] == 20


@pytest.mark.parametrize("instances", [1, 2, 3])
async def test_more_rows_than_a_run_takes_are_divided_and_put_together(serve: Serve, instances: int) -> None:
    model, device = serve(linear(), instances=instances)
    answer = await model.infer(device, {"x": rows(11)})
    np.testing.assert_allclose(answer["y"], rows(11) @ WEIGHTS, rtol=1e-6)
    assert model.lane.num_runs == 3
    model.close()


async def test_n02_what_the_model_does_not_take_names_the_tensor(serve: Serve) -> None:
    model, device = serve(linear())
    good = rows(2)
    for inputs, message in [
        ({}, "'x' is missing"),
        ({"x": good, "z": good}, "no input 'z'; it has: x"),
        ({"x": good.astype(np.float64)}, "'x' is of datatype FP64; the model takes FP32"),
        ({"x": good.reshape(1, 8)}, r"'x' is of shape \[1, 8\]; the model takes \[-1, 4\]"),
        ({"x": good[:0]}, r"'x' is of shape \[0, 4\]"),
        ({"x": good.reshape(-1)}, r"'x' is of shape \[8\]"),
        ({"x": np.float32(1).reshape(())}, r"'x' is of shape \[\]"),
    ]:
        with pytest.raises(RequestError, match=message) as caught:
            await model.infer(device, inputs)
        assert caught.value.kind is Kind.INVALID
    assert model.lane.num_runs == 0
    assert model.num_rows == 0


async def test_n02_a_wrong_inner_dimension_concerns_nobody_else(serve: Serve) -> None:
    model, device = serve(linear())
    good, bad = await asyncio.gather(
        model.infer(device, {"x": rows(1)}), model.infer(device, {"x": np.ones((1, 5), np.float32)}),
        return_exceptions=True,
    )  # fmt: skip
    np.testing.assert_allclose(good["y"], rows(1) @ WEIGHTS, rtol=1e-6)
    assert isinstance(bad, RequestError)


async def test_inputs_must_have_one_number_of_rows(serve: Serve) -> None:
    two = graph_of(
        [("a", TensorProto.INT64, ["n", 2]), ("b", TensorProto.INT64, ["n", 2])],
        [("c", TensorProto.INT64, ["n", 2])],
        [helper.make_node("Add", ["a", "b"], ["c"])],
    )
    model, device = serve(two)
    ones = np.ones((3, 2), np.int64)
    assert (await model.infer(device, {"b": ones, "a": ones}))["c"].tolist() == [[2, 2]] * 3
    with pytest.raises(RequestError, match="'b' has 1 rows and 'a' has 3"):
        await model.infer(device, {"a": ones, "b": ones[:1]})


async def test_rows_of_different_lengths_do_not_share_a_run(serve: Serve) -> None:
    model, device = serve(identity())
    lengths = [1, 5, 2, 5, 1, 7]
    answers = await asyncio.gather(*(model.infer(device, {"x": np.full((1, n), n, np.float32)}) for n in lengths))
    assert [answer["y"].tolist() for answer in answers] == [[[n] * n] for n in lengths]


async def test_text_is_bytes_and_other_bytes_are_refused(serve: Serve) -> None:
    model, device = serve(identity(TensorProto.STRING, ["n", 1]))
    texts = np.array([[b"a"], ["ä".encode()], [b""]], object)
    answer = await model.infer(device, {"x": texts})
    assert answer["y"].tolist() == [[b"a"], ["ä".encode()], [b""]]
    with pytest.raises(RequestError, match="'x': element 0 is not UTF-8"):
        await model.infer(device, {"x": np.array([[b"\xff"]], object)})


async def test_a_model_without_an_axis_of_rows_runs_one_request_at_a_time(serve: Serve) -> None:
    model, device = serve(identity(shape=[2, "m"]), facts_of(identity(shape=[2, "m"]), batched=False))
    answers = await asyncio.gather(*(model.infer(device, {"x": np.full((2, 3), n, np.float32)}) for n in range(3)))
    assert [answer["y"].tolist() for answer in answers] == [[[n] * 3] * 2 for n in range(3)]
    assert model.lane.num_runs == 3


async def test_o01_a_bad_row_fails_alone(serve: Serve) -> None:
    """Gather raises for an index out of range, whatever else is in the batch."""
    look_up = graph_of(
        [("x", TensorProto.INT64, ["n"])],
        [("y", TensorProto.FLOAT, ["n"])],
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        table=np.array([10, 11, 12], np.float32),
    )
    model, device = serve(look_up, max_batch=8)
    asked = [0, 1, 2, 99, 0, 1, 2, 0]
    answers = await asyncio.gather(*(model.infer(device, {"x": np.array([n])}) for n in asked), return_exceptions=True)
    assert [a["y"].tolist() if n < 3 else a.kind for n, a in zip(asked, answers, strict=True)] == [
        [10 + n] if n < 3 else Kind.FAILED for n in asked
    ]
    assert (await model.infer(device, {"x": np.array([2])}))["y"].tolist() == [12]


def keeping(least: float) -> onnx.ModelProto:
    """y = the rows of x that begin with a number above ``least``."""
    return graph_of(
        [("x", TensorProto.FLOAT, ["n", 4])],
        [("y", TensorProto.FLOAT, ["m", 4])],
        [
            helper.make_node("Gather", ["x", "first"], ["heads"], axis=1),
            helper.make_node("Greater", ["heads", "least"], ["kept"]),
            helper.make_node("Compress", ["x", "kept"], ["y"], axis=0),
        ],
        first=np.array(0),
        least=np.array(least, np.float32),
    )


async def test_o08_outputs_without_a_row_for_each_input_are_nobodys(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    model, device = serve(keeping(-1))
    asked = [rows(1) + 1, rows(1) - 9, rows(1) + 2]
    answers = await asyncio.gather(*(model.infer(device, {"x": x}) for x in asked), return_exceptions=True)
    assert isinstance(answers[1], RequestError)
    for x, answer in zip(asked, answers, strict=True):  # nobody was given another's rows
        assert isinstance(answer, RequestError) or np.array_equal(answer["y"], x)
    assert "the output 'y' has the shape" in caplog.text
    assert np.array_equal((await model.infer(device, {"x": rows(2)}))["y"], rows(2))


async def test_o08_a_graph_that_gives_no_row_for_each_is_not_loaded(serve: Serve) -> None:
    with pytest.raises(ModelError, match=r"cannot run \(the output 'y' has the shape \[0, 4\] for 1 rows\)"):
        serve(keeping(0))


async def test_too_many_rows_are_refused_and_told_when_to_come_back(serve: Serve) -> None:
    model, device = serve(linear(), max_batch=2, max_queue=1)
    many = asyncio.create_task(model.infer(device, {"x": rows(20)}))
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match=r"20 rows waiting \(at most 6\)") as caught:
        await model.infer(device, {"x": rows(1)})
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.retry_after_s is not None
    assert len((await many)["y"]) == 20
    await model.infer(device, {"x": rows(1)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": [{"name": "z", "datatype": "FP32", "shape": [-1, 4]}]}, "'z': the graph has no such input"),
        ({"inputs": [{"name": "x", "datatype": "FP16", "shape": [-1, 4]}]}, "'x': is FP32 in the graph, not FP16"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 5]}]}, r"'x': has the shape \[-1, 4\]"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]}, r"'x': has the shape \[-1, 4\]"),
        ({"outputs": [{"name": "z", "datatype": "FP32", "shape": [-1]}]}, "'z': the graph has no such output"),
        ({"example": {"x": [5]}}, "cannot run 1 rows"),
    ],
)
async def test_a_manifest_that_tells_of_another_graph_is_refused(serve: Serve, change: Any, message: str) -> None:
    told = {**facts_of(linear()).model_dump(mode="json"), **change}
    with pytest.raises(ModelError, match=message):
        serve(linear(), TensorModelFacts.model_validate_json(json.dumps(told)))


async def test_an_axis_may_be_told_as_narrower_than_the_graph_has_it(serve: Serve) -> None:
    told = facts_of(identity(shape=["n", 3]))
    model, device = serve(identity(), told)
    with pytest.raises(RequestError, match=r"the model takes \[-1, 3\]"):
        await model.infer(device, {"x": rows(1)})


async def test_labels_are_a_list_or_a_file_of_the_folder(serve: Serve) -> None:
    model, _ = serve(linear(), classify=ClassifyFacts(output="y", labels=("a", "b", "c")))
    assert model.labels == ("a", "b", "c")

    def fill(directory: Path) -> None:
        (directory / "labels.txt").write_text("eins\nzwei\ndrei\n")

    model, _ = serve(linear(), classify=ClassifyFacts(output="y", labels="labels.txt"), fill=fill)
    assert model.labels == ("eins", "zwei", "drei")
    with pytest.raises(ModelError, match=r"labels\.txt: No such file"):
        serve(linear(), classify=ClassifyFacts(output="y", labels="labels.txt"))


async def test_o02_cancelled_calls_leave_nothing_behind(serve: Serve) -> None:
    model, device = serve(linear())
    calls = [asyncio.create_task(model.infer(device, {"x": rows(3)})) for _ in range(8)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(np.allclose(answer["y"], rows(3) @ WEIGHTS) for answer in answers[1::2])
    assert model.num_rows == 0


@pytest.mark.parametrize("instances", [1, 2])
def test_a_full_batch_is_put_together_while_the_one_before_runs(tmp_path: Path, instances: int) -> None:
    folder = write_folder(tmp_path / "tiny", linear(), instances=instances)
    settings = ModelSettings("tiny", str(folder.path), batching=BatchingSettings(4))
    model = load_tensor_model(folder, settings, threads=1)
    jobs = [BatchJob(deliver=lambda event: None, arrived_at=0.0, items=[Item({"x": rows(1, n)})]) for n in range(12)]
    for job in jobs:
        model.lane.add(job)
    answers: dict[Job, Any] = {}
    while (step := model.lane.plan(0.0, math.inf)) is not None:
        answers.update(step.run())
    assert model.statistics()["batch_ahead_total"] == 2
    for n, job in enumerate(jobs):
        np.testing.assert_allclose(answers[job][0]["y"], rows(1, n) @ WEIGHTS, rtol=1e-6)
    model.close()


async def test_runs_that_take_long_go_on_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[int] = []
    both_began = threading.Event()

    def run_beside(self: GraphRunnable, payloads: Any) -> Any:
        began.append(len(payloads))
        if len(began) == 2:
            both_began.set()
        assert both_began.wait(60)
        return self.run(payloads)

    monkeypatch.setattr(load, "try_beside", lambda run, width: width)
    monkeypatch.setattr(GraphRunnable, "run_beside", run_beside)
    folder = write_folder(tmp_path / "tiny", linear())
    model = load_tensor_model(folder, ModelSettings("tiny", str(folder.path), batching=BatchingSettings(4)), threads=2)
    device = Device("cpu", [model.lane], asyncio.get_running_loop())
    device.start()
    answer = await model.infer(device, {"x": rows(8)})
    np.testing.assert_allclose(answer["y"], rows(8) @ WEIGHTS, rtol=1e-6)
    assert began == [1, 1]  # half of the rows each, as one payload
    assert await device.stop(60)
    model.close()


@pytest.mark.parametrize(("instances", "threads", "width"), [(1, 2, 2), (1, 8, 4), (1, 1, 1), (2, 4, 1)])
def test_only_one_session_of_several_threads_is_shared_by_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instances: int, threads: int, width: int
) -> None:
    monkeypatch.setattr(load, "try_beside", lambda run, width: run() and width)
    folder = write_folder(tmp_path / "tiny", linear(), instances=instances)
    model = load_tensor_model(folder, ModelSettings("tiny", str(folder.path)), threads=threads)
    assert model.lane.width == width
    model.close()
