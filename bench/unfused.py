"""The usual way from a photograph to a class: Pillow decodes it whole, numpy makes floats of it, a graph takes these.

What peers do, and what the fused pipeline's results are held against. Runs in the peers' environments too. Knows Open
NSFW's preprocessing and nothing of Headrace's adapters.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

MEAN_BGR = np.array([104.0, 117.0, 123.0], np.float32)
Row = NDArray[np.float32]


def preprocess(data: bytes) -> Row:
    """float32[224, 224, 3]: the middle of a picture of 256 x 256, channels in the order blue, green, red."""
    picture = Image.open(BytesIO(data)).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, dtype=np.float32)[16:240, 16:240]
    return pixels[:, :, ::-1] - MEAN_BGR


def session(folder: Path, threads: int) -> onnxruntime.InferenceSession:
    """The folder's graph as it is."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
