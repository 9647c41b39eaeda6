"""Forms, read from whole bodies: what clients send, and what cannot be taken."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.wire.multipart import MAX_PARTS, Part, parse_form

TYPE = "multipart/form-data; boundary=frontier"


def form(*parts: tuple[str, bytes], boundary: str = "frontier") -> bytes:
    lines = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in parts
    ]
    return b"".join(lines) + f"--{boundary}--\r\n".encode()


def test_parts_in_their_order() -> None:
    body = form(("model", b"m"), ("image", b"\x00\r\n\xff"), ("image", b""))
    assert parse_form(TYPE, body) == [Part("model", b"m"), Part("image", b"\x00\r\n\xff"), Part("image", b"")]


@pytest.mark.parametrize(
    "type_", ['multipart/form-data; boundary="a b"', 'multipart/form-data; charset=x; BOUNDARY="a b"']
)
def test_a_boundary_in_quotes(type_: str) -> None:
    assert parse_form(type_, form(("x", b"y"), boundary="a b")) == [Part("x", b"y")]


def test_what_clients_add_and_leave_out() -> None:
    body = (
        b"a preamble\r\n--frontier \t\r\n"
        b"content-type: image/png\r\n"
        b'CONTENT-DISPOSITION: form-data; filename="name=trap.png"; name=image\r\n\r\n'
        b"bytes\r\n--frontier--an epilogue"
    )
    assert parse_form(TYPE, body) == [Part("image", b"bytes")]


def test_an_empty_form() -> None:
    assert parse_form(TYPE, b"--frontier--") == []


@pytest.mark.parametrize(
    ("type_", "body", "message"),
    [
        ("multipart/form-data", form(("x", b"")), "needs a boundary"),
        (f"multipart/form-data; boundary={'x' * 71}", b"", "needs a boundary"),
        (TYPE, b"", "last boundary is missing"),
        (TYPE, form(("x", b""))[:-8], "last boundary is missing"),
        (TYPE, form(("x", b"y"), boundary="other"), "last boundary is missing"),
        (TYPE, b"--frontierx\r\n\r\n\r\n--frontier--", "follows a boundary"),
        (TYPE, b"--frontier\r\nContent-Disposition: form-data; name=x\r\n\r\n", "last boundary is missing"),
        (TYPE, b"--frontier\r\nno end\r\n--frontier--", "no end of its header"),
        (TYPE, b"--frontier\r\n" + b"x" * 9000 + b"\r\n\r\n\r\n--frontier--", "no end of its header"),
        (TYPE, b"--frontier\r\n\r\ncontent\r\n--frontier--", "has no name"),
        (TYPE, b"--frontier\r\nContent-Disposition: form-data; filename=x\r\n\r\n\r\n--frontier--", "has no name"),
        (
            TYPE,
            b"--frontier\r\nContent-Disposition: form-data; name=x\r\nContent-Transfer-Encoding: base64\r\n\r\n"
            b"\r\n--frontier--",
            "Content-Transfer-Encoding",
        ),
        (TYPE, form(*[("x", b"")] * (MAX_PARTS + 1)), f"more than {MAX_PARTS} parts"),
    ],
)
def test_what_is_not_taken(type_: str, body: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_form(type_, body)


@given(parts=st.lists(st.tuples(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.binary(max_size=64)), max_size=8))
def test_a_form_is_read_as_it_was_written(parts: list[tuple[str, bytes]]) -> None:
    assert parse_form(TYPE, form(*parts)) == [Part(name, content) for name, content in parts]


@given(body=st.binary(max_size=200).map(lambda noise: noise.replace(b"x", b"\r\n--frontier")))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(RequestError):
        parse_form(TYPE, body)
