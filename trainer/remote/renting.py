"""Machines that are rented: created, started and ended through their provider, and kept in the list like any other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.secrets_file import load_secrets
from trainer.remote.providers import PROVIDERS, Pod, PodRequest, Provider
from trainer.remote.record import Remote, RemotesFile

_POLL_SECONDS = 5.0
_MAX_POLLS = 240


def provider_of(remote: Remote) -> Provider:
    """Return the provider of a rented machine. Raises DarkroomError for another one, or without a token."""
    if not remote.provider:
        raise DarkroomError(f"{remote.name} is not rented through Darkroom.", advice="Start and stop it yourself.")
    token = load_secrets().secrets.cloud.api_key
    if not token:
        raise DarkroomError(
            f"There is no key for the provider of {remote.name}.", advice="Store it: secrets set cloud.api_key."
        )
    made: Provider = load_factory(PROVIDERS[remote.provider].factory)(token)
    return made


def public_key_of(key_file: str) -> str:
    """Return the public key next to a private one. Raises DarkroomError if there is none."""
    file = Path(key_file).expanduser()
    file = file.with_name(f"{file.name}.pub")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        advice = "Make a pair with: ssh-keygen -t ed25519, and name the private one with --key."
        raise DarkroomError(f"{file} cannot be read, which the rented machine needs.", advice=advice) from error


def rent(
    remote: Remote,
    request: PodRequest,
    file: RemotesFile,
    *,
    report: Callable[[str], None],
    wait: Callable[[float], object] = time.sleep,
) -> Remote:
    """Rent a machine, add it to the list, and wait until it has an address; return its record.

    It is in the list as soon as it costs. Raises DarkroomError, and OSError.
    """
    if any(remote.name == other.name for other in file.read()):
        raise DarkroomError(f"There is a machine {remote.name} already.", advice="Choose another name.")
    provider = provider_of(remote)
    try:
        pod = provider.create(request)
    except DarkroomError as error:  # its answer may have been lost
        advice = f"{error.advice} Look at the provider's page whether {request.name} exists there: it would cost."
        raise DarkroomError(error.message, advice=advice) from error
    remote = replace(remote, pod=pod.id, price_per_hour=pod.price_per_hour)
    try:
        file.add(remote)
    except (OSError, DarkroomError):
        provider.delete(pod.id)  # it would cost unseen
        raise
    return _with_address(remote, provider, file, report, wait)


def start(
    remote: Remote, file: RemotesFile, *, report: Callable[[str], None], wait: Callable[[float], object] = time.sleep
) -> Remote:
    """Start a rented machine, and wait until it has an address, which is another one each time; return its record.

    Raises DarkroomError, and OSError.
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


def _with_address(
    remote: Remote,
    provider: Provider,
    file: RemotesFile,
    report: Callable[[str], None],
    wait: Callable[[float], object],
) -> Remote:
    """Wait for the address of a machine, and keep it in the list."""
    report(f"{remote.name} is starting; an address is given to it in a few minutes.")
    for _ in range(_MAX_POLLS):
        pod: Pod = provider.read(remote.pod)
        if pod.host:
            price = pod.price_per_hour or remote.price_per_hour
            remote = replace(remote, host=pod.host, port=pod.port, price_per_hour=price)
            file.add(remote)
            return remote
        if pod.state == "failed":
            break
        wait(_POLL_SECONDS)
    raise DarkroomError(
        f"{remote.name} has no address: its provider could not start it.",
        advice=f"Look at it there, or delete it with: remote end {remote.name} --delete. It may cost until then.",
    )
