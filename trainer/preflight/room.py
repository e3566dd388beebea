"""Two decisions at the start of a run, by the free memory and the estimate.

First, the parts that stay on the training device in phases that do not need them: on a card with enough room, moving a
part out and in again for each sample would take longer than the sample itself. Second, the blocks that the gradient
checkpointing "auto" recomputes: as few as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

from modules.config.schema import Config
from modules.estimate.run import MemoryEstimate
from modules.estimate.run_plan import Phase
from trainer import phases
from trainer.preflight.memory_plan import PHASES
from trainer.preflight.run_budget import Budget, Counts, known_budget
from trainer.preflight.search import fewest

RESERVE_FOR_PARTS = 0.2
"""Of the free bytes: what stays is not worth running out of memory, also when other programs need more."""
RESERVE_FOR_BLOCKS = 0.1
"""Of the free bytes: for the estimate's error and the allocator."""
_OF_SAMPLES = (phases.SAMPLE_IMAGES, phases.SAMPLE_ENCODE)  # phases of samples that the estimate does not have

Block = tuple[str, str]  # a part, and the name of the block in it
Blocks = Mapping[str, frozenset[str]]
"""The blocks that are recomputed, by part."""


def parts_that_stay(
    config: Config,
    sizes: Counts,
    *,
    free_bytes: int | None,
    blocks: Blocks | None = None,
    start_copy: Path | None = None,
) -> Mapping[str, frozenset[str]]:
    """Return the parts that stay on the training device, by the phase of the run; none if the memory is not known.

    `free_bytes`, here and below, are free on the training device before the model is there, `sizes` the image sizes
    with their counts. `blocks` are those that automatic checkpointing recomputes.
    """
    budget = known_budget(config, sizes, start_copy) if free_bytes is not None else None
    if free_bytes is None or budget is None:
        return {}
    if blocks:
        budget = with_blocks(budget, blocks)
    # Moving a part is faster than decoding in small tiles, and the image is better.
    budget = replace(budget, run=replace(budget.run, sample_tiles=budget.run.tiles))
    weights = {n: budget.passes.weights(n, plan).num_bytes(plan) for n, plan in budget.run.plans.items()}
    limit_bytes = round((1 - RESERVE_FOR_PARTS) * free_bytes)
    staying = parts_staying(budget.memory(), budget.run.on_device, weights, limit_bytes=limit_bytes)
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
    """Return the parts that fit next to what each phase needs: of those it does not need the largest leave first.

    `weights` are the bytes of the parts by name.
    """
    by_phase: dict[Phase, frozenset[str]] = {}
    for phase in memory.phases:
        others = sorted(weights.keys() - on_device[phase.phase], key=lambda name: (weights[name], name), reverse=True)
        too_many = phase.total_bytes + sum(weights[name] for name in others) - limit_bytes
        leaving = fewest(others, partial(_are_enough, weights, too_many))
        by_phase[phase.phase] = frozenset(others) - frozenset(leaving)
    return by_phase


def _are_enough(weights: Mapping[str, int], num_bytes: int, leaving: Sequence[str]) -> bool:
    return sum(weights[name] for name in leaving) >= num_bytes


def automatic_parts(config: Config) -> tuple[str, ...]:
    """Return the parts whose checkpointing is automatic."""
    parts = config.family.parts
    return tuple(p.name for p in parts if config.part(p.name).checkpointing == "auto")


def blocks_to_checkpoint(
    config: Config, sizes: Counts, *, free_bytes: int | None, start_copy: Path | None = None
) -> Blocks | None:
    """Return the blocks to recompute; None where the memory or the model's shapes are not known."""
    budget = known_budget(config, sizes, start_copy) if free_bytes is not None else None
    if free_bytes is None or budget is None:
        return None
    return chosen_blocks(budget, limit_bytes=round((1 - RESERVE_FOR_BLOCKS) * free_bytes))


def on_card(budget: Budget, free_bytes: int) -> Budget:
    """Return the budget of a run that starts with so much free memory: with the blocks that it then recomputes."""
    if not automatic_parts(budget.config):
        return budget
    return with_blocks(budget, chosen_blocks(budget, limit_bytes=round((1 - RESERVE_FOR_BLOCKS) * free_bytes)))


def with_blocks(budget: Budget, blocks: Blocks) -> Budget:
    """Return the budget of a run whose automatic checkpointing recomputes these blocks."""
    plans = {
        n: replace(p, checkpointing="auto", checkpointed_blocks=blocks[n]) if n in blocks else p
        for n, p in budget.run.plans.items()
    }
    return replace(budget, run=replace(budget.run, plans=plans))


def chosen_blocks(budget: Budget, *, limit_bytes: int) -> Blocks:
    """Return the fewest blocks, those that keep most first, with which training fits; all where nothing fits."""
    blocks = fewest(_largest_first(budget), lambda tried: _training_bytes(budget, tried) <= limit_bytes)
    return _by_part(budget, blocks)


def _largest_first(budget: Budget) -> list[Block]:
    run = budget.run
    parts = [n for n in automatic_parts(budget.config) if (budget.passes.role_of(n) == "vae") == run.reconstructs]
    plans = {n: replace(p, checkpointing="auto") if n in parts else p for n, p in run.plans.items()}
    width_px, height_px = max(run.sizes, key=lambda s: s[0] * s[1])
    batch = run.batch_size * run.images_per_pass
    kept = budget.passes.kept_of_blocks(plans, batch=batch, width_px=width_px, height_px=height_px)
    return sorted(kept, key=lambda block: (-kept[block], block))


def _training_bytes(budget: Budget, blocks: Collection[Block]) -> int:
    """Return the peak of training with these blocks recomputed."""
    training = with_blocks(budget, _by_part(budget, blocks)).memory().phase("training")
    assert training is not None, "every run trains"
    return training.total_bytes


def _by_part(budget: Budget, blocks: Collection[Block]) -> dict[str, frozenset[str]]:
    return {part: frozenset(name for of, name in blocks if of == part) for part in automatic_parts(budget.config)}
