"""OneTrainer's several GPUs, and its cloud."""

from __future__ import annotations

from modules.config.migrations.onetrainer_11.tables import move_all
from modules.config.migrations.taking import Notes, Tree, choose, give_back, put, taken_part

_MULTI_GPU = {
    "multi_gpu": "multi_gpu.enabled",
    "device_indexes": "multi_gpu.device_indexes",
    "fused_gradient_reduce": "multi_gpu.fused_reduce",
    "async_gradient_reduce": "multi_gpu.async_reduce",
    "async_gradient_reduce_buffer": "multi_gpu.async_reduce_buffer_mb",
}
_REDUCE = {
    "FLOAT_32": "float32",
    "FLOAT_32_STOCHASTIC": "float32_stochastic",
    "WEIGHT_DTYPE": "weights",
    "WEIGHT_DTYPE_STOCHASTIC": "weights_stochastic",
}
_CLOUD = {
    "enabled": "enabled",
    "create": "create",
    "name": "name",
    "sub_type": "offer",
    "gpu_type": "gpu",
    "volume_size": "volume_gb",
    "min_download": "min_download_mbps",
    "tensorboard_tunnel": "tensorboard_tunnel",
    "remote_dir": "remote_dir",
    "huggingface_cache_dir": "hub_cache_dir",
    "onetrainer_dir": "program_dir",
    "install_onetrainer": "install",
    "install_cmd": "install_command",
    "update_onetrainer": "update",
    "detach_trainer": "detach",
    "run_id": "run_id",
    "download_samples": "download_samples",
    "download_output_model": "download_output",
    "download_saves": "download_saves",
    "download_backups": "download_backups",
    "download_tensorboard": "download_tensorboard",
    "delete_workspace": "delete_workspace",
}
_ENDINGS = {"NONE": "none", "STOP": "stop", "DELETE": "delete"}


def devices_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Take what concerns other devices and other machines than the one of a plain run."""
    move_all(rest, result, _MULTI_GPU)
    choose(rest, result, "gradient_reduce_precision", "multi_gpu.reduce_precision", _REDUCE, notes)
    given = taken_part(rest, "cloud", notes, "cloud")
    cloud: Tree = {}
    choose(given, cloud, "type", "kind", {"RUNPOD": "runpod", "LINUX": "linux"}, notes, where="cloud.kind")
    sync = {"NATIVE_SCP": "scp", "FABRIC_SFTP": "sftp"}
    choose(given, cloud, "file_sync", "file_sync", sync, notes, where="cloud.file_sync")
    for key in ("on_finish", "on_error", "on_detached_finish", "on_detached_error"):
        choose(given, cloud, key, key, _ENDINGS, notes, where=f"cloud.{key}")
    move_all(given, cloud, _CLOUD)
    if cloud:
        put(result, "cloud", cloud)
    give_back(rest, "cloud", given)
