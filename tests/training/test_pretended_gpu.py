"""Every step, sample and validation on a pretended GPU: what a GPU refuses is refused there, without a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.memory.placement import Placement
from modules.system import hardware
from modules.system.devices import CPU, Device
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pretended_gpu import pretended_gpu
from tests.builders.runs import run
from tests.training.test_devices import assert_all_went_well, watched_config
from trainer.run.freed_memory import freed_memory

CUDA: dict[str, Any] = {"general": {"train_device": "cuda", "temp_device": "cpu"}}


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("two-sizes"), sizes=[(64, 64), (64, 64), (96, 64)])


@pytest.mark.parametrize("form", ["kohya", "folder"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_run(any_model: Path, two_sizes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, is_cached: bool) -> None:
    config = watched_config(any_model, two_sizes, tmp_path, form=form, text_is_trained=not is_cached)
    changes = {**CUDA, "data": {"latent_cache": is_cached, "text_cache": is_cached}}
    changes["general"]["debug_checks"] = False
    monkeypatch.setattr(hardware, "here", lambda: hardware.Hardware("cu128", False, (8.6,)))
    with pretended_gpu():
        ran = run(laid_over(config, changes))
    assert_all_went_well(ran)


def test_a_freed_pause_empties_the_card() -> None:
    """Tensors on "cuda" are on "cuda:0", which is another `torch.device`."""
    with pretended_gpu():
        layer, card = torch.nn.Linear(2, 2), Device("cuda")
        placement = Placement(
            {"unet": layer}, train_device=card, temp_device=CPU, needed_in=lambda phase: frozenset({"unet"})
        )
        placement.enter("train")
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.ones(1, 2, device="cuda")).sum().backward()
        optimizer.step()
        averages = {"weight": torch.ones(2, 2, device="cuda")}
        stepper: Any = SimpleNamespace(optimizer=optimizer, ema=SimpleNamespace(averages=averages, device=card))
        held = [t for s in optimizer.state.values() for t in s.values() if t.dim()] + [*averages.values()]
        held += [*layer.parameters(), *(p.grad for p in layer.parameters() if p.grad is not None)]
        assert len(held) == 9
        assert {t.device.type for t in held} == {"cuda"}
        with freed_memory(placement, [], stepper, emit=lambda event: None, phase=lambda: None):
            assert {t.device.type for t in held} == {"cpu"}
        assert {t.device.type for t in held} == {"cuda"}
        placement.close()
