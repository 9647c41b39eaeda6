"""Pictures for tests, and what a simple pipeline makes of them."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ORIENTATION = 0x0112
Pixels = NDArray[np.uint8]


def photo(width: int, height: int, channels: int = 3) -> Pixels:
    """uint8[height, width, channels], smooth and unlike itself when turned or mirrored."""
    down, across = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    planes = [across * 255, down * 255, 255 * np.hypot(across - 0.8, down - 0.3), 255 * (across + down) / 2]
    return np.stack(planes[:channels], axis=-1).clip(0, 255).astype(np.uint8)


def encode(pixels: Any, format_: str, *, orientation: int = 1, mode: str | None = None, **options: Any) -> bytes:
    """A file of the pixels; of an orientation other than 1 by EXIF."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels.squeeze())
    if mode is not None:
        image = image.convert(mode)
    if orientation != 1:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options["exif"] = exif.tobytes()
    file = BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def differ(one: Any, other: Any) -> float:
    """The mean difference of two pictures, in steps of 255."""
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).mean())
