"""remote offers, rent, start, end: machines of a provider, which cost while they run."""

from __future__ import annotations

import sys
from typing import Annotated

from modules.settings.field import Section, Setting
from trainer.cli.options import settings_verb
from trainer.cli.program import OK, STOPPED
from trainer.jobs.spec import positional
from trainer.remote.providers import STOCKS
from trainer.remote.record import Remote, RemotesFile
from trainer.remote.renting import RentSettings, end, offers, pod_name, rent, start

MachineName = Annotated[str, Setting("Name", "The name of the machine."), positional("NAME")]


class StartSettings(Section):
    """The rented machine to start."""

    name: MachineName = ""


class EndSettings(Section):
    """The rented machine to stop."""

    name: MachineName = ""
    delete: Annotated[bool, Setting("Delete", "Delete it with all that is on it, also its backups.")] = False


def _offers(_settings: Section) -> int:
    for one in offers():
        stock = f"{STOCKS[one.stock]} free" if one.stock else ""
        _print_line(f"{one.price_per_hour:6.2f} an hour  {one.memory_gb:4} GB  {one.card:40} {stock}".rstrip())
    return OK


def _rent(settings: RentSettings) -> int:
    try:
        _report(rent(settings, RemotesFile(), report=_print_line))
    except KeyboardInterrupt:
        if any(one.name == settings.name for one in RemotesFile().read()):
            _print_line(f"{settings.name} is rented, and costs. To delete it: remote end {settings.name} --delete")
        else:
            _print_line(
                f"Stopped. Look at the provider's page whether {pod_name(settings.name)} exists: it would cost."
            )
        return STOPPED
    return OK


def _start(settings: StartSettings) -> int:
    remote = RemotesFile().find(settings.name)
    try:
        _report(start(remote, RemotesFile(), report=_print_line))
    except KeyboardInterrupt:
        _print_line(f"{remote.name} may have started, and cost. To stop it: remote end {remote.name}")
        return STOPPED
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
    "offers": settings_verb("list the cards that RunPod rents out, with their prices", Section, _offers),
    "rent": settings_verb("rent a machine of RunPod, which costs money from then on, and add it", RentSettings, _rent),
    "start": settings_verb("start a rented machine", StartSettings, _start),
    "end": settings_verb("stop a rented machine, or delete it", EndSettings, _end),
}
