"""Processes on several machines talk through the interface that leads to the first machine."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from modules.system import network
from modules.system.network import gloo_interface, interface_to


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
