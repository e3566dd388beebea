"""OneTrainer's cloud settings as the record of a machine: its host, port, user, key file and folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from modules.system.errors import DarkroomError
from modules.system.secrets import CloudSecrets, from_json
from trainer.remote.record import AfterRuns, Remote

_NOT_SET = ("", None, False, 0, "NONE")
_TAKEN = frozenset({"__version", "enabled", "remote_dir", "host", "port", "user", "key_file", "id"})
_OF_PODS = frozenset({"type", "on_finish"})
_AFTER: Mapping[Any, AfterRuns] = {"STOP": "stop", "DELETE": "delete"}


def machine_of(name: str, file: Path, stored: CloudSecrets) -> tuple[Remote, tuple[str, ...]]:
    """Return the machine of a OneTrainer config or `secrets.json`, and the cloud settings that it has no place for.

    The host and the user are among the secrets there: those of the file count, then the `stored` ones. Raises
    DarkroomError if the file cannot be read or no host is known.
    """
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DarkroomError(f"{file} cannot be read: {error.strerror}.", advice="Check its name.") from error
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise DarkroomError(f"{file} is not a config or a secrets.json of OneTrainer.")
    cloud = _cloud_in(data)
    inner = data.get("secrets")
    access = from_json(inner if isinstance(inner, dict) else {"cloud": cloud})[0].cloud
    access = access if access.host or access.id else stored
    is_pod = bool(access.id) and cloud.get("type", "RUNPOD") == "RUNPOD"
    if not access.host and not is_pod:
        advice = (
            "Import its secrets.json first (secrets import FILE), or add the machine with: remote add NAME --host HOST"
        )
        raise DarkroomError(f"{file} does not name the host of a machine.", advice=advice)
    folder = f"{str(cloud.get('remote_dir') or '/workspace').rstrip('/')}/darkroom"
    remote = Remote(name, access.host, int(access.port or 0), access.user, access.key_file, folder)
    taken = _TAKEN
    if is_pod:
        taken = _TAKEN | _OF_PODS
        remote = replace(remote, provider="runpod", pod=access.id, pod_after=_AFTER.get(cloud.get("on_finish"), ""))
    return remote, tuple(key for key, value in cloud.items() if key not in taken and value not in _NOT_SET)


def _cloud_in(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the cloud settings of a config of OneTrainer, or of one of ours, which keeps them."""
    unknown = data.get("unknown")
    kept = unknown if isinstance(unknown, dict) else {}
    theirs = kept.get("onetrainer")
    for place in (data, kept, theirs if isinstance(theirs, dict) else {}):
        if isinstance(cloud := place.get("cloud"), dict):
            return cloud
    return {}
