"""The section `cloud` of early configs of ours: training in the cloud is not built, so it is kept aside unread."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.migrations.taking import Notes, Tree
from modules.system.problem import Problem

# What such a config says where nobody has set anything.
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


def cloud_kept_aside(tree: Tree, notes: Notes) -> Tree:
    """Return a config of ours with its section `cloud` under `unknown`; one that sets nothing is left out.

    What is no object is left where it is, and kept and reported like any other key that is not known.
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
    """Return the entry of the load report for the cloud settings of a file; a warning where it wants to train there."""
    kept = "Its cloud settings stay in the file as they are."
    if cloud.get("enabled") is True:
        message = f"The file asks to train in the cloud, which is not supported yet: it trains on this machine. {kept}"
        return Problem(path, message, "warning")
    return Problem(path, f"Training in the cloud is not supported yet. {kept}", "info")
