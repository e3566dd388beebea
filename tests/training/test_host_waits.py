"""A training step does not make the host wait until its device has nothing to do: its outcome is read one step later.

An optimizer that cannot skip a step on the device waits once: when the loss and all else are read together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.host_waits import HostWaits, waits_per_step
from modules.diffusion.latents import PerChannel
from modules.rewards.measures import closeness_to_colour
from modules.system.devices import CPU, Device, move, move_async, tensor_on
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from trainer.step.watchdog import Watchdog

HERE = Device("cpu:1")

WAITING: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "item": lambda x, host: x[0, 0].item(),
    "float": lambda x, host: float(x.sum()),
    "condition": lambda x, host: bool((x > 0).any()),
    "tolist": lambda x, host: x.tolist(),
    "cpu": lambda x, host: x.cpu(),
    "numpy": lambda x, host: x.numpy(),
    "nonzero": lambda x, host: x.nonzero(),
    "boolean index": lambda x, host: x[x > 0],
    "index of the host": lambda x, host: x[[0, 1]],
    "equal": lambda x, host: torch.equal(x, x),
    "copy there": lambda x, host: move(host, HERE),
    "copy of another kind": lambda x, host: host.to(x.device),
    "copy back": lambda x, host: move(x, CPU),
    "made there": lambda x, host: torch.tensor([1.0, 2.0], device=x.device),
    "made as another": lambda x, host: x.new_tensor([1.0, 2.0]),
    "scalars of scalars": lambda x, host: (x.sum() * x.mean()).item(),
}
FREE: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "arithmetic": lambda x, host: (x @ x).sum() + 1.0,
    "pinned copy": lambda x, host: move_async(host, HERE),
    "values": lambda x, host: tensor_on([1.0, 2.0], x.device),
    "the host's own values": lambda x, host: (host.tolist(), host[0, 0].item(), host[host > 0]),
    "gather": lambda x, host: x[move_async(torch.tensor([0, 1]), HERE)],
    "no move": lambda x, host: move(x, HERE),
    "normalized latents": lambda x, host: PerChannel((0.0,) * 3, (1.0,) * 3).normalize(x.view(1, 3, 3, 1)),
    "reward of a colour": lambda x, host: closeness_to_colour(x.view(1, 3, 3, 1), (0.1, 0.2, 0.3)),
}


def counted(work: Callable[[torch.Tensor, torch.Tensor], object]) -> int:
    with HostWaits(HERE) as waits:
        x = move(torch.ones(3, 3), HERE)
        waits.is_counting = True
        work(x, torch.ones(3, 3))
        waits.is_counting = False
    return sum(waits.counts.values())


@pytest.mark.parametrize("kind", WAITING)
def test_what_waits_is_counted(kind: str) -> None:
    assert counted(WAITING[kind]) == 1


@pytest.mark.parametrize("kind", FREE)
def test_what_does_not_wait_is_not(kind: str) -> None:
    assert counted(FREE[kind]) == 0


EVERYTHING: dict[str, Any] = {
    "training": {
        "epochs": 100,
        "batch_size": 1,
        "ema": {"mode": "train_device"},
        "loss": {"weighting": "min_snr"},
        "noise": {"offset_weight": 0.05, "distribution": "sigmoid"},
        "clip_grad_norm": 1.0,
        "accumulation_steps": 2,
    },
    "masks": {"enabled": True},
}
CASES: dict[str, dict[str, Any]] = {
    "LoRA and text encoders": {
        "training": {"precision": "bfloat16"},
        "parts": {n: {"train": True} for n in ("text_encoder", "text_encoder_2")},
    },
    "fine-tune": {
        "training": {"trains": "full", "precision": "float16", "low_precision_updates": "master"},
        "parts": {"unet": {"dtype": "float16"}},
    },
    "embedding": {
        "training": {"trains": "embedding", "learning_rate": 1e-3},
        "embeddings": {"words": [{"placeholder": "<zog>", "initial_text": "cat"}]},
    },
}
REST: dict[str, dict[str, Any]] = {
    "learned weights": {"training": {"loss": {"weighting": "none", "learned_weighting": True}}},
    "LoRA without caches": {"data": {"latent_cache": False, "text_cache": False}},
    "fused fine-tune": {
        "training": {
            "trains": "full",
            "accumulation_steps": 1,
            "clip_grad_norm": None,
            "optimizer": {"name": "adafactor", "fused_back_pass": True},
        }
    },
    "stochastic rounding": {
        "training": {"trains": "full", "precision": "bfloat16", "low_precision_updates": "stochastic"},
        "parts": {"unet": {"dtype": "bfloat16"}},
    },
    "checkpointing": {"parts": {"unet": {"checkpointing": "block"}}},
    "other noise": {"training": {"noise": {"pyramid_iterations": 3, "input_perturbation": 0.1}}},
    "LoKr": {"adapter": {"name": "lokr", "rank": 2}},
}


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(c, marks=pytest.mark.full) for c in REST)])
def test_a_step_reads_its_outcome_while_the_next_one_is_computed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    # It reads a value for each weight that has not been updated yet.
    monkeypatch.setattr(Watchdog, "before_update", lambda *arguments: None)
    monkeypatch.setattr(Watchdog, "is_watching", False)
    model: Path = request.getfixturevalue("tiny_sd" if case in ("fine-tune", "embedding") else "tiny_sdxl")
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a <zog>", "a disc"])
    changes = merged(EVERYTHING, (CASES | REST)[case])
    config = small_config(tmp_path, model=model, images=images, **{"adapter": {"name": "lora"}, **changes})
    assert waits_per_step(config, warmup_epochs=1, epochs=1) == {}


def test_an_optimizer_that_cannot_skip_on_the_device_waits_once(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watchdog, "before_update", lambda *arguments: None)
    monkeypatch.setattr(Watchdog, "is_watching", False)
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2)
    config = small_config(tmp_path, model=tiny_sd, images=images, training={"optimizer": {"name": "lion"}, "epochs": 9})
    waits = waits_per_step(config, warmup_epochs=1, epochs=1)
    assert list(waits.values()) == [1.0], waits
    assert "read in trainer/step/stepper.py" in next(iter(waits))


def merged(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested sections, with changes."""
    return {
        key: merged(tree.get(key, {}), changes.get(key, {}))
        if isinstance(changes.get(key, tree.get(key)), dict)
        else changes.get(key, tree.get(key))
        for key in tree | changes
    }
