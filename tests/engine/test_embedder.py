"""The embedder on a real device thread with a tiny model: answers, limits, cancellation."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from engine import model_folder
from engine.batching.settings import BatchingSettings
from engine.device import Device
from engine.embedder import Embedder, load_embedder
from engine.embedding_run import EmbeddingRun
from engine.errors import Kind, RequestError
from engine.importers.bert import import_bert
from engine.model_folder import ModelError
from engine.pool import Pool
from engine.settings import ModelSettings
from tests.engine.tiny_bert import SHAPE, WORDS, embed_by_numpy, make_weights, write_bert_folder

POOL = Pool()  # its threads begin with the first long text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embedder")
    import_bert(write_bert_folder(path / "source"), path / "tiny", name="tiny")
    return path / "tiny"


@pytest.fixture
def max_queue() -> int:
    return 100


@pytest.fixture
def embedder(folder: Path, max_queue: int) -> Embedder:
    settings = ModelSettings(name="embed", path=str(folder), batching=BatchingSettings(4), max_queue=max_queue)
    return load_embedder(model_folder.read(folder), settings, threads=1)


@pytest.fixture
async def device(embedder: Embedder) -> AsyncIterator[Device]:
    device = Device("cpu", [embedder.lane], asyncio.get_running_loop())
    yield device
    await device.stop(10)


def words(*ids: int) -> str:
    return " ".join(WORDS[id] for id in ids)


async def test_vectors_equal_the_reference_in_the_order_of_the_texts(embedder: Embedder, device: Device) -> None:
    device.start()
    rows = [[7], [11, 12, 13, 8, 9, 10], [12], [7, 8, 7, 8, 7, 8, 7, 8, 7, 8, 7, 8], [13, 11]]
    answer = await embedder.embed(device, POOL, [words(*row) for row in rows])
    by_ids = await embedder.embed(device, POOL, rows)
    expected = [embed_by_numpy(SHAPE, make_weights(), [2, *row, 3]) for row in rows]
    np.testing.assert_allclose(answer.vectors, expected, atol=1e-5)
    np.testing.assert_allclose(by_ids.vectors, expected, atol=1e-5)
    assert answer.vectors.dtype == np.float32
    assert answer.num_tokens == sum(len(row) + 2 for row in rows)
    assert embedder.statistics()["embedded_texts_total"] == 10
    assert embedder.statistics()["embedding_tokens_inside"] == 0


async def test_M05_many_at_once_equal_each_alone(embedder: Embedder, device: Device) -> None:
    device.start()
    rows = [[7 + index % 7] * (1 + index % 20) for index in range(60)]
    answers = await asyncio.gather(*(embedder.embed(device, POOL, [row]) for row in rows))
    assert embedder.lane.num_runs < 60
    for row, answer in zip(rows, answers, strict=True):
        alone = embed_by_numpy(SHAPE, make_weights(), [2, *row, 3])
        assert float(answer.vectors[0] @ alone) >= 0.9999
        np.testing.assert_allclose(answer.vectors[0], alone, atol=1e-5)


async def test_M04_a_refusal_names_the_place(embedder: Embedder, device: Device) -> None:
    with pytest.raises(RequestError, match=r"input\[1\] is an empty string"):
        await embedder.embed(device, POOL, ["a", "", "b"])
    with pytest.raises(RequestError, match=r"input\[2\] has 25 tokens, of which at most 24"):
        await embedder.embed(device, POOL, ["a", "b", words(*[7] * 23)])
    assert embedder.backlog.num_tokens == 0


async def test_long_texts_are_encoded_off_the_loop(embedder: Embedder, device: Device) -> None:
    device.start()
    answer = await embedder.embed(device, POOL, [" " * 2000 + "hello", " " * 2200 + "a"])
    assert answer.num_tokens == 6
    assert POOL.num_done == 1
    with pytest.raises(RequestError, match=r"input\[1\] has"):
        await embedder.embed(device, POOL, [" " * 2000 + "hello", " " * 2401])


@pytest.mark.parametrize("max_queue", [2])
async def test_O04_too_many_waiting_tokens_are_503_with_a_time(embedder: Embedder, device: Device) -> None:
    """The device does not run yet, so what comes waits."""
    tasks = [asyncio.create_task(embedder.embed(device, POOL, [words(*[7] * 20)])) for _ in range(3)]
    await asyncio.sleep(0)  # short texts are encoded at once, so one turn of the loop queues all three
    assert embedder.backlog.num_tokens == 3 * 22
    with pytest.raises(RequestError, match=r"has 66 tokens waiting \(at most 48\)") as caught:
        await embedder.embed(device, POOL, ["a"])
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.headers()["Retry-After"] == "1"
    device.start()
    await asyncio.gather(*tasks)
    assert (await embedder.embed(device, POOL, ["a"])).num_tokens == 3


async def test_O02_a_client_that_leaves_takes_its_job_along(embedder: Embedder, device: Device) -> None:
    stays = asyncio.create_task(embedder.embed(device, POOL, ["a"]))
    gone = [asyncio.create_task(embedder.embed(device, POOL, ["b"])) for _ in range(3)]
    await asyncio.sleep(0)
    assert embedder.backlog.num_tokens == 12
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    assert embedder.backlog.num_tokens == 3
    device.start()
    np.testing.assert_allclose((await stays).vectors[0], embed_by_numpy(SHAPE, make_weights(), [2, 7, 3]), atol=1e-5)
    assert embedder.statistics()["batch_rows_waiting"] == 0


async def test_O02_leaving_at_any_moment_never_stops_the_others(embedder: Embedder, device: Device) -> None:
    device.start()
    for turn in range(100):
        tasks = [asyncio.create_task(embedder.embed(device, POOL, ["a", "b"])) for _ in range(3)]
        for _ in range(turn % 7):
            await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not isinstance(results[0], BaseException)
        assert not isinstance(results[2], BaseException)
    assert embedder.backlog.num_tokens == 0


async def test_O01_a_model_that_raises_fails_requests_not_the_loop(
    embedder: Embedder, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.start()
    runnable = embedder.lane.runnable
    assert isinstance(runnable, EmbeddingRun)
    encoder = runnable.encoder
    whole = encoder.run

    def run(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        if (token_ids == 13).any():
            raise RuntimeError("no")
        return whole(token_ids, lengths)

    monkeypatch.setattr(encoder, "run", run)
    texts = ["a", "wheel", "b", "hello"]
    results = await asyncio.gather(*(embedder.embed(device, POOL, [text]) for text in texts), return_exceptions=True)
    assert [isinstance(result, RequestError) for result in results] == [False, True, False, False]
    assert (await embedder.embed(device, POOL, ["a"])).num_tokens == 3
    assert await device.ping(10)


def test_another_kind_of_folder_and_a_damaged_graph_are_named(folder: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="embed", path=str(tmp_path))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in folder.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "tokenizer.json").write_bytes(b"x" * (damaged / "tokenizer.json").stat().st_size)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_embedder(model_folder.read(damaged), settings, threads=1)


def test_created_is_the_manifests_instant(embedder: Embedder) -> None:
    assert 0 <= time.time() - embedder.created < 600
    embedder.close()
