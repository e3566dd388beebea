"""OneTrainer's multi-GPU settings. Its cloud settings are kept unchanged: cloud training is not supported."""

from __future__ import annotations

from modules.config.migrations.darkroom_cloud import note_of_cloud
from modules.config.migrations.onetrainer_11.tables import move_all
from modules.config.migrations.tree_moves import Notes, Tree, choose
from modules.system.problem import Problem

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


def devices_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the multi-GPU settings; cloud training that is on is reported as unsupported."""
    if rest.get("multi_gpu") is True:
        notes.append(
            Problem(
                "training.batch_size",
                "In OneTrainer the batch size is that of each GPU; here it is that of all of them together.",
                "warning",
                advice="Multiply it by the number of GPUs to keep the steps as they were.",
            )
        )
    move_all(rest, result, _MULTI_GPU)
    choose(rest, result, "gradient_reduce_precision", "multi_gpu.reduce_precision", _REDUCE, notes)
    cloud = rest.get("cloud")
    if isinstance(cloud, dict) and cloud.get("enabled") is True:  # otherwise it is reported with the other kept keys
        notes.append(note_of_cloud("onetrainer.cloud", cloud))
