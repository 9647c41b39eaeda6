"""What a worker's snapshots do to budgets that others count by."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path

from proxy.build import Snapshot
from proxy.config_routes import ProxyConfig
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable
from proxy.worker import ProxyWorker
from tests.proxy.shared.processes import SMALL
from tests.wire.harness import listen


def configured(path: Path, amount: int = 100) -> ProxyConfig:
    budget = {"requests": amount, "per": "day", "window": "rolling"}
    listener = {"address": "127.0.0.1:1"}
    upstream = {"servers": ["http://127.0.0.1:2"]}
    route = {"to": "app", "policies": {"tokens": {}}}
    document = {
        "listeners": [listener], "upstreams": {"app": upstream}, "routes": [route],
        "usage": {"path": str(path)}, "budgets": {"b": budget},
    }  # fmt: skip
    return ProxyConfig.model_validate_json(json.dumps(document))


async def built(worker: ProxyWorker, config: ProxyConfig, sock: socket.socket) -> Snapshot:
    return await worker.build(config, {}, {"127.0.0.1:1": sock})


async def test_a_new_worker_whose_first_snapshot_is_dropped_leaves_the_others_count(tmp_path: Path) -> None:
    """As where a worker is killed and a reload comes while its successor builds."""
    owner = SharedTableOwner(SMALL._replace(windows=2))
    columns = [owner.enter(), owner.enter()]
    tables = [SharedTable.attached(owner.fd, column) for column in columns]
    serving, started = (ProxyWorker(shared=table) for table in tables)
    with closing(listen()) as sock:
        serves = await built(serving, configured(tmp_path / "usage.db"), sock)
        await serving.commit(serves)
        (level,) = serves.budgets
        assert level.begun.load() == [1.0]
        started.discard(await built(started, configured(tmp_path / "usage.db"), listen()))
        assert level.begun.load() == [1.0]  # it is not read anew from a record that comes later than the requests
        serving.discard(await serving.build(configured(tmp_path / "usage.db", 200), {}, {}))
        assert level.begun.load() == [1.0]
        await serving.drain(0.0)
    owner.close()
