"""An image file -> its pixels at the size that a model wants, upright and opaque.

Blocking; the decoders let other threads run meanwhile. A JPEG is decoded no larger than it must be: its transform gives
the picture at an eighth, a quarter or half of its size for less work (libjpeg-turbo, "scaled decompression"). Alpha
lies on white; sixteen bits are cut to eight. What may be decoded at all was decided from the header before.
"""

from __future__ import annotations

from io import BytesIO
from typing import Literal

import numpy as np
import simplejpeg
from PIL import Image

from engine.adapters.image_geometry import Placement
from engine.adapters.image_header import ImageHeader

Color = Literal["rgb", "grey"]
Filter = Literal["bilinear", "bicubic"]

Image.MAX_IMAGE_PIXELS = None  # whoever calls has bounded them

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_MODES = {"rgb": "RGB", "grey": "L"}
_SCALED_BY = 2  # factors below it are slower than none: their transforms have no vector code
_REDUCED_TO = 3.0  # larger pictures are shrunk by whole pixels first, to so many times their final size
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class DamagedImageError(ValueError):
    """The file's header is good and the rest is not."""


def decode(
    data: bytes, header: ImageHeader, placement: Placement, color: Color, filter_: Filter, fill: int = 0
) -> Image.Image:
    """The canvas of ``placement``, in mode RGB or L.

    placement: of the picture when it is upright. fill: the grey, from 0 for black to 255, around a picture that does
    not fill the canvas. Raises DamagedImageError.
    """
    turned = header.orientation > 4
    stored = placement.turned() if turned else placement
    try:
        picture = _pixels(data, header, stored, color)
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:  # whatever Pillow's readers raise
        raise DamagedImageError(str(error) or type(error).__name__) from error
    box = stored.box(picture.size)
    small = picture.resize(stored.size, _FILTERS[filter_], box, reducing_gap=_REDUCED_TO)
    small = _opaque(small, color)
    if header.orientation in _UPRIGHT:
        small = small.transpose(_UPRIGHT[header.orientation])
    if small.size == placement.canvas:
        return small
    canvas = Image.new(small.mode, placement.canvas, (fill,) * len(small.getbands()))
    canvas.paste(small, placement.offset())
    return canvas


def _pixels(data: bytes, header: ImageHeader, placement: Placement, color: Color) -> Image.Image:
    """The whole picture as it is stored, at least as large as the placement needs it."""
    if header.format == "JPEG":
        width, height = placement.least((header.width, header.height))
        try:
            array = simplejpeg.decode_jpeg(
                data,
                "GRAY" if color == "grey" else "RGB",
                min_width=width,
                min_height=height,
                min_factor=_SCALED_BY,
            )
            return Image.fromarray(array[..., 0] if color == "grey" else array)
        except ValueError:
            pass  # Pillow forgives what most programs forgive, and still tells when a part is missing
    with Image.open(BytesIO(data), formats=[header.format]) as image:
        if image.size != (header.width, header.height):
            raise DamagedImageError(f"it holds a picture of {image.width} x {image.height} pixels")
        if header.format == "JPEG":
            image.draft(_MODES[color], placement.least(image.size))
        image.load()
        return _plain(image, color)


def _plain(image: Image.Image, color: Color) -> Image.Image:
    """The picture in RGB or L, or with alpha in RGBA."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert(_MODES[color])


def _opaque(image: Image.Image, color: Color) -> Image.Image:
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(_MODES[color])
