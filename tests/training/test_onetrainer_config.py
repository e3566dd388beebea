"""An OneTrainer config of version 11 is opened and trained, its concepts and samples in files of their own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modules.config.codec import load_file as load_config
from tests.builders.configs import laid_over
from tests.builders.runs import run
from trainer.events import ModelSaved, SampleReady, StepFinished, ValidationFinished


@pytest.fixture
def onetrainer_file(tiny_sd: Path, images: Path, tmp_path: Path) -> Path:
    part = {"__version": 0, "train": True, "stop_training_after_unit": "NEVER", "gradient_checkpointing": True}
    config: dict[str, Any] = {
        "__version": 11,
        "training_method": "LORA",
        "model_type": "STABLE_DIFFUSION_15",
        "workspace_dir": str(tmp_path / "workspace"),
        "cache_dir": str(tmp_path / "cache"),
        "tensorboard": False,
        "validation": True,
        "validate_after": 4,
        "validate_after_unit": "STEP",
        "base_model_name": str(tiny_sd),
        "output_dtype": "FLOAT_32",
        "output_model_format": "KOHYA_LORA",
        "output_model_destination": str(tmp_path / "lora.safetensors"),
        "concept_file_name": "training_concepts/concepts.json",
        "concepts": None,
        "learning_rate_scheduler": "CUSTOM",
        "custom_learning_rate_scheduler": "torch.optim.lr_scheduler.CosineAnnealingLR",
        "scheduler_params": [{"key": "T_max", "value": "%SCHEDULER_STEPS%"}],
        "learning_rate": 0.003,
        "learning_rate_warmup_steps": 4.0,
        "epochs": 4,
        "batch_size": 1,
        "gradient_accumulation_steps": 2,
        "train_device": "cpu",
        "temp_device": "cpu",
        "train_dtype": "FLOAT_32",
        "resolution": "64",
        "loss_weight_fn": "MIN_SNR_GAMMA",
        "loss_weight_strength": 5.0,
        "unet": part | {"learning_rate": 0.002, "weight_dtype": "FLOAT_32"},
        "text_encoder": part | {"stop_training_after": 2, "stop_training_after_unit": "EPOCH"},
        "lora_rank": 4,
        "lora_alpha": 2.0,
        "layer_filter_preset": "attn-mlp",
        "optimizer": {"optimizer": "ADAMW", "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.05},
        "sample_definition_file_name": "training_samples/samples.json",
        "samples": None,
        "sample_after": 2,
        "sample_after_unit": "EPOCH",
        "backup_after": 100,
        "backup_after_unit": "MINUTE",
    }
    concept = {"__version": 2, "path": str(images), "balancing": 1.0, "text": {"prompt_source": "sample"}}
    concepts = [concept | {"type": "STANDARD"}, concept | {"type": "VALIDATION", "name": "held out"}]
    sample = {"prompt": "a disc", "width": 64, "height": 64, "diffusion_steps": 3, "noise_scheduler": "EULER_A"}
    for folder, name, content in (
        ("training_configs", "mine.json", config),
        ("training_concepts", "concepts.json", concepts),
        ("training_samples", "samples.json", [sample]),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(json.dumps(content))
    return tmp_path / "training_configs" / "mine.json"


def test_it_loads_and_trains(onetrainer_file: Path, tmp_path: Path) -> None:
    loaded = load_config(onetrainer_file)
    assert loaded.was_migrated
    assert not [p for p in loaded.problems if p.severity != "info"]
    config = laid_over(loaded.config, {"general": {"num_threads": 1}})
    ran = run(config)
    assert ran.finished.outcome == "finished"
    steps = ran.of(StepFinished)
    assert len(steps) == 12  # five images in windows of two: three steps, in each of four epochs
    # Four batches of warm-up are two updates: the first has half of each part's rate.
    assert steps[0].learning_rates == pytest.approx({"unet": 0.001, "text_encoder": 0.0015})
    # The ninth of the schedule's ten steps.
    assert steps[-1].learning_rates == pytest.approx({"unet": 0.002 * (1 + math.cos(math.pi * 0.9)) / 2})
    assert [s.training_parts for s in steps[5:7]] == [("unet", "text_encoder"), ("unet",)]
    # A step of theirs was a batch: four of them are two optimizer updates of ours.
    assert [v.step for v in ran.of(ValidationFinished)] == [0, 2, 4, 6, 8, 10, 12]
    assert set(ran.of(ValidationFinished)[0].by_concept) == {"held out"}
    assert sorted({s.step for s in ran.of(SampleReady)}) == [0, 6, 12]
    tensors = load_file(ran.of(ModelSaved)[-1].path)
    assert all(v.item() == 2.0 for k, v in tensors.items() if k.endswith(".alpha"))
    assert {t.shape[0] for k, t in tensors.items() if k.endswith("lora_down.weight")} == {4}
    assert (tmp_path / "lora.safetensors").is_file()
