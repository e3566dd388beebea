"""Methods that learn from prompts: prompts concepts train, and of images only captions and sizes are used."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.presets import list_presets
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.usage import uses_prior
from modules.data.samples import SampleIndex
from modules.data.versions import ImageVersions
from modules.estimate.architecture import architecture_of
from modules.families.registry import FAMILIES
from modules.families.spec import LatentSpec
from modules.system.devices import CPU
from tests.builders import toy_policy
from tests.builders.configs import family_of, laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer import phases
from trainer.data.datasets import datasets_of
from trainer.data.sources import BlankLatents
from trainer.events import (
    CacheFilled,
    CacheProgress,
    RewardMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    ValidationFinished,
)
from trainer.jobs.check import plan_lines
from trainer.preflight import check
from trainer.preflight.memory_plan import run_plan
from trainer.run.prune import keys_of

PROMPTS = ["a red ball", "a blue ball", "a {green|grey} cat", "two dogs"]
METHOD: dict[str, Any] = {"name": "alignprop", "steps": 2, "backprop_steps": 1, "guidance": 2.0}


def write_prompts(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    return folder / "prompts.txt"


def config_of(
    folder: Path, model: Path, concept: dict[str, Any], method: dict[str, Any] = METHOD, **changes: Any
) -> Config:
    reward = {"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}}
    encoders = ("text_encoder", "text_encoder_2")[: 2 if family_of(model) == "sdxl" else 1]
    parts = {name: {"train": False} for name in encoders}
    config = small_config(folder, model=model, images=folder, parts=parts, training={"method": method}, reward=reward)
    return laid_over(config, {"concepts": [concept], **changes})


def prompts_config(folder: Path, model: Path, method: dict[str, Any] = METHOD, **changes: Any) -> Config:
    file = write_prompts(folder)
    return config_of(folder, model, {"path": str(file), "kind": "prompts"}, method, **changes)


def damaged(png: bytes) -> bytes:
    """A PNG whose pixels cannot be decoded; its header is as it was."""
    start = png.index(b"IDAT") + 8
    return png[:start] + bytes(len(png) - start - 12) + png[-12:]


def cached(ran: Ran) -> set[str]:
    return {e.what for e in ran.of(CacheProgress)} | {e.what for e in ran.of(CacheFilled)}


def messages(config: Config, severity: str) -> list[str]:
    return [p.message for p in problems_of(config) if p.severity == severity]


# -- runs


@pytest.mark.full
def test_a_run_on_prompts_alone_trains_and_caches_only_captions(any_model: Path, tmp_path: Path) -> None:
    config = prompts_config(tmp_path, any_model, general={"debug_checks": True}, concepts=[])
    file = tmp_path / "prompts.txt"
    concept = {"path": str(file), "kind": "prompts", "repeats": 1.5, "text": {"wildcards": True}, "text_variations": 3}
    ran = run(laid_over(config, {"concepts": [concept], "data": {"resolution_px": ["64x48"]}}))
    assert isinstance(ran.ending, RunFinished), ran.ending
    (started,) = ran.of(RunStarted)
    assert (started.num_images, started.num_prompts, started.total_steps) == (0, 4, 6)
    assert all("reward" in s.metrics for s in ran.of(StepFinished))
    assert cached(ran) == {"captions"}
    with (Path(started.run_dir) / "plan.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [(r["image"], r["size"], r["bucket"], r["crop_left"]) for r in rows] == [
        (str(file / f"line {n}"), "", "64x48", "") for n in (1, 2, 3, 4)
    ]


@pytest.mark.full
def test_prompts_train_like_images_with_the_same_captions(tiny_sd: Path, tmp_path: Path) -> None:
    """The images are neither decoded nor encoded: they are damaged behind their headers."""
    (tmp_path / "images").mkdir()
    plain = [p.replace("{green|grey}", "green") for p in PROMPTS]
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4)
    for path, caption in zip(sorted(images.glob("*.png")), plain, strict=True):
        path.with_suffix(".txt").write_text(caption, encoding="utf-8")
        path.write_bytes(damaged(path.read_bytes()))
    (tmp_path / "p.txt").write_text("\n".join(plain), encoding="utf-8")
    of_images = run(config_of(tmp_path / "a", tiny_sd, {"path": str(images)}))
    of_prompts = run(config_of(tmp_path / "b", tiny_sd, {"path": str(tmp_path / "p.txt"), "kind": "prompts"}))
    assert_equal_tensors(of_images.weights, of_prompts.weights)
    assert cached(of_images) == cached(of_prompts) == {"captions"}
    assert not (tmp_path / "a" / "cache" / "latents").exists()


def test_a_policy_method_samples_at_the_size_of_its_prompts(tiny_sdxl: Path, tmp_path: Path) -> None:
    with toy_policy.registered():
        data = {"resolution_px": [48], "text_cache": False}
        ran = run(prompts_config(tmp_path, tiny_sdxl, {"name": "toy_policy"}, data=data, training={"epochs": 1}))
        assert len(ran.of(StepFinished)) == 4, ran.ending


def test_validation_still_reads_and_caches_its_images(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a disc"])
    config = prompts_config(tmp_path, tiny_sd)
    concepts = [{"path": str(tmp_path / "prompts.txt"), "kind": "prompts"}]
    concepts += [{"path": str(images), "kind": "validation"}]
    ran = run(laid_over(config, {"concepts": concepts, "validation": {"every": {"n": 1, "unit": "epoch"}}}))
    losses = [v.loss for v in ran.of(ValidationFinished)]
    assert losses, ran.ending
    assert all(loss is not None for loss in losses)
    assert cached(ran) == {"captions", "images"}


def test_the_reward_is_measured_on_prompts(tiny_sd: Path, tmp_path: Path) -> None:
    config = prompts_config(
        tmp_path, tiny_sd, reward={"measure_every": {"n": 1, "unit": "epoch"}, "num_images": 4}, training={"epochs": 1}
    )
    ran = run(config)
    assert [m.num_images for m in ran.of(RewardMeasured)] == [4, 4], ran.ending


@pytest.mark.full
def test_the_order_of_prompts_is_resumed_bit_for_bit(tiny_sd: Path, tmp_path: Path) -> None:
    def config(name: str, epochs: int) -> Config:
        tree: dict[str, Any] = {
            "training": {"epochs": epochs},
            "data": {"caption_dropout": 0.3},
            "backup": {"at_end": True},
        }
        return prompts_config(tmp_path / name, tiny_sd, **tree)

    whole = run(config("whole", 4))
    run(config("parts", 2))
    resumed = run(config("parts", 4), resume_from=tmp_path / "parts" / "workspace")
    assert_equal_tensors(whole.weights, resumed.weights)


# -- blank latents


def test_blank_latents_have_the_shape_of_the_bucket(tiny_sd: Path, tmp_path: Path) -> None:
    datasets = datasets_of(prompts_config(tmp_path, tiny_sd, data={"resolution_px": ["96x48"]}))
    assert not datasets.settings.reads_images
    version = ImageVersions(datasets.training, 0, is_cached=True).of(SampleIndex(0, 0, 0, 0))
    source = BlankLatents(LatentSpec(channels=4, factor=8), CPU, torch.bfloat16)
    latents = source.deliver([version, version], [source.prepare(version)] * 2)
    assert latents.shape == (2, 4, 6, 12)
    assert latents.dtype is torch.bfloat16
    assert not latents.any()


# -- checks


@pytest.mark.parametrize("method", [{"name": "denoise"}, {**METHOD, "probability": 0.5}])
def test_prompts_are_refused_by_a_method_that_needs_images(
    tiny_sd: Path, tmp_path: Path, method: dict[str, Any]
) -> None:
    config = prompts_config(tmp_path, tiny_sd, method)
    (message,) = messages(config, "error")
    assert "prompts without images" in message
    assert "needs images" in message
    ran = run(config)
    assert isinstance(ran.ending, RunFailed)


def test_masks_and_roles_of_images_are_said_to_have_no_effect(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a disc"])
    config = prompts_config(tmp_path, tiny_sd, masks={"enabled": True, "unmasked_weight": 0.1})
    concepts = [{"path": str(images), "kind": kind} for kind in ("training", "prior_prediction", "regularization")]
    config = laid_over(config, {"concepts": concepts})
    warnings = messages(config, "warning")
    assert len(warnings) == 3
    assert "is for prior prediction" in warnings[0]
    assert "is for regularization" in warnings[1]
    assert "Masked training has no effect" in warnings[2]
    assert not uses_prior(config)
    ran = run(config)
    assert isinstance(ran.ending, RunFinished), ran.ending


def test_caption_dropout_is_said_to_sample_without_a_prompt(tiny_sd: Path, tmp_path: Path) -> None:
    config = prompts_config(tmp_path, tiny_sd, {"name": "grpo"}, data={"caption_dropout": 0.1})
    assert any("are sampled without a prompt" in message for message in messages(config, "warning"))
    assert not messages(laid_over(config, {"data": {"caption_dropout": 0.0}}), "warning")


def test_an_empty_file_of_prompts_and_a_missing_one_are_named(tiny_sd: Path, tmp_path: Path) -> None:
    config = prompts_config(tmp_path, tiny_sd)
    (tmp_path / "prompts.txt").write_text("# nothing\n\n", encoding="utf-8")
    (error,) = check(config).errors
    assert error.message == "The concept prompts.txt contains no prompt."
    assert error.advice.startswith("Write a prompt per line")
    (tmp_path / "prompts.txt").unlink()
    (error,) = check(config).errors
    assert "The file or folder" in error.message
    assert "does not exist" in error.message


def test_the_check_counts_prompts_and_plans_without_a_cache_of_images(tiny_sd: Path, tmp_path: Path) -> None:
    config = prompts_config(tmp_path, tiny_sd)
    report = check(config)
    assert report.errors == []
    assert report.preview is not None
    assert report.datasets is not None
    assert (report.preview.num_images, report.preview.num_prompts) == (0, 4)
    assert any("4 prompts" in line for line in plan_lines(report.datasets, is_cached=True, epochs=2, every_image=True))
    architecture = architecture_of(str(tiny_sd), "sd")
    assert architecture is not None
    plan = run_plan(config, architecture, report.datasets.training.bucket_counts)
    assert plan is not None
    assert "encoding images" not in plan.on_device
    uncached = laid_over(config, {"data": {"latent_cache": False}})
    plan = run_plan(uncached, architecture, report.datasets.training.bucket_counts)
    assert plan is not None
    assert not plan.encodes_in_training


def test_pruning_and_the_cache_verb_count_no_latents(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a disc"])
    config = prompts_config(tmp_path, tiny_sd)
    concepts = [{"path": str(images)}, {"path": str(tmp_path / "prompts.txt"), "kind": "prompts"}]
    config = laid_over(config, {"concepts": concepts, "general": {"only_cache": True}})
    ran = run(config)
    assert "Training images are not read" in ran.finished.message
    keys, _ = keys_of(config)
    assert len(keys) == 1 + 1 + len(PROMPTS)  # the empty caption, that of the images, and the prompts


def test_the_vae_trains_along_but_encodes_nothing(tiny_sd: Path, tmp_path: Path) -> None:
    config = prompts_config(tmp_path, tiny_sd, data={"latent_cache": False})
    facts = phases.phase_facts(config)
    assert not facts.reads_images
    assert "vae" in phases.needed_parts(phases.TRAIN, FAMILIES["sd"], facts)  # it decodes
    assert "vae" in phases.needed_parts(phases.VALIDATE, FAMILIES["sd"], facts)


@pytest.mark.full
def test_the_demo_preset_raises_its_reward(tmp_path: Path) -> None:
    """Nine of its steps; in all of them the reward rises much further."""
    (preset,) = [p for p in list_presets() if p.name == "#demo AlignProp"]
    config = laid_over(
        preset.load().config,
        {
            "general": {"workspace_dir": str(tmp_path / "w"), "cache_dir": str(tmp_path / "c"), "num_threads": 1},
            "training": {"epochs": 3},
            "reward": {"measure_every": {"n": 9, "unit": "step"}},
            "sampling": {"every": {"unit": "never"}, "at_end": False},
            "output": {"destination": str(tmp_path / "brighter.safetensors")},
        },
    )
    ran = run(config)
    before, after = (m.followed for m in ran.of(RewardMeasured))
    assert before is not None
    assert after is not None
    assert after > before + 0.02
