"""The engine's HTTP runs on both loops: uvloop reads into its buffer, asyncio's own hands it bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Of every test in this folder."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
