"""Online DPO on pairs of denoising steps (SPO): the first loss, what branches, the closed form, resuming."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.objectives.preference import step_margins
from modules.rewards import measures
from modules.sampling.branching import branch_out
from modules.sampling.rollout import RolloutSettings, ddim_steps_of, roll_out
from modules.system.devices import CPU
from tests.builders.matrix import matrix
from tests.builders.runs import Ran, assert_equal_tensors, assert_resumed, run, stop_at, weights_of
from tests.builders.runs import steps_of as run_steps_of
from tests.training.test_checkpointing import trained as trained_family
from tests.training.test_online_dpo import (
    HARD,
    batches,
    config_of,
    families,
    hard_images,
    laid_over_training,
    two_images,
)
from trainer.events import RunFailed, StepFinished, WarningRaised
from trainer.methods.online_dpo import PairBatch
from trainer.rollout_events import RolloutSampled

__all__ = ["batches", "families", "hard_images", "two_images"]  # fixtures

STEPS: dict[str, Any] = {"pairs": "steps", "steps": 5, "candidates": 3, "timestep_share": 1.0}


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "trains", "reference", "precision"),
    matrix(
        ["tiny_sd", "tiny_sd2", "tiny_sdxl", "tiny_sdxl_v"],
        ["adapter", "full"],
        ["original", "refreshed"],
        ["float32", "bfloat16"],
    ),
)
def test_the_first_loss_is_ln_2_and_exactly_the_trained_weights_move(
    request: pytest.FixtureRequest,
    two_images: Path,
    tmp_path: Path,
    families: list[Any],
    model: str,
    trains: str,
    reference: str,
    precision: str,
) -> None:
    # A fine-tune of a random model would leave the clip range at once.
    changes = {
        "training": {"trains": trains, "precision": precision, "learning_rate": {"full": 3e-6}.get(trains, 1e-3)}
    }
    folder = request.getfixturevalue(model)
    ran = run(config_of(tmp_path, folder, two_images, changes, reference=reference, **STEPS))
    steps = ran.of(StepFinished)
    assert len(steps) == 4, ran.ending
    assert steps[0].loss == pytest.approx(math.log(2), abs=1e-6)
    assert (steps[0].metrics["margin"], steps[0].metrics["implicit_accuracy"]) == (0.0, 0.5)
    assert all(step.metrics["margin"] != 0 and step.gradient_norm for step in steps[1:])
    assert not ran.of(WarningRaised)
    [(family, before)] = families
    moved = {name for name, value in weights_of(family).items() if not torch.equal(value, before[name])}
    expected = {n for n in before if n.startswith("unet.")}
    assert moved == ({n for n in expected if "lora_" in n} if trains == "adapter" else expected)


@pytest.mark.full  # every day: test_preference_matrix
def test_gradients_are_equal_to_the_bit_whatever_is_checkpointed(
    tiny_sdxl: Path, two_images: Path, tmp_path: Path
) -> None:
    ran: list[Ran] = []
    for mode in ("off", "block", "whole"):
        changes = {"parts": {"unet": {"checkpointing": mode}}, "training": {"epochs": 1, "learning_rate": 3e-3}}
        ran.append(run(config_of(tmp_path / mode, tiny_sdxl, two_images, changes, **STEPS)))
    assert len({str(run_steps_of(r)) for r in ran}) == 1
    for other in ran[1:]:
        assert_equal_tensors(ran[0].weights, other.weights)


@pytest.mark.full
def test_each_compared_step_has_a_pair_of_each_prompt(
    tiny_sd: Path, hard_images: Path, tmp_path: Path, batches: list[PairBatch]
) -> None:
    """Of the timesteps 801, 601, 401, 201 and 1 the first is too noisy, and the last has no successor."""
    changes = {"training": {"epochs": 1, "accumulation_steps": 2}}
    ran = run(config_of(tmp_path, tiny_sd, hard_images, changes, **STEPS))
    first = [b for b in batches if b.step == 0]
    assert [(len(b.prompts.captions), b.denoising_step) for b in first] == [(2, n) for n in (1, 2, 3)] * 2
    assert {b.latents_BNCHW.shape[1] for b in batches} == {3}
    assert {b.group_samples for b in first} == {12}
    assert [b.is_last_micro_batch for b in first] == [False] * 5 + [True]
    for batch in first:
        before, chosen, rejected = batch.latents_BNCHW.unbind(1)
        assert not torch.equal(chosen, rejected)
        assert not torch.equal(before, chosen)
    metrics = ran.of(StepFinished)[0].metrics
    rewards = {"reward", "reward/brightness", "reward_std", "equal_rewards"}
    assert set(metrics) == rewards | {"margin", "implicit_accuracy", "clip_fraction"}
    assert [len(event.images) for event in ran.of(RolloutSampled)] == [4, 1]


def test_the_best_and_the_worst_candidate_are_the_pair(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[PairBatch]
) -> None:
    """The second candidate of every step is the best, the first the worst: each candidate is scored in turn."""
    calls: list[int] = []

    def score(images_B3PP: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        number = len(calls) - 1 - 3  # without the dry run's two candidates and its image
        return torch.full((len(images_B3PP),), {0: 0.1, 1: 0.9, 2: 0.5}[number % 3])

    monkeypatch.setattr(measures, "brightness", score)
    seen: list[torch.Tensor] = []
    plain = branch_out

    def branched(*arguments: Any, **options: Any) -> Any:
        branches, images_B3PP = plain(*arguments, **options)
        seen.extend(branches[number].candidates_KBCHW for number in sorted(branches))
        return branches, images_B3PP

    monkeypatch.setattr("trainer.methods.step_pairs.branch_out", branched)
    run(config_of(tmp_path, tiny_sd, two_images, {"training": {"epochs": 1}}, **STEPS))
    in_run, first = seen[1:], [b for b in batches if b.step == 0]
    for candidates_KBCHW, batch in zip(in_run, first, strict=True):
        assert torch.equal(batch.latents_BNCHW[:, 1], candidates_KBCHW[1])
        assert torch.equal(batch.latents_BNCHW[:, 2], candidates_KBCHW[0])


def test_equal_rewards_train_nothing(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "brightness", lambda images: torch.full((len(images),), 0.3))
    ran = run(config_of(tmp_path, tiny_sd, two_images, **STEPS))
    assert all(s.metrics["equal_rewards"] == 1.0 and s.gradient_norm == 0.0 for s in ran.of(StepFinished))
    [warning] = ran.of(WarningRaised)
    assert "nothing is learned" in warning.message


def test_without_a_step_that_can_be_compared_the_run_is_refused(
    tiny_sd: Path, two_images: Path, tmp_path: Path
) -> None:
    ending = run(config_of(tmp_path, tiny_sd, two_images, **{**STEPS, "max_timestep": 100})).ending
    assert isinstance(ending, RunFailed)
    assert ending.message.startswith("No denoising step can be compared")


@pytest.mark.full
def test_a_model_outside_of_the_clip_range_is_not_trained_further(
    tiny_sd: Path, two_images: Path, tmp_path: Path
) -> None:
    changes = {"training": {"trains": "full", "learning_rate": 1e-3}}
    first, *rest = run(config_of(tmp_path, tiny_sd, two_images, changes, **STEPS)).of(StepFinished)
    assert first.metrics["clip_fraction"] == 0.0
    assert rest[-1].metrics["clip_fraction"] > 0.2


# ---- branching, and the closed form


def test_branches_are_candidates_of_the_same_step_and_one_of_them_is_continued(tiny_sd: Path) -> None:
    """A rollout that does not branch is that of `roll_out`; a candidate leads to the next latents that branch."""
    family, _ = trained_family(tiny_sd, "full")
    with torch.no_grad():
        conditioning = family.encode_prompts(["a disc", "a cat"])
    settings = RolloutSettings(num_steps=4, eta=1.0)
    images: list[tuple[int, torch.Size]] = []

    def branched(branching: tuple[int, ...]) -> Any:
        return branch_out(
            family,
            conditioning,
            None,
            seeds=[5, 6],
            size=Size(64, 64),
            settings=settings,
            branching=branching,
            num_candidates=3,
            device=CPU,
            temp_device=CPU,
            on_step=lambda: None,
            on_candidate=lambda step, images_B3PP: images.append((step, images_B3PP.shape)),
        )

    rollout = roll_out(
        family,
        conditioning,
        None,
        seeds=[5, 6],
        size=Size(64, 64),
        settings=settings,
        gradient_steps=0,
        device=CPU,
        temp_device=CPU,
        on_step=lambda: None,
        stored_states=(0, 1),
    )
    none, images_B3PP = branched(())
    assert none == {}
    assert torch.equal(images_B3PP, rollout.images_B3PP)
    branches, images_B3PP = branched((1, 2))
    assert images == [(1, (2, 3, 64, 64))] * 3 + [(2, (2, 3, 64, 64))] * 3
    assert torch.equal(branches[1].before_BCHW, rollout.states_BCHW[1])
    for row in range(2):
        continued = [torch.equal(branches[2].before_BCHW[row], c[row]) for c in branches[1].candidates_KBCHW]
        assert sum(continued) == 1
    assert not torch.equal(images_B3PP, rollout.images_B3PP)
    spread = branches[1].candidates_KBCHW.std(dim=0).mean().item()
    assert spread == pytest.approx(ddim_steps_of(family, settings)[1].sigma * 0.886, rel=0.2)  # of three normal numbers


def test_margins_of_steps_and_their_clipping() -> None:
    chosen_B = torch.tensor([0.0, 0.05, 0.5, -0.5], requires_grad=True)
    rejected_B = torch.tensor([0.0, -0.02, 0.0, 0.0])
    margins_B = step_margins(chosen_B, rejected_B, beta=10.0, ratio_clip=0.1)
    expected = [0.0, 0.7, 10 * math.log(1.1), 10 * math.log(0.9)]
    assert margins_B.tolist() == pytest.approx(expected, abs=1e-6)
    margins_B.sum().backward()
    assert chosen_B.grad is not None
    assert chosen_B.grad.tolist() == [10.0, 10.0, 0.0, 0.0]
    swapped_B = step_margins(rejected_B, chosen_B.detach(), beta=10.0, ratio_clip=0.1)
    assert torch.allclose(swapped_B, -margins_B)


# ---- resuming


@pytest.mark.full
def test_a_stopped_run_resumes_bit_equal(tiny_sd: Path, hard_images: Path, tmp_path: Path) -> None:
    """Within the second rollout, with a refreshed reference."""
    method = {**STEPS, "reference": "refreshed", "refresh_every": 3, "timestep_share": 0.5, "pairs_per_update": 3}

    def config(folder: str) -> Config:
        return config_of(tmp_path / folder, tiny_sd, hard_images, laid_over_training(HARD), **method)

    straight = run(config("straight"))
    assert straight.finished.step == 4

    killed = config("killed")
    first = run(killed, on_event=stop_at(3))
    assert_resumed(straight, first, run(killed, resume_from=Path(first.finished.backup_path)))
