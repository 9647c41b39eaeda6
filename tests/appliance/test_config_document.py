"""YAML text: what a scalar means, where things stand, and what is refused."""

from __future__ import annotations

import pytest
import yaml

from appliance.config import document
from appliance.config.document import MAX_BYTES, MAX_DEPTH, parse
from appliance.config.problems import ConfigurationError, Place


@pytest.fixture(params=["libyaml", "pure"], autouse=True)
def _parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers: wheels have libyaml, a build from source may not."""
    if request.param == "pure":
        monkeypatch.setattr(document, "_LOADER", yaml.SafeLoader)


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse(text if isinstance(text, bytes) else text.encode(), "f")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("spelt", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("12", 12),
        ("-12", -12),
        ("0", 0),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("1_000", "1_000"),
        ("1:20", "1:20"),
        ("2026-01-31", "2026-01-31"),
        ("'12'", "12"),
        ('"\\u00e9"', "é"),
        ("!!str 12", "12"),
        ("10s", "10s"),
        ("=", "="),
    ],
)
def test_a_scalar_means_what_yaml_1_2_says(spelt: str, value: object) -> None:
    data = parse(f"a: {spelt}\n".encode(), "f").data
    assert data == {"a": value}
    assert type(data["a"]) is type(value)


def test_every_key_and_value_has_its_place() -> None:
    read = parse("\ufeffa:\n  - é: 1\n    b: [x, 2]\n".encode(), "f")
    assert read.data == {"a": [{"é": 1, "b": ["x", 2]}]}
    assert read.keys[("a",)] == Place("f", 1, 1)
    assert read.keys[("a", 0, "b")] == Place("f", 3, 5)
    assert read.values[("a", 0, "b", 1)] == Place("f", 3, 12)


def test_aliases_repeat_a_value_and_no_key_merges() -> None:
    read = parse(b"a: &x {k: 1}\nb: *x\nc: {<<: *x}\n", "f")
    assert read.data == {"a": {"k": 1}, "b": {"k": 1}, "c": {"<<": {"k": 1}}}
    assert read.data["a"] is not read.data["b"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "f: is empty; a configuration has at least `listeners:`"),
        ("# nothing\n", "f: is empty; a configuration has at least `listeners:`"),
        ("- a\n", "f:1:1: expected a table of keys, like `listeners:`"),
        ("port: 08080\n", 'f:1:7: 08080 has a leading zero; write 8080, or "08080" if it is text'),
        ("a: .nan\n", "f:1:4: .nan is not a finite number"),
        ("a: 1e999\n", "f:1:4: 1e999 is not a finite number"),
        (f"a: {'9' * 5000}\n", "f:1:4: a number of 5000 digits is out of range"),
        ("a: 1\nb: 2\na: 3\n", "f:3:1: a is set twice; first in line 1, column 1"),
        ("a:\n\tb: 1\n", "f:2:1: a tab cannot indent YAML; use spaces"),
        ("a: *x\n", "f:1:4: the alias *x has no anchor &x before it"),
        ("a: &x [*x]\n", "f:1:8: the alias *x has no anchor &x before it"),
        ("a: 1\n---\nb: 1\n", "f:2:1: a second YAML document begins here; a file holds one"),
        ("? [1]\n: 2\n", "f:1:3: a key must be plain text, not a list, a table or an alias"),
        (b"ok: 1\na: \xff\n", "f:2:4: is not UTF-8 text; save the file as UTF-8"),
        ("ok: 1\na: x\0\n", "f:2:5: the control character U+0000 is not allowed in YAML"),
        (b" " * (MAX_BYTES + 1), f"f: is {MAX_BYTES + 1} bytes long, more than the limit of {MAX_BYTES}"),
    ],
)
def test_what_is_refused_names_its_place(text: str | bytes, wrong: str) -> None:
    assert problems(text) == [wrong]


@pytest.mark.parametrize("text", ["a: [1, 2\n", 'a: "half', "a: b: c\n", "a: -\n", "%YAML 9.9\n---\na: 1\n", "a: @x\n"])
def test_broken_yaml_names_a_line(text: str) -> None:
    [problem] = problems(text)
    assert problem.startswith("f:")
    assert "is not YAML: " in problem


def test_no_tag_constructs_anything() -> None:
    [problem] = problems("a: !!python/object/apply:os.system [echo]\n")
    assert problem.startswith("f:1:4: the tag ")
    assert "is not supported" in problem
    [problem] = problems("a: !!int '3'\n")
    assert "is not supported" in problem


def test_wrong_values_are_told_all_at_once() -> None:
    assert len(problems("a: 01\nb: 02\nb: .inf\n")) == 4


def test_nesting_is_bounded() -> None:
    assert parse(b"a: " + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1), "f").data
    [problem] = problems("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert problem == f"f:1:{MAX_DEPTH + 3}: is nested deeper than {MAX_DEPTH} levels"
    assert len(problems("a: " + "[" * 20_000)) == 1


def test_J04_an_anchor_bomb_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 25)]
    [problem] = problems("\n".join(lines))
    assert "once its aliases are expanded" in problem
