"""Tensors that a run computed itself and trained its weights beside: they belong to the weights, not to a seed.

PiSSA's frozen product of a wide layer is computed with random draws, and so are the rows of an embedding for a text
encoder that it is not trained on. Other draws would change what the trained weights mean.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from modules.adapters import lora_product
from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import run
from tests.training.test_forks import fork
from trainer.job import Job
from trainer.jobs.sample import SampleChoices, SampleRequest
from trainer.jobs.sample_engine import SamplingEngine
from trainer.run.export_backup import export_backup
from trainer.run_folder.backup import MANIFEST, find_backup

STILL = {"epochs": 1, "learning_rate": 1e-12}
PISSA: dict[str, Any] = {"adapter": {"rank": 2, "init": "pissa"}}


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny model's layers be wide ones: their decomposition draws random numbers."""
    monkeypatch.setattr(lora_product, "_EXACT_UP_TO", 4)
    monkeypatch.setattr(lora_product, "_OVERSAMPLING", 0)
    monkeypatch.setattr(lora_product, "_ITERATIONS", 0)


def changes_of(file: Path) -> dict[str, torch.Tensor]:
    """What a LoRA file adds to each layer's weight."""
    tensors = load_file(file)
    layers = {name.partition(".")[0] for name in tensors}
    return {n: tensors[f"{n}.lora_up.weight"].flatten(1) @ tensors[f"{n}.lora_down.weight"].flatten(1) for n in layers}


def largest_difference(one: Path, other: Path) -> float:
    """How far two files are apart, as a share of the largest change."""
    ours, theirs = changes_of(one), changes_of(other)
    assert ours.keys() == theirs.keys()
    scale = max(float(change.norm()) for change in ours.values())
    return max(float((change - theirs[name]).norm()) for name, change in ours.items()) / scale


def as_of_an_older_version(backup: Path) -> None:
    """Leave the file of these tensors out of a backup."""
    manifest = json.loads((backup / MANIFEST).read_text())
    if manifest["files"].pop("fixed.safetensors", None) is not None:
        (backup / "fixed.safetensors").unlink()
        (backup / MANIFEST).write_text(json.dumps(manifest))


def with_seed(config: Config, seed: int, folder: Path) -> Config:
    own = {
        "general": {"seed": seed, "workspace_dir": str(folder)},
        "output": {"destination": str(folder / "lora.safetensors")},
    }
    return laid_over(config, own)


@pytest.mark.full
@pytest.mark.parametrize("is_old", [False, True], ids=["today", "backup of an older version"])
def test_a_fork_with_another_seed_keeps_the_function(
    tiny_sd: Path, images: Path, tmp_path: Path, wide: None, is_old: bool
) -> None:
    config = laid_over(
        small_config(tmp_path, model=tiny_sd, images=images), {**PISSA, "training": {"learning_rate": 1e-3}}
    )
    first = with_seed(config, 1, tmp_path / "first")
    parent = run(first)
    backup = Path(parent.finished.backup_path)
    if is_old:
        as_of_an_older_version(backup)
    second = laid_over(with_seed(config, 2, tmp_path / "second"), {"training": STILL})
    child = fork(second, backup, weights_only=True)
    assert largest_difference(Path(parent.finished.model_path), Path(child.finished.model_path)) < 1e-5
    third = laid_over(with_seed(config, 3, tmp_path / "third"), {"training": STILL})
    grandchild = fork(third, Path(child.finished.backup_path), weights_only=True)
    assert largest_difference(Path(parent.finished.model_path), Path(grandchild.finished.model_path)) < 1e-5


@pytest.mark.full
def test_an_export_and_a_resume_read_them_from_the_backup(
    tiny_sd: Path, images: Path, tmp_path: Path, wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine whose decomposition has other rounding."""
    config = laid_over(small_config(tmp_path, model=tiny_sd, images=images), PISSA)
    ran = run(config)
    backup = find_backup(Path(ran.finished.backup_path))
    monkeypatch.setattr(lora_product, "_ITERATIONS", 3)
    exported = export_backup(backup, tmp_path / "exported.safetensors", now=datetime(2026, 1, 1))
    assert largest_difference(Path(ran.finished.model_path), exported.path) < 1e-6
    resumed = run(laid_over(config, {"training": {"epochs": 3, "learning_rate": 1e-12}}), resume_from=backup.path)
    assert largest_difference(exported.path, Path(resumed.finished.model_path)) < 1e-5


def test_a_sample_of_a_backup_does_not_depend_on_the_seed_in_the_window(
    tiny_sd: Path, images: Path, tmp_path: Path, wide: None
) -> None:
    prompt = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 1, "seed": 7, "sampler": "ddim"}
    first = laid_over(
        small_config(tmp_path, model=tiny_sd, images=images),
        {**PISSA, "general": {"seed": 1}, "sampling": {"prompts": [prompt]}},
    )
    backup = Path(run(first).finished.backup_path)
    as_of_an_older_version(backup)
    sampled = []
    for seed in (1, 2):
        config = laid_over(first, {"general": {"seed": seed}})
        request = SampleRequest(config, SampleChoices(folder=str(tmp_path / f"seed {seed}"), backup=str(backup)))
        [path] = SamplingEngine().sample(request, Job(lambda _event: None)).paths
        sampled.append(np.asarray(Image.open(path)))
    assert np.array_equal(*sampled)


def test_a_fork_keeps_the_rows_of_an_embedding_for_an_encoder_that_it_is_not_trained_on(
    tiny_sdxl: Path, tmp_path: Path
) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a <zog>"])
    config = laid_over(
        small_config(tmp_path, model=tiny_sdxl, images=images),
        {
            "training": {"trains": "embedding", "epochs": 1},
            "embeddings": {"words": [{"placeholder": "<zog>", "start": "random", "token_count": 2}]},
            "parts": {"text_encoder_2": {"train_embedding": False}},
        },
    )
    parent = run(with_seed(config, 1, tmp_path / "first"))
    child = fork(with_seed(config, 2, tmp_path / "second"), Path(parent.finished.backup_path), weights_only=True)
    other = with_seed(config, 3, tmp_path / "third")
    grandchild = fork(other, Path(child.finished.backup_path), weights_only=True)
    rows = [load_file(ran.finished.model_path)["clip_g"] for ran in (parent, child, grandchild)]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])
