"""The `cloud` section of our early configs: a machine is not part of a config, so it is set aside unread."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.migrations.tree_moves import Notes, Tree
from modules.system.problem import Problem

_IMPORT = "python -m trainer remote import NAME FILE"

# The section with nothing set.
_DEFAULTS: Mapping[str, object] = {
    "enabled": False,
    "kind": "runpod",
    "file_sync": "scp",
    "remote_dir": "/workspace",
    "program_dir": "/workspace/OneTrainer",
    "hub_cache_dir": "/workspace/huggingface_cache",
    "install": True,
    "install_command": "",
    "update": True,
    "tensorboard_tunnel": True,
    "detach": False,
    "run_id": "job1",
    "create": False,
    "name": "OneTrainer",
    "offer": "",
    "gpu": "",
    "volume_gb": 100,
    "min_download_mbps": 0.0,
    "download_samples": True,
    "download_output": True,
    "download_saves": True,
    "download_backups": False,
    "download_tensorboard": False,
    "delete_workspace": False,
    "on_finish": "none",
    "on_error": "none",
    "on_detached_finish": "none",
    "on_detached_error": "none",
}


def with_cloud_set_aside(tree: Tree, notes: Notes) -> Tree:
    """Return one of our configs with its `cloud` section moved to `unknown`, or removed if it sets nothing.

    A `cloud` that is not an object stays in place, and is kept and reported like any other unknown key.
    """
    cloud, unknown = tree.get("cloud"), tree.get("unknown", {})
    if not isinstance(cloud, dict) or not isinstance(unknown, dict):
        return tree
    result = {key: value for key, value in tree.items() if key != "cloud"}
    if any(key not in _DEFAULTS or value != _DEFAULTS[key] for key, value in cloud.items()):
        result["unknown"] = {**unknown, "cloud": cloud}
        notes.append(note_of_cloud("cloud", cloud))
    return result


def note_of_cloud(path: str, cloud: Mapping[str, object]) -> Problem:
    """Return the load report's entry for the cloud settings of a file; a warning if cloud training is on."""
    kept = "The cloud settings are kept in the file unchanged."
    if cloud.get("enabled") is True:
        message = f"Cloud training is on in the file; a run trains on this machine unless another is chosen. {kept}"
        return Problem(path, message, "warning", f"Add its machine with: {_IMPORT}")
    return Problem(path, f"Other machines are not part of a config here. {kept}", "info", f"Add it with: {_IMPORT}")
