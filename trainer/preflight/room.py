"""The parts of a model that stay on the training device in phases that do not need them, by the estimate.

Moving a part out and in again for each sample takes longer than the sample's own work on a card that has room for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from modules.config.schema import Config
from modules.estimate.run import MemoryEstimate, Phase
from trainer import phases
from trainer.preflight.memory_plan import PHASES
from trainer.preflight.passes import MALFORMED_CONFIG
from trainer.preflight.run_budget import Counts, budget_of

RESERVE = 0.2  # of the free bytes: what stays is not worth running out of memory, also when other programs need more
_OF_SAMPLES = (phases.SAMPLE_IMAGES, phases.SAMPLE_ENCODE)  # phases of samples that the estimate does not have


def parts_that_stay(
    config: Config, sizes: Counts, *, free_bytes: int | None, start_copy: Path | None = None
) -> Mapping[str, frozenset[str]]:
    """Return the parts that stay on the training device, by the phase of the run; none if the memory is not known.

    `free_bytes` are free on the device before the model is there, `sizes` the image sizes with their counts.
    """
    if free_bytes is None:
        return {}
    try:
        budget = budget_of(config, sizes, start_copy)
        if budget is None:
            return {}
        weights = {n: budget.passes.weights(n, plan).num_bytes(plan) for n, plan in budget.run.plans.items()}
        limit_bytes = round((1 - RESERVE) * free_bytes)
        staying = parts_staying(budget.memory(), budget.run.on_device, weights, limit_bytes=limit_bytes)
    except MALFORMED_CONFIG:
        return {}
    by_phase = {PHASES[phase]: parts for phase, parts in staying.items()}
    in_all = reduce(frozenset.intersection, staying.values()) if staying else frozenset[str]()
    return by_phase | dict.fromkeys(_OF_SAMPLES, in_all)


def parts_staying(
    memory: MemoryEstimate,
    on_device: Mapping[Phase, frozenset[str]],
    weights: Mapping[str, int],
    *,
    limit_bytes: int,
) -> dict[Phase, frozenset[str]]:
    """Return the parts that fit next to what each phase needs: of those it does not need the smallest, one by one.

    `weights` are the bytes of the parts by name.
    """
    by_phase: dict[Phase, frozenset[str]] = {}
    for phase in memory.phases:
        others = sorted(weights.keys() - on_device[phase.phase], key=lambda name: (weights[name], name))
        left, stay = limit_bytes - phase.total_bytes, set[str]()
        for name in others:
            left -= weights[name]
            if left < 0:
                break
            stay.add(name)
        by_phase[phase.phase] = frozenset(stay)
    return by_phase
