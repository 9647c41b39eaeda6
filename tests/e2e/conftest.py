"""Appliances for the end-to-end tests: one that a session shares, and a maker of own ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.appliance import Appliance, openai_client

MODELS_AND_EDGE = """
listeners:
  - address: 127.0.0.1:{port}
    tls: {{certificates: [{{cert: {tls}/localhost.pem, key: {tls}/localhost.key}}]}}
models:
  smollm2-135m-instruct: {{path: {models}/smollm2-135m-instruct}}
  all-minilm-l6-v2: {{path: {models}/all-minilm-l6-v2}}
routes:
  - {{match: {{path: /*}}, to: engine}}
"""

Start = Callable[..., Appliance]


@pytest.fixture(scope="session")
def appliance(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """A running appliance with both models, for tests that leave it as it was."""
    running = Appliance(tmp_path_factory.mktemp("appliance"), MODELS_AND_EDGE, models).start()
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def start(models: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts an appliance of the test's own from a configuration; it is ended with the test."""
    started: list[Appliance] = []

    def begin(configuration: str = MODELS_AND_EDGE) -> Appliance:
        directory = tmp_path / f"appliance-{len(started)}"
        directory.mkdir()
        started.append(Appliance(directory, configuration, models))
        return started[-1].start()

    yield begin
    for each in started:
        each.stop()


@pytest.fixture
def client(appliance: Appliance) -> Iterator[OpenAI]:
    with openai_client(appliance) as opened:
        yield opened
