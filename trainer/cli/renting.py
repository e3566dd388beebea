"""remote rent, start, end: machines of a provider, which cost while they run."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from modules.settings.field import Section, Setting
from trainer.cli.options import settings_verb
from trainer.cli.program import OK
from trainer.jobs.spec import Argument, positional
from trainer.remote.providers import PROVIDERS, PodRequest
from trainer.remote.record import AfterRuns, Remote, RemotesFile
from trainer.remote.renting import end, public_key_of, rent, start

MachineName = Annotated[str, Setting("Name", "The name of the machine."), positional("NAME")]
_PROVIDER, _SPEC = next(iter(PROVIDERS.items()))


class RentSettings(Section):
    """The machine to rent."""

    name: MachineName = ""
    card: Annotated[
        str,
        Setting("Card", "The GPU, by RunPod's name of it, such as 'NVIDIA GeForce RTX 4090'."),
        Argument(is_required=True),
    ] = ""
    key: Annotated[
        str,
        Setting("Key", "The file of a private key; the public one next to it is sent.", path_kind="file"),
        Argument(is_required=True, metavar="FILE"),
    ] = ""
    cards: Annotated[int, Setting("Cards", "How many GPUs.")] = 1
    image: Annotated[str, Setting("Image", "A container image with an SSH server and Python 3.11.")] = _SPEC.image
    disk: Annotated[int, Setting("Disk", "GB of the disk that is emptied when it is stopped.")] = 30
    volume: Annotated[int, Setting("Volume", "GB of the disk that stays.")] = 100
    after: Annotated[
        AfterRuns, Setting("After", "What is done with it when its last run has finished and its files are here.")
    ] = ""


class StartSettings(Section):
    """The rented machine to start."""

    name: MachineName = ""


class EndSettings(Section):
    """The rented machine to stop."""

    name: MachineName = ""
    delete: Annotated[bool, Setting("Delete", "Delete it with all that is on it, also its backups.")] = False


def _rent(settings: RentSettings) -> int:
    folder = f"{_SPEC.volume_path}/darkroom"
    remote = Remote(settings.name, "", user="root", key_file=settings.key, folder=folder, num_devices=settings.cards)
    remote = replace(remote, provider=_PROVIDER, pod_after=settings.after)
    request = PodRequest(
        f"darkroom-{settings.name}", settings.card, settings.cards, settings.image, settings.disk, settings.volume,
        _SPEC.volume_path, public_key_of(settings.key),
    )  # fmt: skip
    _report(rent(remote, request, RemotesFile(), report=_print_line))
    return OK


def _start(settings: StartSettings) -> int:
    _report(start(RemotesFile().find(settings.name), RemotesFile(), report=_print_line))
    return OK


def _end(settings: EndSettings) -> int:
    remote = RemotesFile().find(settings.name)
    end(remote, RemotesFile(), deletes=settings.delete)
    what = "is deleted" if settings.delete else "stops; its volume still costs something"
    _print_line(f"{remote.name} {what}.")
    return OK


def _report(remote: Remote) -> None:
    _print_line(f"{remote.name} is {remote.host}:{remote.port}, for {remote.price_per_hour:g} an hour.")
    _print_line(f"It has a new host key. See and accept it with: remote check {remote.name} --new-key")


def _print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


RENTING = {
    "rent": settings_verb("rent a machine of RunPod, which costs from then on, and add it", RentSettings, _rent),
    "start": settings_verb("start a rented machine", StartSettings, _start),
    "end": settings_verb("stop a rented machine, or delete it", EndSettings, _end),
}
