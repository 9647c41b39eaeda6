"""docs/limits-and-budgets.md: its configuration serves, its commands are typed, its tables have every key."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from proxy.config import Limit
from proxy.config_budgets import Budget, Usage
from proxy.policy import tokens
from proxy.usage_report import BY, report
from tests.documents import ROOT, blocks
from tests.e2e.appliance import wait_for
from tests.e2e.document_place import HI, DocumentPlace, chat_upstream

DOCUMENT = "docs/limits-and-budgets.md"
TEXT = (ROOT / DOCUMENT).read_text()
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


def test_every_key_is_described() -> None:
    for heading, table in {
        "Limits": Limit,
        "Tokens": tokens.Config,
        "Budgets": Budget,
        "Who has used what": Usage,
    }.items():
        section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(table.model_fields)
    assert set(BY) <= set(re.findall(r"\w+", TEXT.partition("It may be added up by")[2].partition("`estimated`")[0]))


def _num_recorded(file: Path) -> int:
    return len(report(file, ["key"], 0.0, 1e11)) if file.exists() else 0


def test_its_commands_do_what_it_says(tmp_path: Path) -> None:
    keys, checking, asking, repeating = blocks(DOCUMENT, "sh")
    [configured] = blocks(DOCUMENT, "yaml")
    refused, shown = blocks(DOCUMENT, "text")
    with chat_upstream({**HI, "usage": USAGE}) as (port, _):
        place = DocumentPlace(tmp_path, port)
        assert "ann  created" in place.type(keys)
        place.configure(configured)
        place.box.start()
        try:
            place.type(checking)
            using, _, showing = asking.partition("sleep 2\n")
            said = place.type(using)
            wait_for(lambda: _num_recorded(tmp_path / "usage.db"), "the request to be recorded")
            said += "\n" + place.type(showing)
            fields = re.findall(r"^(ratelimit(?:-policy)?): (.*)\r?$", said, re.MULTILINE | re.IGNORECASE)
            assert '"monthly.tokens";q=5000000;w=' in " ".join(value for _, value in fields)
            for line in shown.splitlines():
                assert re.search(r"\s+".join(map(re.escape, line.split())), said), said
            assert "acme/search" in said
            lines = (tmp_path / "usage.csv").read_text().splitlines()
            assert [row["tenant"] for row in csv.DictReader(lines)] == ["acme"]
            assert json.loads(said[said.rindex("[\n") :])[0] | {"status": 200, "requests": 1} == {
                "status": 200, "requests": 1, "prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 0,
                "total_tokens": 13, "estimated": 0,
            }  # fmt: skip
            again = place.type(repeating)
            assert "idempotent-replayed: true" in again.lower()
            assert json.loads((tmp_path / "first.json").read_bytes())["usage"] == USAGE
            assert json.loads(refused.partition("\n\n")[2])["error"]["code"] == "insufficient_quota"
        finally:
            place.box.stop()
