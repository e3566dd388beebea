"""The autocast cache: with and without it the gradients are the same, checkpointed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.families.protocol import PartMemory
from modules.system.devices import CPU
from tests.builders.configs import small_config
from tests.builders.pipelines import load_tiny
from tests.training.test_checkpointing import conditioning_of
from trainer.run.machine import machine_of
from trainer.step.precision import Precision


@pytest.mark.parametrize("mode", ["off", "block", "whole"])
def test_gradients_are_the_same(tiny_sd: Path, mode: Any) -> None:
    family = load_tiny(tiny_sd)
    unet = family.parts["unet"].module
    unet.requires_grad_(True)
    noisy = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(7))

    def gradients(*, cache: bool, memory: PartMemory) -> torch.Tensor:
        family.set_memory({"unet": memory}, train_device=CPU, temp_device=CPU)
        unet.zero_grad()
        with Precision("bfloat16", CPU, autocast_cache=cache).autocast():
            assert torch.is_autocast_cache_enabled() is cache
            loss = (
                family.predict(noisy, torch.tensor([300]), conditioning_of(family, ["a cat"])).float().square().mean()
            )
        loss.backward()
        return torch.cat([p.grad.flatten() for p in unet.parameters() if p.grad is not None])

    plain = gradients(cache=True, memory=PartMemory())
    assert plain.abs().sum() > 0
    for cache in (True, False):
        assert torch.equal(gradients(cache=cache, memory=PartMemory(mode)), plain)


def test_the_setting_reaches_the_precision(tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tmp_path, images=tmp_path)
    assert machine_of(config.general, "bfloat16").precision.autocast_cache
    assert not machine_of(config.general, "bfloat16", autocast_cache=False).precision.autocast_cache
