"""conf/headrace.yaml against the tables: it loads, it shows every key, and the defaults it tells are the real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from appliance.config.document import Document, parse
from appliance.config.dump import to_yaml
from appliance.config.schema import entries_of, fields_of, find
from appliance.config.tables import HeadraceConfig
from appliance.config.validation import validate
from tests.appliance.config_files import ConfigFiles

REFERENCE = Path(__file__).parents[2] / "conf/headrace.yaml"
EXAMPLES = sorted((REFERENCE.parent / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def document() -> Document:
    return parse(REFERENCE.read_bytes(), "headrace.yaml")


@pytest.fixture(scope="module")
def config(document: Document) -> HeadraceConfig:
    return validate(HeadraceConfig, document)


def reachable(annotation: Any, seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """Every table that a value of the annotation may hold, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen.add(annotation)
        for _, inner in fields_of(annotation).values():
            reachable(inner, seen)
        reachable(entries_of(annotation), seen)
    for argument in get_args(annotation):
        reachable(argument, seen)
    return seen


class Written(NamedTuple):
    """A key that stands in the file."""

    line: int
    column: int
    table: type[BaseModel]
    key: str
    value: Any

    @property
    def field(self) -> FieldInfo:
        return self.table.model_fields[fields_of(self.table)[self.key][0]]


def written(document: Document, config: HeadraceConfig) -> Iterator[Written]:
    for loc, table in find(config, HeadraceConfig, lambda value, _: isinstance(value, BaseModel)):
        for key, (name, _) in fields_of(type(table)).items():
            if place := document.keys.get((*loc, key)):
                yield Written(place.line, place.column, type(table), key, getattr(table, name))


def test_every_key_of_every_table_is_shown(document: Document, config: HeadraceConfig) -> None:
    shown = {(each.table, each.key) for each in written(document, config)}
    tables = reachable(HeadraceConfig, set())
    assert not [f"{table.__name__}.{key}" for table in tables for key in fields_of(table) if (table, key) not in shown]


def test_every_default_is_told_and_is_the_real_one(document: Document, config: HeadraceConfig) -> None:
    lines = REFERENCE.read_text().splitlines()
    wrong = []
    for number, group in groupby(sorted(written(document, config), key=itemgetter(0, 1)), key=itemgetter(0)):
        comment = lines[number - 1].partition(" # ")[2]
        owner, *inside = group
        if owner.field.is_required():
            wrong += [] if "required" in comment else [f"line {number}: {owner.key} is required, say so"]
        else:
            told = told_default(comment, owner.field) if "default:" in comment else owner.value
            wrong += differs(number, owner, told)
        if "required" not in comment and "default:" not in comment:  # else the line is an example as a whole
            wrong += [message for each in inside for message in differs(number, each, each.value)]
    assert not wrong


def differs(number: int, written: Written, told: Any) -> list[str]:
    default = written.field.get_default(call_default_factory=True)
    return [] if told == default else [f"line {number}: {written.key}: told {told!r}, the default is {default!r}"]


def told_default(comment: str, field: FieldInfo) -> Any:
    """The value that ``default: VALUE`` in the comment spells, as the field reads it."""
    spelt = yaml.safe_load(comment.partition("default: ")[2].partition(";")[0])
    return TypeAdapter(Annotated[field.annotation, None, *field.metadata]).validate_json(json.dumps(spelt))


@pytest.mark.parametrize("file", [REFERENCE, *EXAMPLES], ids=lambda file: file.stem)
def test_the_files_load_where_everything_they_name_is_there(place: ConfigFiles, file: Path) -> None:
    for model in ("smollm2-135m-instruct", "all-minilm-l6-v2"):
        place.model_folder(f"models/{model}")
    place.certificate("tls/site.pem", "tls/site.key")
    place.certificate("tls/localhost.pem", "tls/localhost.key")
    place.certificate("tls/client.pem", "tls/client.key")
    place.file("keys.yaml", "keys: []\n")
    place.file("htpasswd", "")
    place.file("secrets/openai", "sk-1234\n")
    place.environ("OTHER_KEY", "abc")
    assert place.problems(file.read_text().replace("/var/lib/headrace", str(place.root))) == []


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


def test_the_effective_configuration_reads_back_the_same(config: HeadraceConfig) -> None:
    again = validate(HeadraceConfig, parse(to_yaml(config).encode(), "effective.yaml"))
    assert again == config.model_copy(update={"include": ()})
