"""Automatic checkpointing: as few blocks as fit, the same result bit for bit, and the same blocks after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D

from modules.memory.checkpointing import create_checkpointed_forward
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny
from tests.builders.runs import run
from trainer.events import StepFinished
from trainer.run import automatic_choices


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The free memory that runs find."""
    free = [0]
    monkeypatch.setattr(automatic_choices, "_free_bytes", lambda machine: free[0])
    return free


def test_only_the_chosen_blocks_are_checkpointed(tiny_sd: Path) -> None:
    unet = load_tiny(tiny_sd).parts["unet"].module
    kinds = (ResnetBlock2D, BasicTransformerBlock)
    chosen = [n for n, m in unet.named_modules() if isinstance(m, kinds)][::2]
    create_checkpointed_forward(
        unet, train_device=CPU, temp_device=CPU, mode="auto", block_types=kinds, chosen_blocks=chosen
    )
    assert [n for n, m in unet.named_modules() if "forward" in m.__dict__] == chosen


def chosen_in(folder: Path) -> dict[str, list[str]]:
    [path] = folder.rglob(automatic_choices._CHECKPOINTING_FILE)
    found: dict[str, list[str]] = json.loads(path.read_text())
    return found


def test_a_run_computes_what_fits_and_resumes_with_the_same_blocks(
    tiny_sd: Path, images: Path, tmp_path: Path, free_bytes: list[int]
) -> None:
    base = laid_over(
        small_config(tmp_path / "off", model=tiny_sd, images=images),
        {"parts": {"text_encoder": {"train": False}}, "training": {"epochs": 1}},
    )
    plain = run(base)
    auto = laid_over(
        base,
        {"general": {"workspace_dir": str(tmp_path / "auto")}, "parts": {"unet": {"checkpointing": "auto"}}},
    )
    first = run(auto)
    everything = chosen_in(tmp_path / "auto")["unet"]
    assert everything
    assert [s.loss for s in first.of(StepFinished)] == [s.loss for s in plain.of(StepFinished)]
    assert all(torch.equal(w, plain.weights[n]) for n, w in first.weights.items())
    free_bytes[0] = 1 << 40
    run(laid_over(auto, {"training": {"epochs": 2}}), resume_from=Path(first.finished.backup_path))
    assert chosen_in(tmp_path / "auto")["unet"] == everything
