"""What the estimate decides for a card: which parts stay on it, and which blocks are computed again."""

from __future__ import annotations

from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.run import MemoryEstimate, PhaseMemory
from trainer.preflight.room import (
    RESERVE_FOR_PARTS,
    blocks_to_checkpoint,
    chosen_blocks,
    on_card,
    parts_staying,
    parts_that_stay,
    with_blocks,
)
from trainer.preflight.run_budget import Budget, budget_of, on_a_gpu

GB = 1_000_000_000
SIZES = {Size(1024, 1024): 10}
SDXL: dict[str, Any] = {
    "model": {"family": "sdxl", "base_model": "stabilityai/stable-diffusion-xl-base-1.0"},
    "training": {"precision": "bfloat16", "batch_size": 1},
    "parts": {n: {"dtype": "bfloat16", "train": n == "unet"} for n in ("unet", "text_encoder", "text_encoder_2")},
    "sampling": {"every": {"n": 1, "unit": "epoch"}, "prompts": [{"prompt": "a", "width_px": 1024, "height_px": 1024}]},
}
ENCODERS = {"text_encoder", "text_encoder_2"}


def config_of(checkpointing: str = "block") -> Config:
    parts = {**SDXL["parts"], "unet": {**SDXL["parts"]["unet"], "checkpointing": checkpointing}}
    return Config.model_validate({**SDXL, "parts": parts})


def test_the_smallest_parts_stay_while_they_fit() -> None:
    memory = MemoryEstimate((PhaseMemory("training", (("all", 50),)), PhaseMemory("sampling", (("all", 70),))))
    needed = {"training": frozenset({"unet"}), "sampling": frozenset({"unet"})}
    weights = {"unet": 40, "vae": 5, "first": 10, "second": 20}

    def stay(limit: int) -> dict[str, set[str]]:
        found = parts_staying(memory, needed, weights, limit_bytes=limit)  # type: ignore[arg-type]
        return {phase: set(parts) for phase, parts in found.items()}

    assert stay(100) == {"training": {"vae", "first", "second"}, "sampling": {"vae", "first"}}
    assert stay(76) == {"training": {"vae", "first"}, "sampling": {"vae"}}
    assert stay(50) == {"training": set(), "sampling": set()}


def test_on_a_large_card_nothing_moves_and_on_a_small_one_everything() -> None:
    config = config_of()
    large = parts_that_stay(config, SIZES, free_bytes=80 * GB)
    assert large["train"] == ENCODERS | {"vae"}
    assert large["sample_decode"] == ENCODERS | {"unet"}
    assert large["sample_encode"] == frozenset.intersection(
        *(large[p] for p in large if p not in ("sample_encode", "sample_images"))
    )
    small = parts_that_stay(config, SIZES, free_bytes=6 * GB)
    assert not any(small[phase] for phase in ("train", "sample_denoise", "sample_encode"))
    assert parts_that_stay(config, SIZES, free_bytes=None) == {}


def test_what_stays_fits_by_the_estimate() -> None:
    budget = budget_of(config_of(), SIZES)
    assert budget is not None
    weights = {n: budget.passes.weights(n, p).num_bytes(p) for n, p in budget.run.plans.items()}
    memory = budget.memory()
    for free_gb in (7, 8, 9, 10, 12):
        limit = round((1 - RESERVE_FOR_PARTS) * free_gb * GB)
        found = parts_staying(memory, budget.run.on_device, weights, limit_bytes=limit)
        for phase in memory.phases:
            beside = sum(weights[n] for n in found[phase.phase])
            assert not beside or phase.total_bytes + beside <= limit


@pytest.fixture(scope="module")
def automatic() -> Budget:
    found = budget_of(config_of("auto"), SIZES)
    assert found is not None
    return on_a_gpu(found)


@pytest.mark.full
def test_fewer_blocks_are_computed_again_on_a_larger_card(automatic: Budget) -> None:
    chosen = {gb: chosen_blocks(automatic, limit_bytes=gb * GB)["unet"] for gb in (7, 11, 80)}
    assert chosen[80] == frozenset()
    assert chosen[7] > chosen[11] > chosen[80]
    everything = {n.rpartition(".")[0] for n in automatic.passes.weights("unet", automatic.run.plans["unet"]).shapes}
    assert all(any(name.startswith(block) for name in everything) for block in chosen[7])


@pytest.mark.parametrize("free_gb", [pytest.param(8, marks=pytest.mark.full), 12])
def test_what_stays_fits_beside_what_automatic_checkpointing_keeps(free_gb: int) -> None:
    """Each by itself would fit: the encoders beside a run that recomputes everything, and what the blocks keep."""
    config, free_bytes = config_of("auto"), free_gb * GB
    blocks = blocks_to_checkpoint(config, SIZES, free_bytes=free_bytes)
    assert blocks is not None
    staying = parts_that_stay(config, SIZES, free_bytes=free_bytes, blocks=blocks)
    budget = budget_of(config, SIZES)
    assert budget is not None
    training = with_blocks(budget, blocks).memory().phase("training")
    assert training is not None
    plans = budget.run.plans
    beside = sum(budget.passes.weights(n, plans[n]).num_bytes(plans[n]) for n in staying["train"])
    assert training.total_bytes + beside < free_bytes
    assert training.total_bytes > 0.8 * free_bytes or not blocks["unet"]


def test_a_budget_on_a_card_has_the_blocks_that_the_run_recomputes(automatic: Budget) -> None:
    peaks = [on_card(automatic, gb * GB).peak_bytes for gb in (6, 10, 80)]
    assert peaks == sorted(peaks)
    assert peaks[0] == pytest.approx(automatic.peak_bytes, rel=0.01), "all of them"
    assert 0.8 * 10 * GB < peaks[1] <= 0.9 * 10 * GB
    fixed = budget_of(config_of("block"), SIZES)
    assert fixed is not None
    assert on_card(fixed, 80 * GB) is fixed


@pytest.mark.parametrize(
    "training", [{"trains": "embedding"}, {"trains": "adapter"}], ids=["embedding", "adapters of the encoders"]
)
def test_blocks_that_train_nothing_count_where_a_gradient_passes_through_them(training: dict[str, str]) -> None:
    """The gradient of what the prompts train passes through the whole denoiser, though nothing of it is trained."""
    parts = {n: {"dtype": "bfloat16", "train": n != "unet", "checkpointing": "auto"} for n in SDXL["parts"]}
    words = {"words": [{"placeholder": "<x>", "token_count": 1}]}
    config = Config.model_validate(
        {**SDXL, "parts": parts, "embeddings": words, "training": {**SDXL["training"], **training}}
    )
    budget = budget_of(config, SIZES)
    assert budget is not None
    least = on_card(budget, 6 * GB)
    assert least.run.plans["unet"].checkpointed_blocks
    assert least.peak_bytes < 1.01 * budget.peak_bytes


def test_only_what_a_gradient_passes_through_counts() -> None:
    parts = {n: {**part, "checkpointing": "auto"} for n, part in SDXL["parts"].items()}
    config = Config.model_validate({**SDXL, "parts": {**parts, "vae": {"checkpointing": "auto"}}})
    budget = budget_of(config, SIZES)
    assert budget is not None
    found = chosen_blocks(budget, limit_bytes=0)
    assert found["unet"]
    assert not found["vae"] | found["text_encoder"] | found["text_encoder_2"]


def test_without_a_size_of_the_card_or_an_estimate_nothing_is_chosen() -> None:
    assert blocks_to_checkpoint(config_of("auto"), SIZES, free_bytes=None) is None
    assert blocks_to_checkpoint(config_of("auto"), {}, free_bytes=8 * GB) is None
    assert blocks_to_checkpoint(config_of("block"), SIZES, free_bytes=8 * GB) == {}
