"""docs/fallbacks-and-variants.md: its configuration serves, its commands are typed, its tables have every key."""

from __future__ import annotations

import re
from pathlib import Path

from proxy.config_models import ModelRoute, ModelTarget, When
from proxy.config_variants import Config, Outcomes, Stop, Variant
from proxy.llm.hold import DECLINES, MAX_BYTES, MAX_EVENTS
from proxy.model_routes import MAX_TARGETS
from tests.documents import ROOT, blocks
from tests.e2e.document_place import DocumentPlace, chat_upstream

DOCUMENT = "docs/fallbacks-and-variants.md"
TEXT = (ROOT / DOCUMENT).read_text()


def test_every_key_is_described() -> None:
    for heading, table in {
        "key of `model_routes: {NAME: ...}`": ModelRoute,
        "key of `variants`": Config,
        "key of `stop`": Stop,
    }.items():
        rows = TEXT.partition(f"| {heading} |")[2].partition("\n\n")[0]
        assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == list(table.model_fields)
    words = set(re.findall(r"`(\w+)`", TEXT))
    for table in (ModelTarget, When, Variant, Outcomes):
        assert set(table.model_fields) <= words


def test_its_numbers_are_the_real_ones() -> None:
    declined = TEXT.partition("or it answers ")[2].partition(";")[0]
    assert set(map(int, re.findall(r"\d+", declined))) == DECLINES
    assert f"{MAX_EVENTS} events and {MAX_BYTES >> 10} KiB" in TEXT
    assert (MAX_TARGETS, "At most eight are asked" in TEXT) == (8, True)


def test_its_commands_do_what_it_says(tmp_path: Path) -> None:
    keys, asking, trying = blocks(DOCUMENT, "sh")
    [configured] = blocks(DOCUMENT, "yaml")
    fields, shown = blocks(DOCUMENT, "text")
    for name in ("cloud.key", "cloud-spare.key"):
        (tmp_path / name).write_text("sk-1234\n")
    (tmp_path / "keys.yaml").write_text("keys: []\n")
    with chat_upstream() as (port, _):
        place = DocumentPlace(tmp_path, port)
        place.here["https://api.example.com"] = f"http://localhost:{port}"
        place.configure(configured)
        place.box.start()
        try:
            place.type(keys)
            said = place.type(asking)
            assert re.findall(r"^headrace-(?:model|upstream): \w+", said, re.MULTILINE) == fields.splitlines()
            assert said.lower().count("cache-control: private, no-store") == 2
            said = place.type(trying)
            given = re.findall(r"(\d+) headrace-variant: (\w+)", said)
            assert {name for _, name in given} == {"control", "tuned"}
            assert sum(int(num) for num, _ in given) == 40
            heading, columns, *rows = said[said.rindex("route chat") :].splitlines()
            wanted = shown.splitlines()
            assert [heading, columns.split()] == [wanted[0], wanted[1].split()]
            assert [row.split()[:2] for row in rows] == [row.split()[:2] for row in wanted[2:]]
            assert (
                sum(int(row.split()[2]) for row in rows) == 43
            )  # the two of the fallback, forty, and the one of the token
            assert sum("100.00%" in row.split()[5:] for row in rows) == 1  # the outcome
        finally:
            place.box.stop()
