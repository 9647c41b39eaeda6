"""A directory of model folders, served, loaded and unloaded by their names: what there is and what is refused."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from engine import repository as repository_module
from engine.entry import Entry
from engine.errors import EngineError, Kind, RequestError
from engine.repository import Repository
from engine.settings import ModelSettings
from tests.engine.fleet_box import Box, open_box, use
from tests.fakes_engine import until

Make = Callable[..., Repository]


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with open_box() as opened:
        yield opened


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("a", "b", ".b.partial", "not a name"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.yaml").touch()
    (tmp_path / "notes").mkdir()
    return tmp_path


@pytest.fixture
def make(box: Box, folders: Path) -> Make:
    """A repository of the folders, which are read into entries that load fakes."""

    def open_entry(settings: ModelSettings) -> Entry:
        if settings.name in box.damaged:
            raise EngineError(f"{settings.path} is damaged", permanent=True)
        box.opened.append(settings.path)
        return box.entry(settings.name, 10, 5)

    def make(*models: ModelSettings) -> Repository:
        fleet = box.fleet(*[open_entry(each) for each in models])
        return Repository(fleet, open_entry, models, str(folders))

    return make


async def told(repository: Repository) -> list[tuple[str, str | None, str, str]]:
    return [(row.name, row.version, str(row.state), row.reason) for row in await repository.index()]


async def test_every_folder_is_served_under_the_name_of_its_directory(box: Box, make: Make, folders: Path) -> None:
    repository = make(ModelSettings(name="b", path="elsewhere"))
    await repository.open()
    assert box.opened == ["elsewhere", str(folders / "a")]
    await repository._fleet.start(lambda what: None)
    assert await told(repository) == [("a", "1", "READY", ""), ("b", "1", "READY", "")]
    await repository._fleet.close()


async def test_what_appears_later_is_listed_and_served_when_it_is_loaded(box: Box, make: Make, folders: Path) -> None:
    repository = make()
    await repository.open()
    (folders / "c").mkdir()
    (folders / "c/model.yaml").touch()
    assert (await told(repository))[2] == ("c", None, "UNAVAILABLE", "not loaded yet")
    assert repository.unknown("c").kind is Kind.MODEL_NOT_FOUND
    await repository.load("c")
    assert (await use(repository._fleet, "c")).name == "c"
    assert (await told(repository))[2] == ("c", "1", "READY", "")
    await repository._fleet.close()


async def test_N07_ready_is_what_the_configuration_names_and_what_nobody_unloaded(make: Make) -> None:
    repository = make(ModelSettings(name="named", path="elsewhere"))
    await repository.open()
    await repository._fleet.start(lambda what: None)
    await repository.unload("a")
    assert (await told(repository))[0][2] != "READY"
    assert repository.why_not() == []
    await repository.unload("named")
    assert repository.why_not() == ["named"]
    await repository.load("named")
    await repository.load("a")
    assert repository.why_not() == []
    await repository._fleet.close()


async def test_a_damaged_folder_keeps_no_other_from_serving_and_is_503(
    box: Box, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    box.damaged.add("a")
    box.fails.add("b")
    repository = make()
    await repository.open()
    await repository._fleet.start(lambda what: None)
    why = "it could not be read; the engine's log says why", "it could not be loaded; the engine's log says why"
    assert await told(repository) == [("a", None, "UNAVAILABLE", why[0]), ("b", "1", "UNAVAILABLE", why[1])]
    assert repository.why_not() == ["a", "b"]
    assert repository.unknown("a").kind is Kind.UNAVAILABLE
    assert "is damaged" in caplog.text
    box.damaged.clear()
    box.fails.clear()
    await asyncio.gather(repository.load("a"), repository.load("a"), repository.load("b"))
    assert repository.why_not() == []
    assert [row[2] for row in await told(repository)] == ["READY", "READY"]
    await repository._fleet.close()


async def test_a_name_that_is_not_there_is_404_and_never_a_path(make: Make) -> None:
    repository = make()
    await repository.open()
    for name in ("c", "notes", "..", "../a", ".b.partial", "not a name", ""):
        for order in (repository.load, repository.unload):
            with pytest.raises(RequestError, match="there is no such model here; there is: a, b") as caught:
                await order(name)
            assert caught.value.kind is Kind.MODEL_NOT_FOUND


async def test_unloaded_and_gone_from_the_directory_it_is_forgotten(box: Box, make: Make, folders: Path) -> None:
    repository = make()
    await repository.open()
    await repository._fleet.start(lambda what: None)
    (folders / "a/model.yaml").unlink()
    assert (await told(repository))[0] == ("a", "1", "READY", "")
    await repository.unload("a")
    assert [row[0] for row in await told(repository)] == ["b"]
    assert repository.unknown("a").kind is Kind.MODEL_NOT_FOUND
    await until(lambda: box.made[0].closed)
    await repository.unload("b")
    await until(lambda: not repository._fleet.entries["b"].loaded)
    assert await told(repository) == [("b", "1", "UNAVAILABLE", "unloaded")]
    await repository._fleet.close()


async def test_a_name_is_given_to_another_folder_and_keeps_it_at_the_next_load(box: Box, make: Make) -> None:
    repository = make()
    await repository.open()
    await repository._fleet.start(lambda what: None)
    box.damaged.add("a")
    with pytest.raises(EngineError, match="/new/a is damaged"):
        await repository.swap("a", Path("/new/a"))
    assert await use(repository._fleet, "a") is box.made[0]
    box.damaged.clear()
    await repository.swap("a", Path("/new/a"))
    assert box.opened[-1] == "/new/a"
    assert await use(repository._fleet, "a") is box.made[2]
    await repository._fleet.close()


async def test_a_directory_that_is_not_there_or_too_full_is_told(
    make: Make, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make()
    monkeypatch.setattr(repository_module, "MAX_FOLDERS", 1)
    with pytest.raises(EngineError, match="has more than 1 model folders; remove some"):
        await repository.open()
    shutil.move(folders, folders.parent / "moved")
    with pytest.raises(EngineError, match=f"the model repository {folders} cannot be read: No such file"):
        await repository.open()
