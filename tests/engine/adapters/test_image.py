"""Images as requests bring them: every format and kind of pixels, turned, scaled, and refused."""

import base64
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.adapters.image import ImageAdapter
from engine.errors import Kind, RequestError
from engine.tensor_facts import ImageFacts
from tests.engine.adapters.pictures import Pixels, differ, encode, photo

SIZE = (32, 24)
PLAIN = np.empty((0, 3, 24, 32), np.float32)
COLOR = photo(320, 240)


def adapter(**facts: Any) -> ImageAdapter:
    return ImageAdapter(ImageFacts(**{"input": "input", "size": SIZE, **facts}), PLAIN)


def scaled(pixels: Any, size: tuple[int, int] = SIZE) -> Pixels:
    return np.asarray(Image.fromarray(pixels.squeeze()).resize(size, Image.Resampling.BILINEAR))


def refusal(raw: bytes | str, **facts: Any) -> str:
    with pytest.raises(RequestError) as caught:
        adapter(**facts).prepare(raw, "input[3]")
    assert caught.value.kind is Kind.INVALID
    assert caught.value.message.startswith("input[3] ")
    return caught.value.message


def test_a_row_of_bytes_and_no_row_of_floats() -> None:
    feeds = adapter().prepare(encode(COLOR, "PNG"), "input")
    assert set(feeds) == {"input", "input.image"}
    assert (feeds["input.image"].shape, feeds["input.image"].dtype) == ((1, 24, 32, 3), np.uint8)
    assert feeds["input"] is PLAIN


@pytest.mark.parametrize(
    ("format_", "options"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("WEBP", {"quality": 95}), ("JPEG", {"quality": 95})],
)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_format_in_every_orientation(format_: str, options: dict[str, Any], orientation: int) -> None:
    """What a camera stores: the picture turned back, so that it stands upright when it is turned as EXIF says."""
    stored = {
        1: COLOR,
        2: COLOR[:, ::-1],
        3: COLOR[::-1, ::-1],
        4: COLOR[::-1],
        5: COLOR.transpose(1, 0, 2),
        6: np.rot90(COLOR, 1),
        7: COLOR[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(COLOR, -1),
    }[orientation]
    data = encode(np.ascontiguousarray(stored), format_, orientation=orientation, **options)
    assert differ(adapter().decode(data, "input"), scaled(COLOR)) < 2


@pytest.mark.parametrize("size", [(320, 240), (640, 480), (1000, 750), (2000, 1500), (40, 30), (16, 12)])
def test_a_jpeg_of_any_size_looks_like_the_picture_in_full(size: tuple[int, int]) -> None:
    pixels = photo(*size)
    data = encode(pixels, "JPEG", quality=95)
    assert differ(adapter().decode(data, "input"), scaled(pixels)) < 3


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_one_pixel_fills_the_canvas(format_: str) -> None:
    dot = Image.new("RGB", (1, 1), (90, 90, 90))
    assert differ(adapter().decode(encode(dot, format_), "input"), np.full((24, 32, 3), 90)) < 2


@pytest.mark.parametrize("resize", ["crop", "stretch", "pad"])
def test_another_aspect_ratio(resize: Any) -> None:
    pixels = photo(400, 100)
    given = adapter(size=(32, 32), resize=resize).decode(encode(pixels, "PNG"), "input")
    if resize == "crop":
        assert differ(given, scaled(np.ascontiguousarray(pixels[:, 150:250]), (32, 32))) < 1
    elif resize == "stretch":
        assert differ(given, scaled(pixels, (32, 32))) < 1
    else:
        assert differ(given[12:20], scaled(pixels, (32, 8))) < 1
        assert not given[:12].any()
        assert not given[20:].any()


@pytest.mark.parametrize("color", ["rgb", "grey"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_width_of_its_own(orientation: int, color: Any) -> None:
    pixels = photo(300, 100, 1 if color == "grey" else 3)
    stored = pixels if orientation == 1 else np.ascontiguousarray(np.rot90(pixels, 1))
    line = adapter(size=(128, 16), widths=(32, 64, 128), resize="pad", fill=90, color=color)
    given = line.prepare(encode(stored, "PNG", orientation=orientation), "input")["input.image"][0]
    assert given.shape == (16, 64, 1 if color == "grey" else 3)
    assert differ(given[:, :48].squeeze(), scaled(pixels, (48, 16))) < 2
    assert (given[:, 48:] == 90).all()
    tall = line.decode(encode(photo(20, 100), "PNG"), "input")
    assert tall.shape[:2] == (16, 32)


def test_a_share_of_the_middle() -> None:
    given = adapter(crop=0.5).decode(encode(COLOR, "PNG"), "input")
    assert differ(given, scaled(np.ascontiguousarray(COLOR[60:180, 80:240]))) < 1


def test_the_order_of_the_channels() -> None:
    data = encode(COLOR, "PNG")
    assert (adapter(color="bgr").decode(data, "input") == adapter().decode(data, "input")[..., ::-1]).all()


@pytest.mark.parametrize("format_", ["PNG", "JPEG"])
def test_grey_for_a_model_of_one_channel(format_: str) -> None:
    grey = Image.fromarray(COLOR).convert("L")
    for data in (encode(COLOR, format_), encode(grey, format_)):
        given = adapter(color="grey").decode(data, "input")
        assert given.shape == (24, 32, 1)
        assert differ(given[..., 0], grey.resize(SIZE, Image.Resampling.BILINEAR)) < 2


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP"])
def test_a_grey_picture_for_a_model_of_three_channels(format_: str) -> None:
    grey = photo(320, 240, 1)
    given = adapter().decode(encode(grey, format_), "input")
    assert differ(given, scaled(grey)[..., None].repeat(3, axis=2)) < 2


def test_a_palette_and_black_and_white() -> None:
    palette = Image.fromarray(COLOR).convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
    assert differ(adapter().decode(encode(palette, "PNG"), "input"), scaled(COLOR)) < 8
    bits = Image.fromarray(COLOR).convert("1")
    wanted = np.asarray(bits.convert("L").resize(SIZE, Image.Resampling.BILINEAR))[..., None].repeat(3, axis=2)
    assert differ(adapter().decode(encode(bits, "PNG"), "input"), wanted) < 1


def test_sixteen_bits_are_cut_to_eight() -> None:
    grey = photo(320, 240, 1).squeeze()
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    given = adapter().decode(encode(deep, "PNG"), "input")
    assert differ(given[..., 0], scaled(grey)) < 1


@pytest.mark.parametrize("format_", ["PNG", "WEBP"])
def test_what_is_transparent_is_white(format_: str) -> None:
    pixels = np.dstack([COLOR, np.full((240, 320), 255, np.uint8)])
    pixels[:, 160:, 3] = 0
    given = adapter().decode(encode(pixels, format_, **({"lossless": True} if format_ == "WEBP" else {})), "input")
    assert (given[:, 17:] == 255).all()
    assert differ(given[:, :15], scaled(COLOR)[:, :15]) < 1


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    palette = Image.new("P", (64, 48), 7)
    palette.putpalette([index % 256 for index in range(768)])
    assert (adapter().decode(encode(palette, "PNG", transparency=7), "input") == 255).all()
    grey = Image.new("L", (64, 48), 90)
    assert (adapter().decode(encode(grey, "PNG", transparency=90), "input") == 255).all()


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,", "data:;base64,", "data:text/plain;x=y;base64,"])
def test_base64_alone_or_in_a_data_url(prefix: str) -> None:
    data = encode(COLOR, "PNG")
    given = adapter().decode(prefix + base64.b64encode(data).decode(), "input")
    assert (given == adapter().decode(data, "input")).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("https://example.org/cat.jpg", "nothing is fetched"),
        ("data:image/png,abc", "not in base64"),
        ("data:image/png;base64", "not in base64"),
        ("not base64", "is not base64"),
        ("bücher==", "is not base64"),
        ("AAA", "is not base64"),
        ("AAAA\nAAAA", "is not base64"),
        ("AA==AAAA", "is not base64"),
        ("A" * ((1 << 17) - 2) + "==" + "AAAA", "is not base64"),
        ("\ud800AAA", "is not base64"),
        ("AAAA", "is neither JPEG nor PNG nor WebP"),
    ],
)
def test_text_that_is_no_image(text: str, message: str) -> None:
    assert message in refusal(text)


def test_base64_in_several_pieces() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3)).astype(np.uint8)
    data = encode(noise, "PNG")
    assert len(data) > 300_000
    given = adapter().decode(base64.b64encode(data).decode(), "input")
    assert (given == adapter().decode(data, "input")).all()


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_a_file_that_is_cut_off_is_damaged(format_: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3)).astype(np.uint8)
    data = encode(noise, format_)
    assert "is damaged" in refusal(data[: len(data) // 2])


def test_a_damaged_file_whose_header_is_good() -> None:
    data = bytearray(encode(COLOR, "PNG"))
    at = data.index(b"IDAT") + 20
    data[at : at + 40] = bytes(40)
    assert "is damaged" in refusal(bytes(data))


def test_what_most_programs_forgive_in_a_jpeg_is_forgiven() -> None:
    data = encode(COLOR, "JPEG", quality=95)
    start = data.index(b"\xff\xda")
    given = adapter().decode(data[:start] + b"junk" + data[start:] + b"and more", "input")
    assert differ(given, scaled(COLOR)) < 2


def test_a_bomb_is_refused_by_its_header() -> None:
    """A few kilobytes that would be two hundred megabytes of pixels."""
    bomb = encode(Image.new("1", (8_000, 8_000)), "PNG")
    assert "8000 x 8000 = 64000000 pixels, more than 50000000" in refusal(bomb)
    assert "= 76800 pixels, more than 76799" in refusal(encode(COLOR, "JPEG"), max_pixels=76_799)


def test_a_frame_of_another_size_than_its_file_says_is_damaged() -> None:
    data = bytearray(encode(np.dstack([COLOR, COLOR[..., :1]]), "WEBP"))
    assert data[12:16] == b"VP8X"
    data[24:27] = (9).to_bytes(3, "little")
    assert "is damaged" in refusal(bytes(data))
