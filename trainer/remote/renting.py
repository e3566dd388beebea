"""Machines that are rented: created, started and ended through their provider, and kept in the list like any other."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from modules.settings.field import Section, Setting
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import plain_reason
from modules.system.secrets import WHERE_TO_ENTER
from modules.system.secrets_file import load_secrets
from trainer.jobs.spec import Argument, positional
from trainer.remote.providers import PROVIDERS, Offer, Pod, PodRequest, Provider, RefusedError
from trainer.remote.record import AfterRuns, Remote, RemotesFile, problem_of

_POLL_SECONDS = 5.0
_MAX_POLLS = 240
_PROVIDER, _SPEC = next(iter(PROVIDERS.items()))
AFTER_LABELS = {
    "": "Nothing: it keeps running, and costing",
    "stop": "Stop it",
    "delete": "Delete it with all that is on it",
}

Report = Callable[[str], object]
Wait = Callable[[float], object]


class RentSettings(Section):
    """The machine to rent."""

    name: Annotated[str, Setting("Name", "The name of the machine."), positional("NAME")] = ""
    card: Annotated[
        str,
        Setting("Card", "The GPU, by RunPod's name, such as 'NVIDIA GeForce RTX 4090'."),
        Argument(is_required=True),
    ] = ""
    cards: Annotated[int, Ge(1), Setting("Cards", "How many GPUs.")] = 1
    key: Annotated[
        str,
        Setting("Key file", "The file of a private key; the public one next to it is sent.", path_kind="file"),
        Argument(is_required=True, metavar="FILE"),
    ] = ""
    volume: Annotated[
        int, Ge(1), Setting("Volume", "The disk that stays when it is stopped; everything is on it.", unit="GB")
    ] = 100
    disk: Annotated[int, Ge(1), Setting("System disk", "The disk that is emptied when it is stopped.", unit="GB")] = 30
    image: Annotated[str, Setting("Image", "A container image with an SSH server and Python 3.11.")] = _SPEC.image
    after: Annotated[
        AfterRuns,
        Setting(
            "After the last run",
            "What is done with it when its last run has finished and its files are here.",
            choice_labels=AFTER_LABELS,
        ),
    ] = ""


def records_of(settings: RentSettings) -> tuple[Remote, PodRequest]:
    """Return the record of a machine to rent, without its address, and the request to its provider.

    Raises DarkroomError for a name or a card that cannot be, or without a public key.
    """
    folder = f"{_SPEC.volume_path}/darkroom"
    remote = Remote(settings.name, "", user="root", key_file=settings.key, folder=folder, num_devices=settings.cards)
    hub = f"{_SPEC.volume_path}/huggingface"  # the other disk is small, and emptied
    remote = replace(remote, provider=_PROVIDER, pod_after=settings.after, hub_cache_dir=hub)
    if problem := problem_of(replace(remote, host="host")):
        raise DarkroomError(problem)
    if not settings.card.strip():
        raise DarkroomError("No card is chosen.", advice="See what can be rented: remote offers.")
    request = PodRequest(
        pod_name(settings.name), settings.card, settings.cards, settings.image, settings.disk, settings.volume,
        _SPEC.volume_path, public_key_of(settings.key),
    )  # fmt: skip
    return remote, request


def pod_name(name: str) -> str:
    """Return the name that a machine has at its provider."""
    return f"darkroom-{name}"


def has_key() -> bool:
    """Return whether a key for the provider is stored."""
    return bool(load_secrets().secrets.cloud.api_key)


def offers() -> list[Offer]:
    """Return the cards that can be rented, the cheapest first. Raises DarkroomError."""
    return _api(_PROVIDER).offers()


def provider_of(remote: Remote) -> Provider:
    """Return the provider of a rented machine. Raises DarkroomError for another one, or without a key."""
    if not remote.provider:
        raise DarkroomError(f"{remote.name} is not rented through Darkroom.", advice="Start and stop it yourself.")
    return _api(remote.provider)


def _api(provider: str) -> Provider:
    token, spec = load_secrets().secrets.cloud.api_key, PROVIDERS[provider]
    if not token:
        advice = f"Store one of your account: {WHERE_TO_ENTER.replace('NAME', 'cloud.api_key')}."
        raise DarkroomError(f"There is no API key for {spec.label}.", advice=advice)
    made: Provider = load_factory(spec.factory)(token)
    return made


def public_key_of(key_file: str) -> str:
    """Return the public key next to a private one. Raises DarkroomError if there is none."""
    if not key_file.strip():
        raise DarkroomError("No key file is chosen.", advice="Make a pair with: ssh-keygen -t ed25519")
    file = Path(key_file).expanduser()
    file = file.with_name(f"{file.name}.pub")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        advice = "Make a pair with: ssh-keygen -t ed25519, and choose the file of the private one."
        raise DarkroomError(f"{file} cannot be read, which the rented machine needs.", advice=advice) from error


def rent(settings: RentSettings, file: RemotesFile, *, report: Report, wait: Wait = time.sleep) -> Remote:
    """Rent a machine, add it to the list, and wait until it has an address; return its record.

    It is in the list as soon as it costs. `wait` may raise to stop waiting. Raises DarkroomError, and OSError.
    """
    remote, request = records_of(settings)
    if any(remote.name == other.name for other in file.read()):
        raise DarkroomError(f"There is a machine {remote.name} already.", advice="Choose another name.")
    provider, label = provider_of(remote), PROVIDERS[remote.provider].label
    if provider.find(request.name) is not None:
        advice = f"Delete it on {label}'s page if it is not needed, because it costs money. Or choose another name."
        raise DarkroomError(f"There is a machine {request.name} at {label} already.", advice=advice)
    report(f"Requesting {request.num_cards} x {request.card} from {label}.")
    try:
        pod = provider.create(request)
    except RefusedError:
        raise
    except DarkroomError as error:
        pod = _find_after_lost_answer(provider, request.name, error)
    remote = replace(remote, pod=pod.id, price_per_hour=pod.price_per_hour)
    try:
        file.add(remote)
    except (OSError, DarkroomError) as error:
        _delete_unlisted(provider, request.name, pod, error)
        raise
    return _with_address(remote, provider, file, report, wait)


def _find_after_lost_answer(provider: Provider, name: str, error: DarkroomError) -> Pod:
    """Return the machine that was made although the answer was lost. Raises the error if none is found.

    It may still appear, so the user is to look.
    """
    with suppress(DarkroomError):
        if (pod := provider.find(name)) is not None:
            return pod
    advice = f"{error.advice} Look at the provider's page whether {name} exists there: it would cost."
    raise DarkroomError(error.message, advice=advice) from error


def _delete_unlisted(provider: Provider, name: str, pod: Pod, error: Exception) -> None:
    """Delete a machine that could not be added to the list: it would cost unseen. Raises DarkroomError."""
    try:
        provider.delete(pod.id)
    except DarkroomError as failure:
        message = f"{name} is rented and costs money, but could not be added to the list: {plain_reason(error)}."
        advice = f"Delete it on the provider's page. That failed from here: {failure.message}"
        raise DarkroomError(message, advice=advice) from error


def start(remote: Remote, file: RemotesFile, *, report: Report, wait: Wait = time.sleep) -> Remote:
    """Start a rented machine, and wait until it has an address, which is another one each time; return its record.

    `wait` may raise to stop waiting. Raises DarkroomError, and OSError.
    """
    provider = provider_of(remote)
    if provider.read(remote.pod).state == "stopped":
        provider.start(remote.pod)
    return _with_address(remote, provider, file, report, wait)


def end(remote: Remote, file: RemotesFile, *, deletes: bool) -> None:
    """Stop a rented machine, or delete it with all that is on it and remove it from the list.

    Raises DarkroomError, and OSError.
    """
    provider = provider_of(remote)
    if deletes:
        provider.delete(remote.pod)
        file.remove(remote.name)
    else:
        provider.stop(remote.pod)


def _with_address(remote: Remote, provider: Provider, file: RemotesFile, report: Report, wait: Wait) -> Remote:
    """Wait for the address of a machine, and keep it in the list, where its record may have been changed meanwhile."""
    report(f"{remote.name} is starting; it gets an address in a few minutes.")
    for number in range(_MAX_POLLS):
        wait(_POLL_SECONDS if number else 0.0)
        try:
            pod = provider.read(remote.pod)
        except DarkroomError as error:
            advice = (
                f"{remote.name} may be running and costing money. Wait for its address with: remote start {remote.name}"
            )
            raise DarkroomError(error.message, advice=f"{error.advice} {advice}") from error
        if pod.host:
            remote = next((one for one in file.read() if one.pod == remote.pod), remote)
            price = pod.price_per_hour or remote.price_per_hour
            remote = replace(remote, host=pod.host, port=pod.port, price_per_hour=price)
            file.add(remote)
            return remote
        if pod.state == "failed":
            break
    raise DarkroomError(
        f"{remote.name} has no address: its provider could not start it.",
        advice=f"Look at it there, or delete it with: remote end {remote.name} --delete. It may cost until then.",
    )
