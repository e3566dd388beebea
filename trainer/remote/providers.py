"""The providers of rented machines ("pods"): each one's public API behind one small protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from modules.system.errors import DarkroomError

PodState = Literal["starting", "running", "stopped", "failed"]
Stock = Literal["", "none", "low", "medium", "high"]
STOCKS: Mapping[Stock, str] = {"": "", "none": "none", "low": "few", "medium": "some", "high": "many"}
"""How many cards are free, for people."""


class RefusedError(DarkroomError):
    """The provider has refused a request, so nothing was done. After any other error it may have been done."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A card that can be rented, by the provider's name of it, with the price of one in dollars for an hour.

    `stock` is how many are free now; empty if the provider does not state it.
    """

    card: str
    label: str
    memory_gb: int
    price_per_hour: float
    stock: Stock = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A rented machine as its provider describes it. Without an address it cannot be reached yet."""

    id: str
    state: PodState
    host: str = ""
    port: int = 0
    price_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A machine to rent: its cards, an image with an SSH server, the disk that it loses when it is stopped, and the
    volume that it keeps, mounted at `volume_path`. `public_key` may log in.
    """

    name: str
    card: str
    num_cards: int
    image: str
    disk_gb: int
    volume_gb: int
    volume_path: str
    public_key: str


class Provider(Protocol):
    """The client of a provider. Every method raises DarkroomError if it refuses or does not answer."""

    def offers(self) -> list[Offer]:
        """Return the cards that can be rented, the cheapest first."""

    def find(self, name: str) -> Pod | None:
        """Return the machine of the account with a name; None if there is none."""

    def create(self, request: PodRequest) -> Pod:
        """Rent a machine, which costs from now on."""

    def read(self, pod: str) -> Pod:
        """Return the state of a machine."""

    def start(self, pod: str) -> None:
        """Start a stopped machine."""

    def stop(self, pod: str) -> None:
        """Stop a machine; its volume stays, and costs less."""

    def delete(self, pod: str) -> None:
        """Delete a machine with all that is on it."""


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """A provider: the class of its API, which is given a token, and the image and the volume of its machines."""

    label: str
    factory: str
    image: str
    volume_path: str


PROVIDERS: Mapping[str, ProviderSpec] = {
    "runpod": ProviderSpec(
        "RunPod",
        "trainer.remote.runpod:RunPod",
        "runpod/pytorch:2.8.0-py3.11-cuda12.8.1-cudnn-devel-ubuntu22.04",
        "/workspace",
    ),
}
