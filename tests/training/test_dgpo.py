"""DGPO: groups that are spread over micro-batches count as wholes, with the same noise for all of their images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from tests.builders.configs import laid_over
from tests.builders.preference import draw_both, preference_config
from tests.builders.runs import assert_equal_tensors, run, steps_of, stop_at
from trainer.events import StepFinished
from trainer.methods import dgpo
from trainer.methods.forward_policy import ForwardPolicy, NoisedChunk
from trainer.methods.policy_batches import PolicyBatch
from trainer.methods.protocol import StepContext

pytestmark = pytest.mark.usefixtures("one_thread")

METHOD = {"reference": "sampling", "beta": 1e4, "clip_range": 0.5, "group_size": 3, "guidance": 1.0, "kl_weight": 0.0}


def test_the_images_of_a_group_share_their_noise_and_their_margin(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The margin is that of the errors which the passes with a gradient compute."""
    seen: dict[tuple[int, int, int], list[tuple[NoisedChunk, torch.Tensor, dgpo.KnownPass]]] = {}
    plain = dgpo.GroupPreference.losses

    def losses(self: Any, policy: ForwardPolicy, noised: NoisedChunk, known: Any, metrics: Any) -> Any:
        found = plain(self, policy, noised, known, metrics)
        if not policy.is_trial:
            batch = noised.batch
            errors = dgpo.matching_errors(found[2].detach(), noised.target_BCHW)
            place = (batch.step, batch.chunk.micro_batch, batch.number)
            seen.setdefault(place, []).append((noised, errors, known[batch.micro_batch]))
        return found

    monkeypatch.setattr(dgpo.GroupPreference, "losses", losses)
    drawn = draw_both(tmp_path / "drawn")
    config = preference_config(tmp_path / "run", model=tiny_sd, drawn=drawn, method="dgpo")
    parts = {"text_encoder": {"train": False}}
    ran = run(laid_over(config, {"training": {"method": METHOD, "learning_rate": 3e-3}, "parts": parts}))
    assert ran.finished.outcome == "finished"
    assert len(seen) == 8  # two rollouts of two steps with two timesteps each
    for (step, _, _), passes in seen.items():
        assert len(passes) == 3  # an image of each prompt
        first, process = passes[0][0], passes[0][0].context.family.process
        noise = process.add_noise(torch.zeros_like(first.clean_BCHW), first.target_BCHW, first.timesteps_B)
        for noised, _, _ in passes:
            assert torch.equal(noised.timesteps_B, first.timesteps_B)
            signal = process.add_noise(noised.clean_BCHW, torch.zeros_like(noise), noised.timesteps_B)
            torch.testing.assert_close(noised.noisy_BCHW - signal, noise, atol=1e-5, rtol=1e-4)
        changes = [n.advantages_B * (errors - known.old_errors_B) for n, errors, known in passes]
        margins = -1e4 * torch.stack(changes).mean(0)
        assert bool(margins.any()) == (step > 0), "the first step begins with equal models"
        for _, _, known in passes:
            torch.testing.assert_close(known.margins_B, margins, atol=1e-2, rtol=1e-2)
    assert ran.of(StepFinished)[0].metrics["margin"] == 0.0
    assert ran.of(StepFinished)[1].metrics["margin"] != 0.0


def test_a_run_resumed_within_a_rollout_predicts_for_the_steps_that_are_left_alone(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeated the passes of all models for the finished steps of the rollout."""
    prepared: list[int] = []
    plain = dgpo.GroupPreference.before_step

    def before_step(self: Any, policy: ForwardPolicy, batches: Sequence[PolicyBatch], context: StepContext) -> Any:
        if not policy.is_trial:
            prepared.append(batches[0].step)
        return plain(self, policy, batches, context)

    monkeypatch.setattr(dgpo.GroupPreference, "before_step", before_step)
    drawn, parts = draw_both(tmp_path / "drawn"), {"text_encoder": {"train": False}}

    def config(name: str) -> Config:
        made = preference_config(tmp_path / name, model=tiny_sd, drawn=drawn, method="dgpo")
        return laid_over(made, {"training": {"method": METHOD, "learning_rate": 3e-3}, "parts": parts})

    whole = run(config("whole"))
    assert prepared == [0, 1, 2, 3]
    run(config("parts"), on_event=stop_at(1))
    prepared.clear()
    resumed = run(config("parts"), resume_from=tmp_path / "parts" / "workspace")
    assert prepared == [1, 2, 3]
    assert steps_of(resumed) == steps_of(whole)[1:]
    assert_equal_tensors(resumed.weights, whole.weights)
