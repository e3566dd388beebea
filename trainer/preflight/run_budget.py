"""The inputs of a run's estimates, kept so that changed settings can be estimated without replaying passes twice.

The computer's memory that reading the base model takes is estimated, too, next to the memory of its GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import num_references, seen_tokens, unread_parts, uses_denoiser
from modules.data.buckets import Size
from modules.estimate.architecture import Architecture, architecture_of
from modules.estimate.passes import Passes, count
from modules.estimate.run import MemoryEstimate, estimate, plain_bytes
from modules.estimate.run_plan import RUNTIME_BYTES, RunPlan
from modules.families.registry import files_of, published_model
from modules.memory.part_plan import PartPlan
from modules.system.hardware import free_memory
from modules.system.paths import from_root
from modules.system.problem import Problem, format_size
from trainer.phases import encoders_to_drop
from trainer.preflight.memory_plan import run_plan
from trainer.preflight.model_files import downloaded_folder, missing_parts, parts_with_files
from trainer.preflight.passes import MALFORMED_CONFIG, passes_of
from trainer.preflight.start_from import StartHeader, plans_with_start, start_header

Counts = Mapping[Size, int]

TIGHT = 0.95  # of the free bytes: the estimate is within a few percent, and the allocator needs some reserve


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """The inputs of the estimates of a run: its architecture, its passes, its plan, and the file it starts from.

    `is_for_cuda`: for an NVIDIA or AMD card, which this machine need not have.
    """

    config: Config
    sizes: Counts
    architecture: Architecture
    passes: Passes
    run: RunPlan
    start: StartHeader | None = None
    is_for_cuda: bool = False

    def memory(self) -> MemoryEstimate:
        """Return the memory the run needs on its device."""
        return estimate(self.passes, self.run, is_published=self.architecture.is_published)

    @property
    def peak_bytes(self) -> int:
        """The largest memory of all phases."""
        return self.memory().peak.total_bytes

    @property
    def on_gpu(self) -> bool:
        """Whether the run trains on a GPU."""
        return self.run.runtime_bytes > 0

    def with_config(self, config: Config) -> Budget | None:
        """Return the budget of changed settings of the same model; it shares the replays. None without an estimate."""
        run = run_plan(config, self.architecture, self.sizes)
        if run is None:
            return None
        run = replace(run, plans=plans_with_start(run.plans, self.start, config.adapter))
        return replace(self, config=config, run=_on_cuda(run) if self.is_for_cuda else run)


def on_a_gpu(budget: Budget) -> Budget:
    """Return the budget of the run on an NVIDIA or AMD card, unless the config trains on the CPU by name."""
    if budget.config.general.train_device.strip().lower() == "cpu":
        return budget
    return replace(budget, run=_on_cuda(budget.run), is_for_cuda=True)


def _on_cuda(run: RunPlan) -> RunPlan:
    plans = {name: replace(plan, fuses_norms=True) for name, plan in run.plans.items()}
    return replace(run, plans=plans, runtime_bytes=RUNTIME_BYTES)


def budget_of(config: Config, sizes: Counts, start_copy: Path | None = None) -> Budget | None:
    """Return the budget of a config; None if its model's shapes are not known. Raises `MALFORMED_CONFIG`."""
    architecture = architecture_of(config.model.base_model, config.model.family.name, config.model.variant)
    run = run_plan(config, architecture, sizes) if architecture and sizes else None
    if architecture is None or run is None:
        return None
    passes = passes_of(
        config.family,
        architecture.configs,
        num_references=num_references(config),
        seen_tokens=seen_tokens(config),
    )
    start = start_header(config, passes, run.plans, start_copy=start_copy)
    run = replace(run, plans=plans_with_start(run.plans, start, config.adapter))
    return Budget(config, sizes, architecture, passes, run, start)


def known_budget(config: Config, sizes: Counts, start_copy: Path | None = None) -> Budget | None:
    """Return the budget of a config; None if its memory cannot be estimated, for whatever reason.

    `sizes` are the image sizes with their counts, as in `Dataset.bucket_counts`. `start_copy` is the copy of the file
    that it started from, which a run that is being resumed has.
    """
    try:
        budget = budget_of(config, sizes, start_copy)
        if budget is not None:
            budget.memory()  # raises here rather than later
    except MALFORMED_CONFIG:  # the check of the model reports it
        return None
    return budget


def memory_estimate(config: Config, sizes: Counts) -> MemoryEstimate | None:
    """Return the memory that a new run needs on its training device; None if it cannot be estimated."""
    budget = known_budget(config, sizes)
    return budget.memory() if budget else None


def reading_bytes(budget: Budget) -> int:
    """Return the most bytes of a model's weights in the computer's memory while a run starts.

    All parts are read, quantized layer by layer, before they go to the training device. Large text encoders that a run
    does not keep are freed before its denoiser is read.
    """
    config, plans = budget.config, budget.run.plans
    sizes = {part: plain_bytes(budget.passes, part, plans) for part in plans}
    dropped, total = encoders_to_drop(config, {}), sum(sizes.values())
    if not dropped:
        return total
    return max(total - sizes[config.family.denoiser.name], total - sum(sizes[name] for name in dropped))


def model_download_bytes(budget: Budget, *, most_weight_bytes: int = 4) -> int:
    """Return the bytes of the base model that a run downloads first; 0 for one that is complete on this machine.

    Parts in files of their own, and parts that the run does not need, are not downloaded. `most_weight_bytes` limits
    the bytes of a weight: of a model in float32 there are also repositories in 16 bits.
    """
    config = budget.config
    name = config.model.base_model.strip()
    if from_root(name).exists():
        return 0
    model = published_model(files_of(config.model.family.name).repository_model(name))
    parts = budget.run.plans.keys() - parts_with_files(config) - {*unread_parts(config)}
    if (folder := downloaded_folder(config)) is not None:
        parts &= missing_parts(folder)  # of a download that was stopped
    weights = (budget.passes.weights(part, PartPlan()).shapes.values() for part in parts)
    return min(model.weight_bytes, most_weight_bytes) * sum(map(count, weights))


def describe_reading(budget: Budget) -> str:
    """Return the computer's memory that the model takes as it is read, as a sentence; empty for a run on the CPU."""
    if not budget.on_gpu or not uses_denoiser(budget.config):
        return ""
    return f"About {format_size(reading_bytes(budget))} of the computer's memory while the model is read."


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
            f"Reading the model takes about {format_size(needed)} of the computer's memory, and "
            f"{format_size(available)} are free. The system may end the run.",
            "warning",
            "Quantize the largest parts (the weight dtype), or close other programs.",
        )
