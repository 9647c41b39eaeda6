"""The part of a picture that a model sees, worked out by hand and for any sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.image_geometry import place, place_line

SIZES = st.tuples(st.integers(1, 10_000), st.integers(1, 10_000))
WAYS = st.sampled_from(["crop", "stretch", "pad"])


def test_crop_takes_the_middle_of_a_wide_picture() -> None:
    placement = place((400, 200), (100, 100), "crop")
    assert placement.box((400, 200)) == (100, 0, 300, 200)
    assert (placement.size, placement.canvas) == ((100, 100), (100, 100))
    assert placement.least((400, 200)) == (200, 100)


def test_crop_keeps_a_share_of_each_side() -> None:
    """A picture scaled to 256 of which 224 are cut from the middle."""
    placement = place((512, 512), (224, 224), "crop", keep=0.875)
    assert placement.box((512, 512)) == (32, 32, 480, 480)
    assert placement.least((512, 512)) == (256, 256)


def test_stretch_takes_all() -> None:
    placement = place((400, 200), (100, 80), "stretch")
    assert placement.box((400, 200)) == (0, 0, 400, 200)
    assert placement.least((400, 200)) == (160, 80)


def test_stretch_keeps_a_share_of_each_side() -> None:
    """A picture stretched to 256 x 256 of which 224 x 224 are cut from the middle."""
    placement = place((512, 256), (224, 224), "stretch", keep=0.875)
    assert placement.box((512, 256)) == (32, 16, 480, 240)
    assert placement.least((512, 256)) == (512, 256)


def test_pad_leaves_a_margin() -> None:
    placement = place((400, 200), (100, 80), "pad")
    assert (placement.size, placement.offset()) == ((100, 50), (0, 15))
    assert placement.box((400, 200)) == (0, 0, 400, 200)


@pytest.mark.parametrize(
    ("picture", "canvas", "size"),
    [
        ((100, 24), (320, 48), (200, 48)),
        ((80, 24), (160, 48), (160, 48)),
        ((81, 24), (320, 48), (162, 48)),
        ((1, 500), (160, 48), (1, 48)),
        ((4000, 48), (320, 48), (320, 4)),
    ],
)
def test_a_line_lies_at_the_left_of_the_narrowest_canvas_with_room_for_it(
    picture: tuple[int, int], canvas: tuple[int, int], size: tuple[int, int]
) -> None:
    placement = place_line(picture, (160, 320), 48)
    assert (placement.canvas, placement.size) == (canvas, size)
    assert placement.offset() == (0, (48 - size[1]) // 2)
    assert placement.box(picture) == (0, 0, *picture)


@given(picture=SIZES, canvas=st.tuples(st.integers(1, 512), st.integers(1, 512)), way=WAYS, keep=st.floats(0.1, 1))
def test_a_part_of_the_picture_on_a_part_of_the_canvas(picture, canvas, way, keep) -> None:  # type: ignore[no-untyped-def]
    placement = place(picture, canvas, way, keep=keep)
    left, top, right, bottom = placement.box(picture)
    assert -1e-6 <= left < right <= picture[0] + 1e-6
    assert -1e-6 <= top < bottom <= picture[1] + 1e-6
    assert 1 <= placement.size[0] <= canvas[0]
    assert 1 <= placement.size[1] <= canvas[1]
    assert min(placement.offset()) >= 0
    width, height = placement.least(picture)
    assert 1 <= width <= picture[0]
    assert 1 <= height <= picture[1]
    turned = place(picture[::-1], canvas[::-1], way, keep=keep)
    assert turned.size == placement.turned().size
    assert turned.box(picture[::-1]) == pytest.approx((top, left, bottom, right), abs=1e-6)
