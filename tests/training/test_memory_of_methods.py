"""The memory estimate of every method against the peak of a real run, and how its settings change it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.saving_memory import peak_of
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.architecture import architecture_of
from modules.estimate.passes import count
from modules.estimate.run import PhaseMemory, estimate
from modules.families.registry import FAMILIES
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from trainer.preflight.memory_plan import run_plan
from trainer.preflight.passes import passes_of
from trainer.preflight.run_budget import memory_estimate

MODEL = PROGRAM_ROOT / "demo" / "model"
FACTOR = 0.05
ACCUMULATED_FACTOR = 0.1  # of online DPO: it counts as a method that accumulates gradients, also with a single batch
ROLLOUT = {"steps": 4, "guidance": 3.0}
METHODS: dict[str, dict[str, Any]] = {
    "denoise": {},
    "alignprop": {**ROLLOUT, "gradient_truncation": "fixed", "backprop_steps": 2},
    "ddpo": {**ROLLOUT, "samples_per_prompt": 2, "advantage": "batch"},
    "grpo": {**ROLLOUT, "group_size": 2, "kl_weight": 0.1},
    "dpo": {},
    "online_dpo": {**ROLLOUT, "candidates": 2, "updates_per_rollout": 2},
    "nft": {**ROLLOUT, "group_size": 2, "timesteps_per_image": 2},
    "dgpo": {**ROLLOUT, "group_size": 2, "timesteps_per_image": 2},
}
SIDE_PX = 128
BATCH = 2


def write_data(folder: Path, *, pairs: bool) -> dict[str, Any]:
    """A concept with one batch."""
    if pairs:
        for side in ("chosen", "rejected"):
            (folder / side).mkdir(parents=True)
            draw_folder(folder / side, sizes=[(SIDE_PX, SIDE_PX)] * BATCH, captions=["a disc"])
        return {"path": str(folder), "kind": "pairs"}
    draw_folder(folder, sizes=[(SIDE_PX, SIDE_PX)] * BATCH, captions=["a disc"])
    return {"path": str(folder)}


def config_of(folder: Path, method: str, *, trains: str = "adapter", **changes: Any) -> Config:
    concept = write_data(folder / "data", pairs=method == "dpo")
    config = small_config(
        folder,
        model=MODEL,
        images=folder,
        general={"temp_device": "cpu:1"},
        training={"method": {"name": method, **METHODS[method]}, "trains": trains, "batch_size": BATCH, "epochs": 3},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}},
        parts={"text_encoder": {"train": False}},
        data={"resolution_px": [SIDE_PX]},
        output={"dtype": "float32"},
    )
    return laid_over(config, {"concepts": [concept], **changes})


def training_phase(config: Config) -> PhaseMemory:
    found = memory_estimate(config, {Size(SIDE_PX, SIDE_PX): BATCH})
    assert found is not None
    phase = found.phase("training")
    assert phase is not None
    return phase


@pytest.mark.full
@pytest.mark.parametrize("trains", ["adapter", pytest.param("full", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "method", [n if n in ("alignprop", "grpo") else pytest.param(n, marks=pytest.mark.full) for n in METHODS]
)
def test_a_step_needs_the_estimated_memory(tmp_path: Path, method: str, trains: str) -> None:
    config = config_of(tmp_path, method, trains=trains)
    predicted = training_phase(config)
    measured = peak_of(config)
    rel = ACCUMULATED_FACTOR if method in ("online_dpo", "nft", "dgpo") else FACTOR
    assert predicted.total_bytes == pytest.approx(measured, rel=rel), predicted


def test_latents_of_samples_count_where_they_stay_on_the_training_device(tmp_path: Path) -> None:
    """Of many samples at a small size, whose states are in float32: those around each trained step, and the last."""
    many = {"method": {"samples_per_prompt": 64, "steps": 3}}
    here = config_of(tmp_path, "ddpo", training=many, general={"temp_device": "cpu"})
    elsewhere = laid_over(here, {"general": {"temp_device": "cpu:1"}})
    num_states, bytes_of_latents = 4, 4 * (SIDE_PX // 8) ** 2 * 4
    assert dict(training_phase(here).parts)["sampled latents"] == 64 * BATCH * num_states * bytes_of_latents
    assert dict(training_phase(elsewhere).parts).get("sampled latents", 0) == 0


@pytest.mark.full
def test_the_size_of_the_samples_counts_instead_of_that_of_the_images(tmp_path: Path) -> None:
    config = config_of(tmp_path, "grpo")
    plain = training_phase(config)
    own = laid_over(config, {"training": {"method": {"size": f"{SIDE_PX // 2}x{SIDE_PX // 2}"}}})
    assert dict(training_phase(own).parts)["activations"] < 0.4 * dict(plain.parts)["activations"]
    assert training_phase(own).total_bytes == pytest.approx(peak_of(own), rel=FACTOR)
    doubtful = laid_over(config, {"training": {"method": {"size": "wide"}}})  # the check of the settings reports it
    assert training_phase(doubtful) == plain


def test_without_guidance_half_the_activations_are_needed(tmp_path: Path) -> None:
    config = config_of(tmp_path, "ddpo")
    plain = dict(training_phase(config).parts)["activations"]
    alone = dict(training_phase(laid_over(config, {"training": {"method": {"guidance": 1.0}}})).parts)["activations"]
    assert alone == pytest.approx(plain / 2, rel=0.05)


@pytest.mark.full
@pytest.mark.parametrize("trains", [pytest.param("adapter", marks=pytest.mark.full), "full"])
def test_a_refreshed_reference_needs_the_estimated_memory(tmp_path: Path, trains: str) -> None:
    config = config_of(tmp_path, "online_dpo", trains=trains, training={"method": {"reference": "refreshed"}})
    phase = training_phase(config)
    assert dict(phase.parts)["reference weights"] > 0
    assert dict(phase.parts).get("original weights", 0) == 0
    assert phase.total_bytes == pytest.approx(peak_of(config), rel=ACCUMULATED_FACTOR)


def test_a_refreshed_reference_is_a_copy_of_the_trained_weights(tmp_path: Path) -> None:
    config = config_of(tmp_path, "ddpo", trains="full")
    architecture = architecture_of(str(MODEL), "sd")
    assert architecture is not None
    plan = run_plan(config, architecture, [Size(SIDE_PX, SIDE_PX)])
    assert plan is not None
    assert plan.sampled is not None
    passes = passes_of(FAMILIES["sd"], architecture.configs)
    plain = estimate(passes, plan).phase("training")
    kept = estimate(passes, replace(plan, sampled=replace(plan.sampled, copies_weights=True))).phase("training")
    assert plain is not None
    assert kept is not None
    weights = count(passes.weights("unet", plan.plans["unet"]).shapes.values())
    assert dict(kept.parts)["reference weights"] == 4 * weights
    assert kept.total_bytes == plain.total_bytes + 4 * weights
