"""A healthy run passes, and the numbers of the preview are those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import Break, at_output, base_model, changed, concept
from trainer.data.datasets import datasets_of
from trainer.preflight import check


def test_a_healthy_run_has_no_problems(config: Config) -> None:
    report = check(config)
    assert report.problems == ()
    assert report.preview is not None


def nothing(config: Config, tmp: Path) -> Config:
    return config


def disabled_with_a_bad_path(config: Config, tmp: Path) -> Config:
    more = [{"path": "/nowhere/at all", "enabled": False}, {"path": "", "enabled": False, "kind": "validation"}]
    return changed(config, concepts=[config.concepts[0].model_dump(), *more])


def frozen_with_a_rate_of_0(config: Config, tmp: Path) -> Config:
    return changed(config, parts__text_encoder__train=False, parts__text_encoder__learning_rate=0.0)


def own_rates(config: Config, tmp: Path) -> Config:
    own = {f"parts__{name}__learning_rate": 1e-4 for name in ("unet", "text_encoder")}
    return changed(config, training__learning_rate=0.0, **own)


FINE: dict[str, Break] = {
    "unchanged": nothing,
    "a disabled concept with a bad path": disabled_with_a_bad_path,
    "a frozen part with a rate of 0": frozen_with_a_rate_of_0,
    "rates of the parts' own": own_rates,
    "a model of a repository": base_model("stable-diffusion-v1-5/stable-diffusion-v1-5"),
    "folders that do not exist yet": at_output("a/b/c/lora.safetensors"),
    "validation with a concept": lambda c, tmp: changed(
        c, concepts=[*(k.model_dump() for k in c.concepts), {"path": c.concepts[0].path, "kind": "validation"}],
        validation__every={"n": 1, "unit": "epoch"}),
    "a path with spaces and letters": lambda c, tmp: changed(
        c, concepts__0__path=str(draw_folder(tmp / "moje obrázky 猫", sizes=[(64, 64)]))),
    "half the images each epoch": concept(repeats=0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_a_healthy_run_passes(config: Config, tmp_path: Path, name: str) -> None:
    report = check(FINE[name](config, tmp_path))
    assert report.errors == []
    assert report.preview is not None


def test_the_check_leaves_nothing_behind(config: Config, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    check(config)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training__batch_size": 3, "training__accumulation_steps": 2},
        {"concepts__0__repeats": 1.5, "training__epochs": 7},
        {"concepts__0__repeats": 0.7, "data__resolution_px": [64, 96], "training__epochs": 9},
        {"data__bucket_step_px": 16, "training__batch_size": 2},
        {"data__aspect_ratio_bucketing": False},
    ],
    ids=str,
)
def test_the_numbers_of_the_preview_are_those_of_the_run(config: Config, changes: dict[str, Any]) -> None:
    config = changed(config, **changes)
    preview = check(config).preview
    assert preview is not None
    plans = datasets_of(config).plans
    steps = [len(plans.accumulation_groups(e)) for e in range(config.training.epochs)]
    assert preview.steps_first_epoch == steps[0]
    assert preview.total_steps == sum(steps)
    assert preview.num_images == 5
    assert sum(count for _, count in preview.buckets) == 5 * len(config.data.resolution_px)


def test_the_preview_counts_both_kinds_of_images(config: Config) -> None:
    both = changed(config, concepts=[{"path": config.concepts[0].path, "kind": k} for k in ("training", "validation")])
    preview = check(both).preview
    assert preview is not None
    assert (preview.num_images, preview.num_validation_images) == (5, 5)
