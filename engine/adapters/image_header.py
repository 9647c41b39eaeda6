"""What the first bytes of a JPEG, PNG or WebP file say of the picture, before anything decodes it.

Pure. Whoever sends a file chooses how much memory and time its decoder takes; so its size in pixels, its number of
scans and whatever else is not taken are read here, by the formats' own rules, in bounded steps (JPEG: ITU-T T.81
Annex B; PNG: W3C third edition; WebP: RFC 9649; orientation: EXIF 2.32, tag 0x0112).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

Format = Literal["JPEG", "PNG", "WEBP"]

MAX_SCANS = 64  # of a JPEG; a progressive one has about ten, and each costs a walk over all of its blocks
_MAX_PARTS = 1 << 16  # segments or chunks of one file

_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive, all Huffman-coded
_OTHER_FRAMES = set(range(0xC0, 0xD0)) - _FRAMES - {0xC4, 0xC8, 0xCC}  # lossless, hierarchical, arithmetic
_ALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length
_ORIENTATION = 0x0112


class ImageHeaderError(ValueError):
    """The bytes are no image that is taken. The message goes on where a sentence says which one it is."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """A still picture of 8-bit (PNG: up to 16-bit) grey or colour values, with or without alpha."""

    format: Format
    width: int  # pixels, as they are stored
    height: int
    orientation: int = 1  # 1 to 8 as in EXIF: how the stored picture is to be turned; from 5 on its sides change places


def is_image(data: bytes) -> bool:
    """Whether the first bytes are those of a format that is taken."""
    return _format(data) is not None


def read_header(data: bytes) -> ImageHeader:
    """The header of a whole file. Raises ImageHeaderError for what is none, or none that is taken."""
    try:
        match _format(data):
            case "JPEG":
                header = _jpeg(data)
            case "PNG":
                header = _png(data)
            case "WEBP":
                header = _webp(data)
            case None:
                raise ImageHeaderError("is neither JPEG nor PNG nor WebP")
    except (struct.error, IndexError):
        raise ImageHeaderError("ends within its header") from None
    if not header.width or not header.height:
        raise ImageHeaderError(f"is {header.width} x {header.height} pixels large")
    return header


def _format(data: bytes) -> Format | None:
    if data[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _jpeg(data: bytes) -> ImageHeader:
    """Walk the segments up to the frame header, which precedes the first scan."""
    orientation, position = 1, 2
    for _ in range(_MAX_PARTS):
        if data[position] != 0xFF:
            raise ImageHeaderError("is a damaged JPEG")
        marker = data[position + 1]
        position += 1 if marker == 0xFF else 2  # any number of fill bytes may precede a marker
        if marker == 0xFF or marker in _ALONE:
            continue
        (length,) = struct.unpack_from(">H", data, position)
        if marker in _FRAMES:
            bits, height, width, components = struct.unpack_from(">BHHB", data, position + 2)
            _check_jpeg(data, bits, components)
            return ImageHeader("JPEG", width, height, orientation)
        if marker in _OTHER_FRAMES:
            raise ImageHeaderError("is a lossless, hierarchical or arithmetic-coded JPEG, which is not taken")
        if marker in (0xD9, 0xDA) or length < 2:
            break
        if marker == 0xE1 and data.startswith(b"Exif\0\0", position + 2):
            orientation = _orientation(data[position + 8 : position + length])
        position += length
    raise ImageHeaderError("is a damaged JPEG")


def _check_jpeg(data: bytes, bits: int, components: int) -> None:
    if bits != 8:
        raise ImageHeaderError(f"is a JPEG of {bits} bits, of which only 8 are taken")
    if components == 4:
        raise ImageHeaderError("is a JPEG in CMYK, which is not taken; convert it to RGB")
    if components not in (1, 3):
        raise ImageHeaderError(f"is a JPEG of {components} components, of which only 1 and 3 are taken")
    # Within coded data every 0xFF is followed by a zero or a restart marker, so nothing else is counted but thumbnails.
    if (num_scans := data.count(b"\xff\xda")) > MAX_SCANS:
        raise ImageHeaderError(f"is a JPEG of {num_scans} scans; at most {MAX_SCANS} are taken")


def _png(data: bytes) -> ImageHeader:
    """Walk all chunks: orientation may stand behind the picture."""
    length, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    if kind != b"IHDR" or length != 13:
        raise ImageHeaderError("is a damaged PNG")
    orientation, position = 1, 8
    for _ in range(_MAX_PARTS):
        if position + 8 > len(data):  # cut off or at its end: the decoder will say which
            return ImageHeader("PNG", width, height, orientation)
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"acTL":
            raise ImageHeaderError("is an animated PNG; send one picture of it")
        if kind == b"eXIf":
            orientation = _orientation(data[position + 8 : position + 8 + length])
        position += 12 + length
    raise ImageHeaderError(f"is a PNG of more than {_MAX_PARTS} chunks")


def _webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise ImageHeaderError("is a damaged WebP")
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageHeader("WEBP", width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        if data[20] != 0x2F:
            raise ImageHeaderError("is a damaged WebP")
        (bits,) = struct.unpack_from("<I", data, 21)
        return ImageHeader("WEBP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind != b"VP8X":
        raise ImageHeaderError("is a damaged WebP")
    if data[20] & 0x02:
        raise ImageHeaderError("is an animated WebP; send one picture of it")
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    return ImageHeader("WEBP", width, height, _webp_orientation(data))


def _webp_orientation(data: bytes) -> int:
    position = 12
    for _ in range(_MAX_PARTS):
        if position + 8 > len(data):
            return 1
        kind, length = struct.unpack_from("<4sI", data, position)
        if kind == b"EXIF":
            return _orientation(data[position + 8 : position + 8 + length].removeprefix(b"Exif\0\0"))
        position += 8 + length + (length & 1)
    raise ImageHeaderError(f"is a WebP of more than {_MAX_PARTS} chunks")


def _orientation(tiff: bytes) -> int:
    """The orientation in EXIF data; 1, as stored, where there is none that can be read."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (num_entries,) = struct.unpack_from(order + "H", tiff, directory)
        for at in range(directory + 2, directory + 2 + 12 * num_entries, 12):
            tag, type_, count, value = struct.unpack_from(order + "HHIH", tiff, at)
            if tag == _ORIENTATION:
                return value if type_ == 3 and count == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
