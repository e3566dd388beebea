"""The network interface through which the processes of a run on several machines reach each other."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_SET_BY_USER = "GLOO_SOCKET_IFNAME"
_ELSEWHERE = "192.0.2.1"  # an address for documentation (RFC 5737): nothing is sent there
_ANY_PORT = 9


@contextmanager
def gloo_interface(host: str) -> Iterator[None]:
    """Let gloo talk through the interface that leads to a host, unless the environment names another one.

    By default it takes the one of the machine's own name, which Debian and Ubuntu resolve to an address that no other
    machine reaches (127.0.1.1).
    """
    name = os.environ.get(_SET_BY_USER) or interface_to(host)
    if not name or _SET_BY_USER in os.environ:
        yield
        return
    os.environ[_SET_BY_USER] = name
    try:
        yield
    finally:
        del os.environ[_SET_BY_USER]


def interface_to(host: str) -> str:
    """Return the name of the network interface that leads to a host; to other networks, if that is this machine itself.

    Empty if there is none.
    """
    for destination in (host, _ELSEWHERE):
        address = _own_address_to(destination)
        if address and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return next(
                (name for name, own in psutil.net_if_addrs().items() if any(a.address == address for a in own)), ""
            )
    return ""


def _own_address_to(host: str) -> str:
    """Return the address of this machine from which a host is reached; empty for one that is not. Nothing is sent."""
    try:
        for family, kind, _, _, place in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.connect(place)
                return str(probe.getsockname()[0])
    except OSError:
        return ""
    return ""
