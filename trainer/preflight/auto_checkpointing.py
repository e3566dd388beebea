"""The blocks that the checkpointing "auto" recomputes: as few as fit the free memory, by the estimate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from modules.config.schema import Config
from trainer.preflight.passes import MALFORMED_CONFIG
from trainer.preflight.run_budget import Budget, Counts, budget_of

RESERVE = 0.1  # of the free bytes: for the estimate's error and the allocator
Block = tuple[str, str]  # a part, and the name of the block in it
Blocks = Mapping[str, frozenset[str]]
"""The blocks that are recomputed, by part."""


def automatic_parts(config: Config) -> tuple[str, ...]:
    """Return the parts whose checkpointing is automatic."""
    parts = config.family.parts
    return tuple(p.name for p in parts if config.part(p.name).checkpointing == "auto")


def blocks_to_checkpoint(
    config: Config, sizes: Counts, *, free_bytes: int | None, start_copy: Path | None = None
) -> Blocks | None:
    """Return the blocks to recompute; None where the memory or the model's shapes are not known.

    `free_bytes` are free on the training device before the model is there.
    """
    if free_bytes is None:
        return None
    try:
        budget = budget_of(config, sizes, start_copy)
        return None if budget is None else chosen_blocks(budget, limit_bytes=round((1 - RESERVE) * free_bytes))
    except MALFORMED_CONFIG:
        return None


def chosen_blocks(budget: Budget, *, limit_bytes: int) -> Blocks:
    """Return the fewest blocks, those that keep most first, with which training fits; all where nothing fits."""
    blocks = _largest_first(budget)
    least, most = 0, len(blocks)
    while least < most:
        tried = (least + most) // 2
        if _training_bytes(budget, blocks[:tried]) <= limit_bytes:
            most = tried
        else:
            least = tried + 1
    return _by_part(budget, blocks[:least])


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
    by_part = _by_part(budget, blocks)
    plans = {
        n: replace(p, checkpointing="auto", checkpointed_blocks=by_part[n]) if n in by_part else p
        for n, p in budget.run.plans.items()
    }
    training = replace(budget, run=replace(budget.run, plans=plans)).memory().phase("training")
    assert training is not None, "every run trains"
    return training.total_bytes


def _by_part(budget: Budget, blocks: Collection[Block]) -> dict[str, frozenset[str]]:
    return {part: frozenset(name for of, name in blocks if of == part) for part in automatic_parts(budget.config)}
