"""Photographs to measure with: made, since none may be taken along, of about the bytes that a telephone's have."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image, ImageChops

WIDTH, HEIGHT = 4000, 3000  # twelve megapixels
QUALITY = 90


def photographs(count: int, *, width: int = WIDTH, height: int = HEIGHT) -> list[bytes]:
    """JPEGs of soft shapes and ever finer structure with some grain, as a lens and a sensor leave them: 3 MB each."""
    random = np.random.default_rng(0)
    scene = Image.new("RGB", (width, height))
    for cells, share in ((6, 1.0), (40, 0.35), (300, 0.15), (1500, 0.08)):
        shape = (cells * height // width + 1, cells, 3)
        layer = Image.fromarray(random.integers(0, 256, shape).astype(np.uint8))
        scene = Image.blend(scene, layer.resize((width, height), Image.Resampling.BICUBIC), share)
    scene = Image.blend(scene, Image.effect_noise((width, height), 40).convert("RGB"), 0.08)
    pictures = []
    for _ in range(count):
        across, down = random.integers(0, (width, height))
        file = BytesIO()
        ImageChops.offset(scene, int(across), int(down)).save(file, "JPEG", quality=QUALITY)
        pictures.append(file.getvalue())
    return pictures
