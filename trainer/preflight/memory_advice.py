"""What to lower, and by how much, when a run has run out of memory: from the estimate. Torch-free."""

from __future__ import annotations

from collections.abc import Callable

from modules.config.schema import Config
from modules.estimate.run import in_gb
from modules.system.hardware import GpuMemory, gpu_memory
from trainer.preflight.budget import Counts, memory_estimate, memory_problems

_SHARE = 0.8  # of the estimate: the savings are to bring the run well below what was not enough


def memory_advice(
    config: Config, sizes: Counts, *, memory_of: Callable[[str], GpuMemory | None] = gpu_memory
) -> tuple[str, str]:
    """Return the estimate as a sentence, and the settings that save memory with what each saves.

    Both are empty where the shapes of the model are not known. `sizes` are the image sizes with their counts.
    """
    found = memory_estimate(config, sizes)
    if found is None:
        return "", ""
    gpu = memory_of(config.general.train_device)
    needed = found.peak.total_bytes
    has = f" The GPU has {in_gb(gpu.total_bytes)}." if gpu is not None else ""
    total = min(needed, gpu.total_bytes) if gpu is not None else needed
    enough = GpuMemory(total_bytes=total, free_bytes=round(_SHARE * total))
    problem = next(memory_problems(config, sizes, memory_of=lambda _device: enough), None)
    advice, _, verdict = problem.advice.partition(", which ") if problem is not None else ("", "", "")
    # Whether that fits is not known: the run has needed more than was estimated, or others have used the GPU.
    return f"The estimate for these settings: {found}{has}", f"{advice}." if verdict else advice
