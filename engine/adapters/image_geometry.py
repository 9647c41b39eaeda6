"""Which part of a picture a model sees, and how large it becomes.

Pure. All of it lies around the picture's centre, so that it may be worked out and cut before the picture is turned as
its EXIF orientation says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Size = tuple[int, int]  # width, height in pixels
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Placement:
    """A part of the picture, scaled to ``size`` and set into a ``canvas`` that is as large as the model's input."""

    width: float  # of the part, as a share of the picture's
    height: float
    size: Size  # of the part when it is scaled
    canvas: Size
    at_left: bool = False  # on the canvas, instead of in the middle

    def box(self, picture: Size) -> Box:
        """The part, in pixels of the picture at whatever size it was decoded."""
        width, height = picture[0] * self.width, picture[1] * self.height
        left, top = (picture[0] - width) / 2, (picture[1] - height) / 2
        return left, top, left + width, top + height

    def least(self, picture: Size) -> Size:
        """The size of the whole picture at which its part need not be enlarged, or the picture's own when smaller."""
        factor = min(1.0, max(self.size[0] / (picture[0] * self.width), self.size[1] / (picture[1] * self.height)))
        return math.ceil(picture[0] * factor), math.ceil(picture[1] * factor)

    def offset(self) -> Size:
        """Where the scaled part's corner lies on the canvas."""
        left = 0 if self.at_left else (self.canvas[0] - self.size[0]) // 2
        return left, (self.canvas[1] - self.size[1]) // 2

    def turned(self) -> Placement:
        """The same for a picture whose sides change places."""
        return Placement(self.height, self.width, self.size[::-1], self.canvas[::-1])


def place(picture: Size, canvas: Size, resize: Literal["crop", "stretch", "pad"], *, keep: float = 1.0) -> Placement:
    """How a picture of this size fills the canvas.

    ``crop`` takes the largest part from the centre that has the canvas' aspect ratio, ``stretch`` takes the picture
    whatever its ratio; of either, the share ``keep`` of each side. ``pad`` takes it whole and leaves a margin.
    """
    across, down = canvas[0] / picture[0], canvas[1] / picture[1]
    if resize == "stretch":
        return Placement(keep, keep, canvas, canvas)
    if resize == "pad":
        scale = min(across, down)
        size = max(1, round(picture[0] * scale)), max(1, round(picture[1] * scale))
        return Placement(1.0, 1.0, size, canvas)
    scale = max(across, down)
    return Placement(keep * across / scale, keep * down / scale, canvas, canvas)


def place_line(picture: Size, widths: Sequence[int], height: int) -> Placement:
    """A picture as high as its canvas and at its left. The canvas is the narrowest that has room for it, or else the
    widest, on which the picture is lower.

    widths: of the canvases that there are, rising.
    """
    wanted = picture[0] * height / picture[1]
    width = next((width for width in widths if width >= wanted), widths[-1])
    return replace(place(picture, (width, height), "pad"), at_left=True)
