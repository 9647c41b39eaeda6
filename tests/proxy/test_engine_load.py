"""The engine's page as the edge reads it: written by the engine, understood here, and not believed when it is stale."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.admission import Admission
from engine.load_page import LoadPage, page_path
from proxy.engine_load import STALE_S, EngineLoad

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


def entry(kind: str, admission: Admission | None) -> Any:
    return SimpleNamespace(kind=kind, model=None if admission is None else SimpleNamespace(admission=admission))


def admission(inside: int = 0, places: int = 10, work_s: float = 0.0) -> Admission:
    made = Admission(running=places // 2, queue=places - places // 2, work_s=lambda: work_s)
    for _ in range(inside):
        made.enter()
    return made


@pytest.fixture
async def page(tmp_path: Path) -> Any:
    entries: dict[str, Any] = {}
    made = LoadPage(page_path(str(tmp_path / "e.sock")), entries)
    made.open()
    yield SimpleNamespace(entries=entries, write=made.write, load=EngineLoad(str(tmp_path / "e.sock")))
    made.close()


async def test_a_full_model_is_full_until_somebody_leaves(page: Any) -> None:
    chat = page.entries["chat"] = admission(9, work_s=30.0)
    page.entries["chat"] = entry("chat", chat)
    page.write(100.0)
    assert page.load.full_for_s(CHAT, 1.0, 100.0) is None
    chat.enter()
    assert page.load.full_for_s(CHAT, 1.0, 100.0) == 15.0
    assert page.load.full_for_s(f"/proxied{CHAT}", 1.0, 100.0) == 15.0
    assert page.load.full_for_s(EMBED, 1.0, 100.0) is None
    assert page.load.full_for_s("/v1/models", 1.0, 100.0) is None
    assert page.load.full_for_s("/v2/models/chat/infer", 1.0, 100.0) == 15.0
    assert page.load.full_for_s("/v2/models/other/infer", 1.0, 100.0) is None
    chat.leave()
    assert page.load.full_for_s(CHAT, 1.0, 100.0) is None


async def test_a_share_of_the_places_is_full_before_all_of_them_are(page: Any) -> None:
    page.entries["chat"] = entry("chat", admission(8))
    page.write(100.0)
    assert [page.load.full_for_s(CHAT, share, 100.0) for share in (0.8, 0.9, 1.0)] == [1.0, None, None]


async def test_one_model_of_the_kind_with_a_place_or_that_would_be_loaded_is_enough(page: Any) -> None:
    page.entries.update(one=entry("chat", admission(10, work_s=8.0)), two=entry("chat", admission(10, work_s=60.0)))
    page.write(100.0)
    assert page.load.full_for_s(CHAT, 1.0, 100.0) == 4.0
    for other in (entry("chat", admission(9)), entry("chat", None)):
        page.entries["two"] = other
        page.write(100.0)
        assert page.load.full_for_s(CHAT, 1.0, 100.0) is None


async def test_a_stale_page_says_nothing_and_a_new_one_is_found(page: Any, tmp_path: Path) -> None:
    page.entries["chat"] = entry("chat", admission(10))
    page.write(100.0)
    assert page.load.full_for_s(CHAT, 1.0, 100.0) == 1.0
    assert page.load.full_for_s(CHAT, 1.0, 100.0 + STALE_S) is None
    (tmp_path / "e.sock.load").unlink()
    other = LoadPage(str(tmp_path / "e.sock.load"), page.entries)
    other.open()
    other.write(110.0)
    assert page.load.full_for_s(CHAT, 1.0, 110.0) == 1.0
    other.close()
    assert page.load.full_for_s(CHAT, 1.0, 110.5) is None


@pytest.mark.parametrize("content", [None, b"", b"x", bytes(24), b"\xff" * 4096])
async def test_what_is_no_page_says_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "e.sock.load").write_bytes(content)
    load = EngineLoad(str(tmp_path / "e.sock"))
    assert load.full_for_s(CHAT, 1.0, 100.0) is None
    assert load.full_for_s(CHAT, 1.0, 102.0) is None


async def test_an_engine_without_a_file_serves_on(tmp_path: Path) -> None:
    made = LoadPage(str(tmp_path / "none" / "e.sock.load"), {})
    made.open()
    made.write(1.0)
    made.close()
    await asyncio.sleep(0)
