"""Lines of text as pictures of any width, over HTTP, read by the real recogniser of PP-OCRv4."""

import json
import shutil
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import yaml
from PIL import Image, ImageDraw, ImageFont

from engine import model_folder
from engine.catalog_extras import LINES
from tests.engine.adapters.pictures import encode
from tests.engine.wire.oip_box import Answer, Box, serve, tensor
from tests.engine.wire.test_oip_adapted import elements

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def folder(pulled: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the catalogue's adapter, put there by hand as an operator would."""
    folder = shutil.copytree(pulled("pp-ocrv4-rec"), tmp_path_factory.mktemp("lines") / "lines")
    manifest = yaml.safe_load((folder / "model.yaml").read_text())
    manifest["adapter"] = {"image": json.loads(LINES.model_dump_json())}
    (folder / "model.yaml").write_text(yaml.safe_dump({**manifest, "name": "lines", "batching": {"cost": "pixels"}}))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(folder: Path) -> AsyncIterator[Box]:
    async with serve(folder.parent, model_folder.read(folder), max_batch=4) as running:
        yield running


def picture(text: str, size: int = 36, **options: Any) -> bytes:
    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(text)
    margin = size // 4
    image = Image.new("RGB", (round(right - left) + 2 * margin, round(bottom - top) + 2 * margin), "white")
    ImageDraw.Draw(image).text((margin - left, margin - top), text, "black", font)
    return encode(image, options.pop("format_", "PNG"), **options)


async def read(box: Box, *pictures: bytes) -> Answer:
    content = elements(*pictures)
    header = {
        "inputs": [
            {
                "name": "x",
                "datatype": "BYTES",
                "shape": [len(pictures)],
                "parameters": {"binary_data_size": len(content)},
            }
        ]
    }
    return await box.infer(header, content, model="lines")


def texts(answer: Answer, folder: Path) -> list[str]:
    """The best character at each place, runs of one taken once and blanks left out (CTC)."""
    assert answer.status == 200, answer.error
    characters = ["", *(folder / "characters.txt").read_text().splitlines(), " "]
    (output,) = answer.json["outputs"]
    best = answer.array(output["name"]).argmax(axis=-1)
    changes = [[id for id, before in zip(row, [0, *row[:-1]], strict=True) if id != before] for row in best]
    return ["".join(characters[id] for id in row) for row in changes]


@pytest.mark.parametrize(
    ("line", "width"), [("Race", 160), ("Headrace 2026", 320), ("water runs to the mill and drives its wheel", 1280)]
)
async def test_a_picture_of_any_width_is_read(box: Box, folder: Path, line: str, width: int) -> None:
    for format_, size in (("PNG", 36), ("JPEG", 72)):
        answer = await read(box, picture(line, size, format_=format_))
        assert [text.strip() for text in texts(answer, folder)] == [line]
        assert answer.json["outputs"][0]["shape"][1] == width // 8


async def test_lines_of_one_width_are_read_together_and_of_several_one_at_a_time(box: Box, folder: Path) -> None:
    lines = ["Headrace 2026", "a weir, a race", "mill and wheel"]
    answer = await read(box, *map(picture, lines))
    assert [text.strip() for text in texts(answer, folder)] == lines
    alone = [await read(box, picture(line)) for line in lines]
    (output,) = answer.json["outputs"]
    together = answer.array(output["name"])
    for row, each in zip(together, alone, strict=True):
        np.testing.assert_allclose(row, each.array(output["name"])[0], atol=1e-4)
    refused = await read(box, picture("Race"), picture("Headrace 2026"))
    assert refused.status == 400
    assert "in different shapes; send them one at a time" in refused.error


async def test_the_fused_graph_equals_the_unfused_pipeline(box: Box) -> None:
    """The floats that PaddleOCR would make of the file, sent as a tensor."""
    file = picture("Headrace 2026")
    canvas = Image.new("RGB", (320, 48), (128,) * 3)
    with Image.open(BytesIO(file)) as image:
        canvas.paste(
            image.resize((round(image.width * 48 / image.height), 48), Image.Resampling.BILINEAR, reducing_gap=3)
        )
    floats = (np.asarray(canvas, np.float32)[..., ::-1] / 255 - 0.5) / 0.5
    usual = await box.infer({"inputs": [tensor(floats.transpose(2, 0, 1)[np.newaxis])]}, model="lines")
    fused = await read(box, file)
    (output,) = fused.json["outputs"]
    np.testing.assert_allclose(fused.array(output["name"]), usual.array(output["name"]), atol=1e-3)
