"""The wire tests run on uvloop, as the worker does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], uvloop.Loop]]:
    """What pytest-asyncio makes the loops of these tests with."""
    return {"uvloop": uvloop.new_event_loop}
