"""ARCHITECTURE.md's map: it lists every module, and none that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: A package's own file is listed where it does more than mark the package.
PACKAGE_FILES = {"appliance/config/__init__.py", "proxy/policy/__init__.py"}


def test_the_map_lists_every_module_and_none_that_is_gone() -> None:
    there = {
        str(path.relative_to(ROOT))
        for package in ("appliance", "proxy", "engine")
        for path in (ROOT / package).rglob("*.py")
    }
    wanted = {name for name in there if not name.endswith("/__init__.py")} | PACKAGE_FILES
    listed = re.findall(r"^\* `((?:appliance|proxy|engine)/\S+\.py)`: .", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    assert len(listed) == len(set(listed))
    assert set(listed) == wanted
