"""Noise and timestep settings in runs: resume, validation, accumulation groups, pairs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.config.sections.noise import Noise
from modules.diffusion.noise import gaussian_like, generator_for
from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.timesteps.drawing import BatchPosition
from modules.families.sd.spec import SD
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import assert_equal_tensors, run
from trainer.commands import Command, Stop
from trainer.events import Event, StepFinished, ValidationFinished
from trainer.methods.dpo import LatentPairs, PairLoss, pair_losses
from trainer.methods.noising import Noising, noising_of

EVERYTHING: dict[str, Any] = {
    "offset_weight": 0.1,
    "generalized_offset": True,
    "offset_random_strength": True,
    "offset_adaptive_scale": 0.2,
    "perturbation_weight": 0.1,
    "input_perturbation": 0.1,
    "input_perturbation_random_strength": True,
    "pyramid_iterations": 4,
    "min_strength": 0.1,
    "max_strength": 0.9,
    "distribution": "logit_normal",
    "noising_bias": 0.5,
    "shift": 1.5,
    "dynamic_shift": True,
    "stratification": "antithetic",
}


@pytest.mark.full
def test_a_run_with_all_noise_settings_resumes_bit_for_bit_and_validates_as_without(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 3 + [(96, 64)] * 2)
    held_out = draw_folder(tmp_path / "held out", sizes=[(64, 64)])
    shared = small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        concepts=[{"path": str(images)}, {"path": str(held_out), "kind": "validation"}],
        training={"epochs": 2, "batch_size": 2, "accumulation_steps": 3},
        validation={"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 2},
    )
    drawn: list[tuple[BatchPosition, torch.Tensor]] = []
    plain_draw = Noising.draw

    def draw(self: Noising, clean: torch.Tensor, position: BatchPosition, context: Any) -> Any:
        found = plain_draw(self, clean, position, context)
        drawn.append((position, found[0]))
        return found

    monkeypatch.setattr(Noising, "draw", draw)
    config = laid_over(shared, {"training": {"noise": EVERYTHING}})
    straight = run(laid_over(config, {"general": {"workspace_dir": str(tmp_path / "straight")}}))
    groups: dict[int, dict[int, torch.Tensor]] = {}
    for position, timesteps in drawn[1:]:  # the first is the dry run's
        groups.setdefault(position.step, {})[position.micro_batch] = timesteps
        assert position.group_samples == 5
    assert len(groups) == 2
    assert all(sorted(len(t) for t in group.values()) == [1, 2, 2] for group in groups.values())
    assert all(100 <= int(t.min()) <= int(t.max()) < 900 for group in groups.values() for t in group.values())

    stopping = laid_over(config, {"general": {"workspace_dir": str(tmp_path / "stopped")}})

    def stop(event: Event, send: Any) -> None:
        if isinstance(event, StepFinished) and event.step == 1:
            command: Command = Stop()
            send(command)

    stopped = run(stopping, on_event=stop)
    assert stopped.finished.step == 1
    resumed = run(stopping, resume_from=Path(stopped.finished.backup_path))
    assert_equal_tensors(straight.weights, resumed.weights)
    without = run(laid_over(shared, {"general": {"workspace_dir": str(tmp_path / "plain")}}))
    before, after = (ran.of(ValidationFinished)[0] for ran in (without, straight))
    assert (before.step, before.loss, before.by_timestep) == (0, after.loss, after.by_timestep)
    assert straight.of(StepFinished)[0].loss != without.of(StepFinished)[0].loss


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_setting_reaches_the_draws(name: str) -> None:
    assert set(EVERYTHING) | {"noising_weight", "pyramid_discount"} == set(Noise.model_fields)
    assert noising_of(Noise(**{name: EVERYTHING[name]})) != noising_of(Noise()) == Noising()


class _Recording:
    """A family that records the noisy latents and predicts nothing; its conditioning is itself."""

    spec = SD
    process = DDPMProcess(cumulative_alphas())

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def select(self, indices: object) -> _Recording:
        return self

    def predict(self, noisy: torch.Tensor, timesteps: torch.Tensor, conditioning: object) -> torch.Tensor:
        self.seen.append((noisy, timesteps))
        return torch.zeros_like(noisy)


def test_both_images_of_a_pair_share_the_timestep_and_the_noise_of_the_settings() -> None:
    generator = torch.Generator().manual_seed(3)
    chosen, rejected = (torch.randn(2, 4, 8, 8, generator=generator) for _ in range(2))
    family: Any = _Recording()
    noising = noising_of(Noise(**EVERYTHING))
    context: Any = SimpleNamespace(family=family, run_seed=5, device=CPU)
    position = BatchPosition(3, 1, 2, group_start=2, group_samples=6)
    pair_losses(
        LatentPairs(chosen, rejected, lambda: family, position),
        context,
        pair_loss=PairLoss(),
        noising=noising,
        reference=nullcontext,
    )
    [(noisy, timesteps), again] = family.seen
    assert torch.equal(noisy, again[0])
    assert torch.equal(timesteps[:2], timesteps[2:])
    expected_timesteps, noise = noising.draw(chosen, position, context)
    assert torch.equal(timesteps[:2], expected_timesteps)
    for clean, half in ((chosen, noisy[:2]), (rejected, noisy[2:])):
        assert torch.equal(half, family.process.add_noise(clean, noise.input_BCHW, timesteps[:2]))
    plain = gaussian_like(chosen, generator_for(5, "noise", 3, 1), CPU)
    assert not torch.equal(noise.target_BCHW, plain)
