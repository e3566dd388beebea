"""The computer's memory that reading the base model takes, next to the memory of its GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from modules.config.usage import uses_denoiser
from modules.estimate.run import in_gb, plain_bytes
from modules.system.hardware import free_memory
from modules.system.problem import Problem
from trainer.phases import encoders_to_drop
from trainer.preflight.run_budget import TIGHT, Budget


def reading_bytes(budget: Budget) -> int:
    """Return the most bytes of a model's weights in the computer's memory while a run starts.

    All parts are read, quantized layer by layer, before they go to the training device. Large text encoders that a run
    does not keep have left when its denoiser is read.
    """
    config, plans = budget.config, budget.run.plans
    sizes = {part: plain_bytes(budget.passes, part, plans) for part in plans}
    dropped, total = encoders_to_drop(config, {}), sum(sizes.values())
    if not dropped:
        return total
    return max(total - sizes[config.family.denoiser.name], total - sum(sizes[name] for name in dropped))


def describe_reading(budget: Budget) -> str:
    """Return the computer's memory that the model takes as it is read, as a sentence; empty for a run on the CPU."""
    if not budget.on_gpu or not uses_denoiser(budget.config):
        return ""
    return f"About {in_gb(reading_bytes(budget))} of the computer's memory while the model is read."


def problems_of_reading(budget: Budget, *, free: Callable[[], int] = free_memory) -> Iterator[Problem]:
    """Yield a warning if the computer's memory has no room for the model as it is read.

    `free()` returns its free bytes.
    """
    if not uses_denoiser(budget.config):
        return
    needed = reading_bytes(budget)
    if needed > TIGHT * (available := free()):
        yield Problem(
            "model.base_model",
            f"Reading the model takes about {in_gb(needed)} of the computer's memory, and {in_gb(available)} are free. "
            "The system may end the run.",
            "warning",
            "Quantize the largest parts (the weight dtype), or close other programs.",
        )
