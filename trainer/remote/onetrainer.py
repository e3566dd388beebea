"""OneTrainer's cloud settings as the record of a machine, and a sentence about each that has no counterpart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.system.errors import DarkroomError
from modules.system.regular_files import json_object_in
from modules.system.secrets import CloudSecrets, Secrets, from_json, with_secret
from modules.system.secrets_file import load_secrets, save_secrets
from trainer.remote.record import AfterRuns, Remote, RemotesFile

_AFTER: Mapping[Any, AfterRuns] = {"STOP": "stop", "DELETE": "delete"}
_FOLDER = "/workspace"
_OUR_EARLY_NAMES = {
    "kind": "type",
    "program_dir": "onetrainer_dir",
    "hub_cache_dir": "huggingface_cache_dir",
    "install": "install_onetrainer",
    "install_command": "install_cmd",
    "update": "update_onetrainer",
    "detach": "detach_trainer",
    "offer": "sub_type",
    "gpu": "gpu_type",
    "volume_gb": "volume_size",
    "min_download_mbps": "min_download",
    "download_output": "download_output_model",
}

TAKEN = frozenset(
    {"__version", "enabled", "type", "remote_dir", "huggingface_cache_dir", "download_backups", "detach_trainer",
     "host", "port", "user", "key_file", "id", "api_key"}
)  # fmt: skip
"""The settings that become the machine's, besides the ones about the end of a run."""

NEEDLESS = frozenset(
    {"file_sync", "tensorboard_tunnel", "onetrainer_dir", "install_cmd", "install_onetrainer", "update_onetrainer",
     "run_id", "download_tensorboard", "name", "create", "gpu_type", "volume_size", "sub_type"}
)  # fmt: skip
"""The settings that a machine which exists does not need: Darkroom sends itself, and fetches the whole run."""

_LOST: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "min_download": ((0, None), "A machine is rented whatever the speed of its network."),
    "download_samples": ((True,), "Samples are always fetched."),
    "download_output_model": ((True,), "The result is always fetched."),
    "download_saves": ((True,), "Saved models are always fetched."),
    "delete_workspace": ((False,), "Runs stay on the machine; they are removed there by hand."),
    "on_error": (("NONE",), "After a failed run the machine is left as it is: the backups are there."),
    "on_detached_error": (("NONE",), "After a failed run the machine is left as it is: the backups are there."),
    "password": (("",), "Passwords are not used: add a key on the machine (ssh-copy-id)."),
}


@dataclass(frozen=True, slots=True)
class ImportedMachine:
    """A machine of OneTrainer's settings. `notes` are about settings without a counterpart, and `api_key` is its
    provider's, if the file has one.
    """

    remote: Remote
    notes: tuple[str, ...]
    api_key: str


def import_machine(name: str, file: Path, stored: CloudSecrets) -> ImportedMachine:
    """Return the machine of a OneTrainer config or `secrets.json`.

    The host and the user are among the secrets there: first the file's count, then the `stored` ones. Raises
    DarkroomError if the file cannot be read, or no machine is known, such as one that OneTrainer would create.
    """
    data = _read(file)
    cloud = _cloud_in(data)
    inner = data.get("secrets")
    in_file: Secrets = from_json(inner if isinstance(inner, dict) else {"cloud": cloud})[0]
    access = in_file.cloud if in_file.cloud.host or in_file.cloud.id else stored
    is_pod = bool(access.id) and cloud.get("type", "RUNPOD") == "RUNPOD"
    if not access.host and not is_pod:
        raise _unknown(name, file, cloud)
    remote = Remote(
        name,
        access.host,
        int(access.port or 0),
        access.user,
        access.key_file,
        f"{str(cloud.get('remote_dir') or _FOLDER).rstrip('/')}/darkroom",
        fetches_backups=cloud.get("download_backups") is True,
        hub_cache_dir=str(cloud.get("huggingface_cache_dir") or ""),
    )
    notes = [note for key, value in cloud.items() if (note := _note_on(key, value))]
    end_key = "on_detached_finish" if cloud.get("detach_trainer") is True else "on_finish"
    after = _AFTER.get(cloud.get(end_key), "")
    if is_pod:
        remote = replace(remote, provider="runpod", pod=access.id, pod_after=after)
        if after == "delete":
            notes.append(f"{end_key}: after the last run the machine is deleted, with all that is on it.")
    elif after:
        notes.append(f"{end_key}: {cloud[end_key]} needs a command here, such as: --after 'sudo poweroff'.")
    if in_file.cloud.password:
        notes.append(f"password: {_LOST['password'][1]}")
    return ImportedMachine(remote, tuple(dict.fromkeys(notes)), in_file.cloud.api_key)


def keep(imported: ImportedMachine, file: RemotesFile) -> bool:
    """Add a machine to the list, and store the API key of a rented one, unless there is a key; return whether it was.

    Raises DarkroomError, OSError.
    """
    file.add(imported.remote)
    loaded = load_secrets()
    if not (imported.remote.pod and imported.api_key) or loaded.secrets.cloud.api_key:
        return False
    save_secrets(with_secret(loaded.secrets, "cloud.api_key", imported.api_key))
    return True


def _read(file: Path) -> Mapping[str, Any]:
    try:
        data = json_object_in(file.read_bytes())
    except OSError as error:
        raise DarkroomError(f"{file} cannot be read: {error.strerror}.", advice="Check its name.") from error
    if data is None:
        raise DarkroomError(f"{file} is not a config or a secrets.json of OneTrainer.")
    return data


def _note_on(key: str, value: Any) -> str:
    """Return a sentence about a setting without a counterpart; empty for any other, or if it sets nothing."""
    if key in TAKEN | NEEDLESS or key in ("on_finish", "on_detached_finish"):
        return ""
    usual, sentence = _LOST.get(key, (("", None, False, 0, "NONE"), "It is not known here."))
    return "" if value in usual else f"{key}: {sentence}"


def _unknown(name: str, file: Path, cloud: Mapping[str, Any]) -> DarkroomError:
    """Return the error of a file that names no machine, with the command for one that OneTrainer would have created."""
    add = (
        f"Import its secrets.json first (secrets import FILE), or add the machine with: remote add {name} --host HOST."
    )
    if cloud.get("type", "RUNPOD") == "RUNPOD" and cloud.get("create") is True:
        add += f" Or rent one as it would: {' '.join(_rent_command(name, cloud))}"
    return DarkroomError(f"{file} does not name the host of a machine.", advice=add)


def _rent_command(name: str, cloud: Mapping[str, Any]) -> Iterator[str]:
    yield f"remote rent {name} --key KEY_FILE"
    card = cloud.get("gpu_type")
    is_name = isinstance(card, str) and re.fullmatch(r"[\w .+-]+", card)  # for a shell, from someone's file
    yield f'--card "{card}"' if is_name else "--card CARD"
    size = cloud.get("volume_size")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        yield f"--volume {size}"
    if after := _AFTER.get(cloud.get("on_finish"), ""):
        yield f"--after {after}"


def _cloud_in(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the cloud settings of a config of OneTrainer, or of one of ours that keeps them, by OneTrainer's names."""
    unknown = data.get("unknown")
    kept = unknown if isinstance(unknown, dict) else {}
    theirs = kept.get("onetrainer")
    for place in (data, kept, theirs if isinstance(theirs, dict) else {}):
        if isinstance(cloud := place.get("cloud"), dict):
            return dict(_as_there(str(key), value) for key, value in cloud.items())
    return {}


def _as_there(key: str, value: Any) -> tuple[str, Any]:
    """Return a setting with OneTrainer's name and choices; our early configs had others."""
    key = _OUR_EARLY_NAMES.get(key, key)
    is_choice = isinstance(value, str) and (key == "type" or key.startswith("on_"))
    return key, value.upper() if is_choice else value
