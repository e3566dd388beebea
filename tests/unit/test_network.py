"""Processes on several machines talk through the interface that leads to the first machine."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest

from modules.system import network
from modules.system.errors import DarkroomError
from modules.system.network import gloo_interface, interface_to, require_reachable
from modules.system.ranks import Rank


@pytest.fixture(autouse=True)
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two networks, whose name leads to itself, as on Debian."""
    addresses = {"lo": ["127.0.0.1", "127.0.1.1"], "eth0": ["10.0.0.2", "fe80::1%eth0"], "ib0": ["10.1.0.2"]}
    routes = {"first": "10.1.0.2", "here": "127.0.1.1", "alone": "127.0.1.1", "192.0.2.1": "10.0.0.2"}
    found = {name: [SimpleNamespace(address=a) for a in own] for name, own in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(network, "_own_address_to", lambda host: routes.get(host, ""))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


def test_the_interface_is_the_one_that_leads_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface_to("first") == "ib0"
    assert interface_to("here") == "eth0", "the first machine has no other address of itself"
    monkeypatch.setattr(network, "_own_address_to", lambda host: "127.0.0.1" if host == "here" else "")
    assert interface_to("here") == interface_to("nowhere") == ""


def test_gloo_gets_it_for_as_long_as_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    with gloo_interface("first"):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    with gloo_interface("first"):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "eth9", "what the user has set"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth9"


def test_the_own_address_is_that_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        assert network._own_address_to("127.0.0.1") == "127.0.0.1"
    assert network._own_address_to("no.such.host.invalid") == ""


class Store:
    """What processes leave for each other, here of threads."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._has_changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._has_changed:
            self._values[key] = value
            self._has_changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._has_changed:
            assert self._has_changed.wait_for(lambda: key in self._values, timeout=120)
            return self._values[key].encode()


class StoreOfAnUnreachableProcess(Store):
    """A store in which the second process has the address of a closed port."""

    def set(self, key: str, value: str) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            super().set(key, f"127.0.0.1 {closed.getsockname()[1]}" if key == "address/1" else value)


@pytest.mark.parametrize("store", [Store(), StoreOfAnUnreachableProcess()])
def test_a_process_that_cannot_be_reached_is_named_in_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_reachable_address", lambda host: "127.0.0.1")

    def problem_of(rank: Rank) -> str:
        try:
            require_reachable(rank, store, "first")
        except DarkroomError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(problem_of, [Rank(0, 2, 0, 1, 0), Rank(1, 2, 0, 1, 1)]))
    if type(store) is Store:
        assert found == ["", ""]
    else:
        reason = "The process 1 of 2, on machine 1, cannot reach process 2 at 127.0.0.1: Connection refused."
        assert found == [reason, reason]
