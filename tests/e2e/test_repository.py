"""Models that come, change and go while clients ask for them, through the edge and by the command (case O10)."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.appliance import EMBEDDING, Appliance, wait_for
from tests.e2e.conftest import Start

REPOSITORY = """
listeners:
  - address: 127.0.0.1:{{port}}
    tls: {{{{certificates: [{{{{cert: {{tls}}/localhost.pem, key: {{tls}}/localhost.key}}}}]}}}}
models: {{{{repository: {directory}, control: clients}}}}
routes:
  - {{{{match: {{{{path: /*}}}}, to: engine}}}}
"""
CLIENTS = 4


def put(models: Path, folder: Path) -> None:
    """The embedding model as a folder of its own, without a second copy of its bytes where that goes."""
    folder.mkdir(parents=True)
    for file in (models / EMBEDDING).iterdir():
        try:
            os.link(file, folder / file.name)
        except OSError:
            shutil.copy2(file, folder / file.name)


def embed(appliance: Appliance, model: str) -> int:
    body = json.dumps({"model": model, "input": "a mill beside the river"}).encode()
    return appliance.post("/v1/embeddings", body).status


def order(appliance: Appliance, what: str, model: str) -> int:
    return appliance.post(f"/v2/repository/models/{model}/{what}", b"").status


def index(appliance: Appliance) -> dict[str, tuple[str, str]]:
    rows = appliance.post("/v2/repository/index", b"{}").json
    return {row["name"]: (row["state"], row["reason"]) for row in rows}


@contextmanager
def asked_all_the_time(appliance: Appliance, model: str) -> Iterator[list[int]]:
    """Clients that ask one after another until the end of the block; the statuses of their answers."""
    statuses: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            statuses.append(embed(appliance, model))

    with ThreadPoolExecutor(CLIENTS) as clients:
        asking = [clients.submit(ask) for _ in range(CLIENTS)]
        try:
            wait_for(lambda: len(statuses) >= CLIENTS, "the first answers")
            yield statuses
        finally:
            ended.set()
        for each in asking:
            each.result()


def test_O10_models_are_loaded_swapped_and_unloaded_under_their_clients(
    models: Path, start: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "repository"
    put(models, directory / "e")
    appliance = start(REPOSITORY.format(directory=directory))
    assert index(appliance) == {"e": ("READY", "")}
    with asked_all_the_time(appliance, "e") as statuses:
        assert [order(appliance, "load", "e") for _ in range(3)] == [200, 200, 200]
        assert appliance.run("model", "load", "e", "-c", str(appliance.file)).stdout.startswith("e  READY")
        put(models, directory / "later")
        assert index(appliance)["later"] == ("UNAVAILABLE", "not loaded yet")
        assert embed(appliance, "later") == 404
        assert order(appliance, "load", "later") == 200
        assert embed(appliance, "later") == 200

        shutil.rmtree(directory / "e")
        assert order(appliance, "load", "e") == 400
        failed = appliance.run("model", "load", "e", "-c", str(appliance.file), check=False)
        assert failed.returncode == 1
        assert f"model 'e': {directory}/e/model.yaml: No such file" in failed.stderr
        assert index(appliance)["e"][0] == "READY"

        put(models, tmp_path / "elsewhere")
        swapped = appliance.run("model", "swap", "e", str(tmp_path / "elsewhere"), "-c", str(appliance.file))
        assert swapped.stdout.startswith("e  READY")
        since = len(statuses)
        wait_for(lambda: len(statuses) > since + CLIENTS, "answers of the swapped model")
    assert set(statuses) == {200}

    put(models, directory / "e")
    assert order(appliance, "unload", "e") == 200
    assert [embed(appliance, "e") for _ in range(25)] == [503] * 25
    assert embed(appliance, "later") == 200  # and the breaker is not open
    assert appliance.run("model", "served", "-c", str(appliance.file)).stdout == (
        "e  UNAVAILABLE  unloaded\nlater  READY\n"
    )
    assert appliance.get("/v2/models/e/ready").status == 503
    assert appliance.get("/v2/models/later/ready").status == 200
    assert appliance.run("model", "load", "e", "-c", str(appliance.file)).stdout == "e  READY\n"
    assert embed(appliance, "e") == 200
