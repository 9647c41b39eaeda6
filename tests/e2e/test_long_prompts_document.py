"""docs/long-prompts.md: its configuration serves, its commands are typed, its tables have every key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.llm.fitting import Truncate, Window
from proxy.llm.summaries import Summaries
from proxy.policy.context_guard import Config
from tests.documents import ROOT, blocks
from tests.e2e.document_place import DocumentPlace, chat_upstream

DOCUMENT = "docs/long-prompts.md"
TEXT = (ROOT / DOCUMENT).read_text()


@pytest.mark.parametrize(
    ("heading", "table"),
    [("context_guard", Config), ("truncate", Truncate), ("window", Window), ("summaries", Summaries)],
)
def test_every_key_is_described(heading: str, table: type[Config | Truncate | Window | Summaries]) -> None:
    rows = TEXT.partition(f"| key of `{heading}` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == list(table.model_fields)


def test_its_commands_do_what_it_says(tmp_path: Path) -> None:
    [asking] = blocks(DOCUMENT, "sh")
    [configured] = blocks(DOCUMENT, "yaml")
    [fields] = blocks(DOCUMENT, "text")
    with chat_upstream() as (port, asked):
        place = DocumentPlace(tmp_path, port)
        place.configure(configured)
        place.box.start()
        try:
            said = place.type(asking)
            assert re.findall(r"^(headrace-[a-z-]+):", said, re.MULTILINE) == fields.split()
            assert "[\u2026]" in asked[0]
            assert asked[-1].startswith("[Summary of part 1 of ")
            assert 5 <= len(asked) <= 10
        finally:
            place.box.stop()
