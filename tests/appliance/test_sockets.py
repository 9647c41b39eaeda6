"""Listening sockets: all or nothing, kept or forgotten, systemd's adopted."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.port_owner import find_port_owner
from appliance.resource_error import ResourceError
from appliance.sockets import Sockets
from appliance.systemd import Handed


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    opened = Sockets()
    yield opened
    opened.close()


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def can_connect(address: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0


def test_a_bound_socket_takes_connections_only_once_it_listens(sockets: Sockets) -> None:
    address = free_address()
    sockets.prepare([address])
    assert not can_connect(address)
    sockets.listen()
    assert can_connect(address)


def test_J04_a_port_in_use_is_refused_by_name_and_opens_nothing(sockets: Sockets) -> None:
    good = free_address()
    with socket.create_server(("127.0.0.1", 0)) as other:
        bad = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ResourceError) as caught:
            sockets.prepare([good, bad])
    [problem] = caught.value.problems
    assert problem.startswith(f"address {bad} is in use (by ")
    assert f"pid {os.getpid()}" in problem
    with pytest.raises(KeyError):
        sockets.select([good])


def test_all_bad_addresses_are_named(sockets: Sockets, tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        sockets.prepare(["203.0.113.7:8443", f"unix:{tmp_path}/no/such/dir"])
    assert "does not belong to this machine" in caught.value.problems[0]
    assert "No such file or directory" in caught.value.problems[1]


def test_a_reload_forgets_what_only_it_wanted(sockets: Sockets) -> None:
    old, new = free_address(), free_address()
    sockets.prepare([old])
    sockets.keep([old])
    sockets.prepare([old, new])
    sockets.listen()
    sockets.forget()
    assert can_connect(old)
    assert not can_connect(new)


def test_a_reload_closes_what_nobody_wants_any_more(sockets: Sockets) -> None:
    old, new = free_address(), free_address()
    sockets.prepare([old])
    sockets.listen()
    sockets.keep([old])
    sockets.prepare([new])
    sockets.listen()
    sockets.keep([new])
    assert can_connect(new)
    assert not can_connect(old)


def test_a_unix_socket_replaces_one_left_behind_but_not_one_in_use(sockets: Sockets, tmp_path: Path) -> None:
    path = tmp_path / "edge.sock"
    with socket.socket(socket.AF_UNIX) as before:
        before.bind(str(path))
        before.listen()
        with pytest.raises(ResourceError, match="in use"):
            sockets.prepare([f"unix:{path}"])
    sockets.prepare([f"unix:{path}"])
    sockets.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    sockets.keep([])
    assert not path.exists()


def test_systemds_sockets_are_adopted_by_address_and_survive_a_reload_without_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        address = f"127.0.0.1:{theirs.getsockname()[1]}"
        sockets = Sockets([Handed(theirs.dup(), "headrace.socket")])
        assert sockets.unused() == [f"{theirs.getsockname()} (headrace.socket)"]
        sockets.prepare([address])
        assert sockets.unused() == []
        sockets.keep([])
        sockets.prepare([address])
        assert can_connect(address)
        sockets.close()


@pytest.mark.parametrize(("host", "name"), [("0.0.0.0", ""), ("198.51.100.1", "{port}")])
def test_systemds_sockets_are_adopted_by_port_when_dual_or_named(host: str, name: str) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as theirs:
        port = theirs.getsockname()[1]
        sockets = Sockets([Handed(theirs.dup(), name.format(port=port))])
        sockets.prepare([f"{host}:{port}"])
        assert sockets.unused() == []
        sockets.close()


def test_after_the_end_nothing_is_opened(sockets: Sockets) -> None:
    sockets.close()
    with pytest.raises(ResourceError, match="stopping"):
        sockets.prepare([free_address()])


def test_every_worker_is_handed_the_same_socket(sockets: Sockets) -> None:
    address = free_address()
    sockets.prepare([address])
    assert sockets.select([address, address])[0] == sockets.select([address])[0]


def test_the_owner_of_a_free_port_is_unknown() -> None:
    assert find_port_owner(int(free_address().rpartition(":")[2])) is None
