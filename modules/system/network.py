"""The network through which the processes of a run on several machines reach each other."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import psutil

from modules.system.errors import DarkroomError
from modules.system.ranks import Rank

_SET_BY_USER = "GLOO_SOCKET_IFNAME"
_ELSEWHERE = "192.0.2.1"  # an address for documentation (RFC 5737): nothing is sent there
_ANY_PORT = 9
_SECONDS_TO_CONNECT = 10.0


class KeyValueStore(Protocol):
    """A store in which processes leave values for each other under names, such as the one of torch.distributed."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        ...

    def get(self, key: str) -> bytes:
        """Return a value, once a process has set it."""
        ...


@contextmanager
def network_of_machines(rank: Rank, store: KeyValueStore, host: str) -> Iterator[None]:
    """Let the processes of several machines connect within this context; on a single machine nothing is done.

    Raises DarkroomError in all processes if one cannot reach another one. `host` is where they meet.
    """
    if rank.num_local == rank.world_size:
        yield
        return
    require_reachable(rank, store, host)
    with gloo_interface(host):
        yield


@contextmanager
def gloo_interface(host: str) -> Iterator[None]:
    """Let gloo talk through the interface that leads to a host, unless the environment names another one.

    By default gloo uses the interface of the machine's own name, which Debian and Ubuntu resolve to an address that no
    other machine reaches (127.0.1.1).
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
    address = _reachable_address(host)
    return next(
        (name for name, addresses in psutil.net_if_addrs().items() if any(a.address == address for a in addresses)), ""
    )


def require_reachable(rank: Rank, store: KeyValueStore, host: str) -> None:
    """Raise DarkroomError in all processes if one of them cannot reach another one, and name both.

    Otherwise gloo waits half an hour in the processes that can be reached. `host` is where the processes meet.
    """
    address = _address_of(os.environ.get(_SET_BY_USER, "")) or _reachable_address(host)
    with _listening(address, rank.world_size) as port:
        store.set(f"address/{rank.index}", f"{address} {port}")
        store.set(f"reaches/{rank.index}", _first_unreachable(rank, store))
        problems = [store.get(f"reaches/{index}").decode() for index in range(rank.world_size)]
    for problem in filter(None, problems):
        raise DarkroomError(problem, advice="Check that no firewall separates the machines, and GLOO_SOCKET_IFNAME.")


def _first_unreachable(rank: Rank, store: KeyValueStore) -> str:
    """Return a sentence about the first process that cannot be reached from here; empty if all can."""
    for index in range(rank.world_size):
        address, port = store.get(f"address/{index}").decode().split(" ")
        if index == rank.index or not address:
            continue
        try:
            socket.create_connection((address, int(port)), timeout=_SECONDS_TO_CONNECT).close()
        except OSError as error:
            return (
                f"The {rank}, on machine {rank.machine + 1}, cannot reach process {index + 1} at {address}: "
                f"{error.strerror or error}."
            )
    return ""


@contextmanager
def _listening(address: str, num_connections: int) -> Iterator[int]:
    """Yield a port at which this process accepts connections; 0 without an address."""
    if not address:
        yield 0
        return
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=num_connections) as server:
        yield int(server.getsockname()[1])


def _address_of(interface: str) -> str:
    """Return the address of an interface; empty without one."""
    addresses = psutil.net_if_addrs().get(interface, [])
    return next((a.address for a in addresses if a.family == socket.AF_INET), "")


def _reachable_address(host: str) -> str:
    """Return the address that this machine has for a host, or for others if the host is this machine itself."""
    for destination in (host, _ELSEWHERE):
        address = _own_address_to(destination)
        if address and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return address
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
