"""Runs that train embeddings: alone and with a LoRA or a fine-tune; what moves, and what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.commands import Stop
from trainer.events import StepFinished, WarningRaised
from trainer.preflight import check

CAPTIONS = ["a <zog>", "a disc", "a red <ZOG>, small"]
ALONE: dict[str, Any] = {
    "training": {"trains": "embedding", "learning_rate": 1e-2, "epochs": 2},
    "embeddings": {"words": [{"placeholder": "<zog>", "initial_text": "cat", "token_count": 2}]},
}


def config_of(folder: Path, model: Path, **changes: Any) -> Config:
    images = folder / "images"
    if not images.exists():
        draw_folder(images, sizes=[(64, 64)] * 6, captions=CAPTIONS)
    alone = laid_over(small_config(folder, model=model, images=images), ALONE)
    return laid_over(alone, {"output": {"destination": str(folder / "out" / "zog.safetensors")}, **changes})


def ran(config: Config, **options: Any) -> Ran:
    assert [p for p in check(config).problems if p.severity == "error"] == []
    result = run(config, **options)
    assert result.finished.outcome in ("finished", "stopped")
    return result


def losses(result: Ran) -> list[float | None]:
    return [s.loss for s in result.of(StepFinished)]


def test_an_embedding_alone(any_model: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, any_model)
    family = load_tiny(any_model)
    encoders = list(family.spec.embedding_tensors)
    result = ran(config)
    assert result.weights.keys() == {f"embedding:<zog>.{n}" for n in encoders}
    stored = load_file(tmp_path / "out" / "zog.safetensors")
    assert stored.keys() == set(family.spec.embedding_tensors.values())
    for name, tensor in family.spec.embedding_tensors.items():
        start = family.towers[name].encoder.get_input_embeddings().weight[family.token_ids(name, "cat")]
        rows = result.weights[f"embedding:<zog>.{name}"]
        assert rows.shape == (2, start.shape[1])
        assert (rows[:1] - start).abs().max() > 1e-3  # moved
        assert torch.equal(stored[tensor], rows.half())
    # Only the two captions with the word are encoded in each step; the other one and the empty one are cached.
    assert len(list((tmp_path / "cache" / "text").rglob("*.safetensors"))) == 2


def test_stopped_and_resumed_bit_for_bit(tiny_sdxl: Path, tmp_path: Path) -> None:
    more = {
        "training": {"ema": {"mode": "train_device", "decay": 0.9}, "schedule": {"name": "cosine", "warmup_steps": 2}},
        "embeddings": {"preserve_norm": True},
    }
    config = config_of(tmp_path / "a", tiny_sdxl, **more)
    whole = ran(config)

    def stop(event: object, send: Any) -> None:
        if isinstance(event, StepFinished) and event.step == 2:
            send(Stop())

    again = config_of(tmp_path / "b", tiny_sdxl, **more)
    stopped = run(again, on_event=stop)
    resumed = ran(again, resume_from=Path(stopped.finished.backup_path))
    assert_equal_tensors(whole.weights, resumed.weights)
    assert losses(stopped) + losses(resumed) == losses(whole)
    files = [load_file(folder / "out" / "zog.safetensors") for folder in (tmp_path / "a", tmp_path / "b")]
    assert_equal_tensors(*files)
    norms = {n: w.norm(dim=-1).tolist() for n, w in whole.weights.items()}
    family = load_tiny(tiny_sdxl)
    for name in family.spec.embedding_tensors:
        typical = family.towers[name].encoder.get_input_embeddings().weight.norm(dim=-1).median().item()
        assert norms[f"embedding:<zog>.{name}"] == pytest.approx([typical] * 2)
