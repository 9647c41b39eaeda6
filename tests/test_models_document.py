"""docs/models.md names what can be imported and in what forms: no more, and nothing left out."""

from __future__ import annotations

import re
from typing import get_args

from appliance.commands.model import Weights
from engine.importers.decode_weights import Precision
from engine.importers.gguf import _BLOCKS, _NUMBERS
from tests.documents import ROOT

TEXT = (ROOT / "docs/models.md").read_text()


def test_every_form_of_weights_is_described_and_offered() -> None:
    described = re.findall(r"^\| `(\w+)`(?: \(default\))? \| [^|]*\w[^|]* \| [^|]+ \|$", TEXT, re.MULTILINE)
    assert described == [form.value for form in Weights] == list(get_args(Precision))


def test_the_types_of_gguf_are_those_of_the_importer() -> None:
    [listed] = re.findall(r"^\| GGUF types \| ([^;]+);", TEXT, re.MULTILINE)
    assert set(listed.split(", ")) == {kind.name for kind in (*_BLOCKS, *_NUMBERS)}
