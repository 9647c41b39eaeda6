"""Images -> rows of bytes of colour, as the fused graph takes them (engine/fusion.py).

Owns what an image may be. JPEG, PNG and WebP, by their first bytes whatever they are called; a file that is something
else, animated, in CMYK, too large or damaged is refused by its place in the request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.adapters.base64_text import decode_base64
from engine.adapters.image_decode import DamagedImageError, decode
from engine.adapters.image_geometry import place, place_line
from engine.adapters.image_header import ImageHeader, ImageHeaderError, read_header
from engine.errors import RequestError, invalid
from engine.tensor_facts import ImageFacts


class ImageAdapter:
    """For one model. ``prepare`` may run on any number of threads."""

    def __init__(self, facts: ImageFacts, plain: NDArray[Any]) -> None:
        """plain: no rows of the input that a client may fill with a tensor instead."""
        self.facts = facts
        self.inputs: tuple[str, ...] = (facts.input,)
        self._plain = plain

    def is_quick(self, raw: bytes | str) -> bool:
        """Never: a few bytes may be many pixels."""
        return False

    def prepare(self, raw: bytes | str, place: str) -> dict[str, NDArray[Any]]:
        """One row of the image input, uint8[1, height, width, channels], of a file's bytes or of its base64."""
        return {self.facts.feed: self.decode(raw, place)[np.newaxis], self.facts.input: self._plain}

    def decode(self, raw: bytes | str, place: str) -> NDArray[np.uint8]:
        """uint8[height, width, channels], channels in the model's order. Raises RequestError (400)."""
        if not raw:
            raise _refused(place, "is empty; send an image")
        try:
            data = decode_base64(raw) if isinstance(raw, str) else raw
            header = read_header(data)
            self._check_size(header)
            return self._canvas(data, header)
        except ImageHeaderError as error:
            raise _refused(place, str(error)) from None
        except DamagedImageError as error:
            raise _refused(place, f"is damaged ({error})") from None
        except ValueError as error:
            raise _refused(place, str(error)) from None

    def _check_size(self, header: ImageHeader) -> None:
        if (num_pixels := header.width * header.height) > (most := self.facts.max_pixels):
            raise ImageHeaderError(
                f"has {header.width} x {header.height} = {num_pixels} pixels, more than {most}; send a smaller one"
            )

    def _canvas(self, data: bytes, header: ImageHeader) -> NDArray[np.uint8]:
        facts = self.facts
        upright = (header.width, header.height) if header.orientation < 5 else (header.height, header.width)
        if facts.widths:
            placement = place_line(upright, facts.widths, facts.size[1])
        else:
            placement = place(upright, facts.size, facts.resize, keep=facts.crop)
        canvas = decode(data, header, placement, "grey" if facts.color == "grey" else "rgb", facts.filter, facts.fill)
        pixels = np.asarray(canvas, np.uint8).reshape(*placement.canvas[::-1], facts.channels)
        return np.ascontiguousarray(pixels[..., ::-1]) if facts.color == "bgr" else pixels


def _refused(place: str, why: str) -> RequestError:
    return invalid(f"{place} {why}", param="input")
