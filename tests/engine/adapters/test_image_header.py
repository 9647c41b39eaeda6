"""What the first bytes of a file say: sizes of every kind of file, and the kinds that are not taken."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from engine.adapters.image_header import MAX_SCANS, ImageHeader, ImageHeaderError, read_header
from tests.engine.adapters.pictures import encode, photo

COLOR, GREY = photo(37, 23), photo(37, 23, 1)
FILES = {
    "jpeg": encode(COLOR, "JPEG"),
    "progressive jpeg": encode(COLOR, "JPEG", progressive=True),
    "grey jpeg": encode(GREY, "JPEG"),
    "jpeg with a comment": encode(COLOR, "JPEG", comment=b"\xff\xd8 not a picture"),
    "png": encode(COLOR, "PNG"),
    "palette png": encode(COLOR, "PNG", mode="P"),
    "lossy webp": encode(COLOR, "WEBP"),
    "lossless webp": encode(COLOR, "WEBP", lossless=True),
    "webp with alpha": encode(COLOR, "WEBP", mode="RGBA"),
}


@pytest.mark.parametrize("name", FILES)
def test_the_size_of_a_picture(name: str) -> None:
    header = read_header(FILES[name])
    assert (header.width, header.height, header.orientation) == (37, 23, 1)


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_picture(format_: str, orientation: int) -> None:
    assert read_header(encode(COLOR, format_, orientation=orientation)).orientation == orientation


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_there_is_not_is_none(orientation: int) -> None:
    assert read_header(encode(COLOR, "JPEG", orientation=orientation)).orientation == 1


def test_fill_bytes_before_a_marker() -> None:
    data = FILES["jpeg"]
    assert read_header(data[:2] + b"\xff\xff\xff" + data[2:]) == ImageHeader("JPEG", 37, 23)


def jpeg_frame(marker: int, *, bits: int = 8, width: int = 4, height: int = 4, components: int = 3) -> bytes:
    frame = struct.pack(">HBHHB", 8 + 3 * components, bits, height, width, components) + bytes(3 * components)
    return b"\xff\xd8\xff" + bytes([marker]) + frame


def png(*chunks: tuple[bytes, bytes], width: int = 4, height: int = 4) -> bytes:
    all_chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), *chunks]
    parts = [struct.pack(">I4s", len(content), kind) + content + bytes(4) for kind, content in all_chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def animated(format_: str) -> bytes:
    frames = [Image.fromarray(photo(8, 8)), Image.fromarray(photo(8, 8)[::-1])]
    return encode(frames[0], format_, save_all=True, append_images=frames[1:])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "neither JPEG nor PNG nor WebP"),
        (b"<svg/>", "neither JPEG nor PNG nor WebP"),
        (encode(COLOR, "GIF"), "neither JPEG nor PNG nor WebP"),
        (encode(COLOR, "BMP"), "neither JPEG nor PNG nor WebP"),
        (encode(COLOR, "JPEG", mode="CMYK"), "CMYK"),
        (animated("PNG"), "animated PNG"),
        (animated("WEBP"), "animated WebP"),
        (jpeg_frame(0xC0, bits=12), "12 bits"),
        (jpeg_frame(0xC0, components=2), "2 components"),
        (jpeg_frame(0xC0, width=0), "0 x 4 pixels"),
        (jpeg_frame(0xC3), "lossless"),
        (jpeg_frame(0xC9), "arithmetic"),
        (jpeg_frame(0xC2) + b"\xff\xda" * (MAX_SCANS + 1), f"{MAX_SCANS + 1} scans"),
        (b"\xff\xd8\xff\xda\x00\x02", "damaged JPEG"),
        (b"\xff\xd8\xff\xe0\x00\x00", "damaged JPEG"),
        (b"\xff\xd8\xff\xe0\x00\x04ab?", "damaged JPEG"),
        (b"\xff\xd8" + b"\xff" * 100_000, "damaged JPEG"),
        (b"\xff\xd8\xff\xe0\xff", "ends within"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "damaged PNG"),
        (png(*[(b"tEXt", b"")] * 70_000), "more than 65536 chunks"),
        (png(height=0), "4 x 0 pixels"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(20), "damaged WebP"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8L" + bytes(20), "damaged WebP"),
        (b"RIFF\x00\x00\x00\x00WEBPABCD" + bytes(20), "damaged WebP"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8X", "ends within"),
    ],
)
def test_what_is_not_taken(data: bytes, message: str) -> None:
    with pytest.raises(ImageHeaderError, match=message):
        read_header(data)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_is_refused_or_has_its_size(name: str) -> None:
    whole = read_header(FILES[name])
    for length in range(0, len(FILES[name]), 7):
        try:
            assert read_header(FILES[name][:length]) == whole
        except ImageHeaderError:
            continue


@given(name=st.sampled_from(sorted(FILES)), changes=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255))))
def test_any_bytes_are_read_or_refused(name: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(FILES[name])
    for at, value in changes:
        data[at % len(data)] = value
    try:
        header = read_header(bytes(data))
    except ImageHeaderError:
        return
    assert header.width > 0
    assert header.height > 0
    assert 1 <= header.orientation <= 8
