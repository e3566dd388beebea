"""Direct-Align (SRPO): the recovered image, its gradient, the control words, and runs of AlignProp with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.rules import problems_of
from modules.diffusion.flow import FlowProcess
from modules.rewards.composite import CompositeReward, RewardModel
from modules.sampling.ddim_step import DdimStep
from modules.sampling.direct_align import steps_between
from modules.sampling.flow_step import FlowStep
from modules.sampling.gaussian_step import GaussianStep
from tests.builders.configs import laid_over
from tests.builders.preference import draw_both, preference_config
from tests.builders.runs import assert_equal_tensors, run, steps_of, stop_at
from trainer.events import RunFailed, StepFinished
from trainer.methods.alignprop import ControlWords

pytestmark = pytest.mark.usefixtures("one_thread")

DIRECT: dict[str, Any] = {"gradient_truncation": "direct", "steps": 4, "min_timestep": 1}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_both(tmp_path_factory.mktemp("drawn"))


def noised(step: GaussianStep, clean: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    if isinstance(step, FlowStep):
        return FlowProcess().add_noise(clean, noise, torch.full((len(clean),), step.timestep))
    assert isinstance(step, DdimStep)
    return math.sqrt(step.abar) * clean + math.sqrt(1 - step.abar) * noise


@pytest.mark.parametrize(
    "step", [FlowStep(900.0, 0.9, 0.7), FlowStep(100.0, 0.1, 0.0), DdimStep(700, 0.2, 0.4, "epsilon")]
)
def test_the_true_prediction_recovers_the_image_and_an_error_counts_by_the_step(step: GaussianStep) -> None:
    """SRPO, section 3.1, in float64: an error of the output moves the image by the length of the step alone."""
    generator = torch.Generator().manual_seed(1)
    clean, noise, error = (torch.randn((2, 3, 4, 4), generator=generator) for _ in range(3))
    true = noise if isinstance(step, DdimStep) else noise - clean
    noisy = noised(step, clean, noise)
    torch.testing.assert_close(step.clean_before(step.mean(true, noisy), noise), clean, rtol=1e-4, atol=1e-5)
    moved = step.clean_before(step.mean(true + error, noisy), noise).double() - clean.double()
    if isinstance(step, FlowStep):
        by_hand = -error.double() * (step.level - step.level_next) / (1 - step.level_next)
    else:
        assert isinstance(step, DdimStep)
        a, p = step.abar, step.abar_next
        by_hand = error.double() * (math.sqrt(1 - p) / math.sqrt(p) - math.sqrt(1 - a) / math.sqrt(a))
    torch.testing.assert_close(moved, by_hand, rtol=1e-3, atol=1e-5)


def test_the_steps_of_a_range() -> None:
    steps = [FlowStep(1000 * s, s, s - 0.25) for s in (1.0, 0.75, 0.5, 0.25)]
    assert steps_between(steps, lowest=300, highest=990) == (1, 2)
    assert steps_between(steps, lowest=1, highest=10) == ()


def test_control_words_are_a_difference() -> None:
    seen: list[list[str]] = []

    def score(images_B3PP: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        seen.append(list(prompts))
        return images_B3PP.mean(dim=(1, 2, 3)) * torch.tensor([float(len(p)) for p in prompts])

    reward: Any = CompositeReward((RewardModel("length", score, 2.0),))  # type: ignore[arg-type]
    images = torch.full((1, 3, 2, 2), 0.5, requires_grad=True)
    plain = ControlWords().scores(reward, images, ["cat"])
    assert plain.total_B.tolist() == [3.0]
    both = ControlWords("Photo", " CG ").scores(reward, images, ["cat"])
    assert seen == [["cat"], ["Photo. cat"], ["CG. cat"]]
    assert both.total_B.tolist() == pytest.approx([2 * 0.5 * (10 - 7)])
    assert both.by_name["length"].tolist() == pytest.approx([0.5 * 3])
    [gradient] = torch.autograd.grad(both.total_B.sum(), [images])
    assert gradient.sum().item() == pytest.approx(2 * 3)
    assert ControlWords(negative="CG").scores(reward, images, ["cat"]).total_B.tolist() == pytest.approx([-4.0])


@pytest.mark.daily(2)
@pytest.mark.parametrize("model", ["tiny_z_image", "tiny_sd"])
def test_a_run_raises_the_reward_with_one_prediction_a_step_and_resumes(
    request: pytest.FixtureRequest, drawn: Path, tmp_path: Path, model: str
) -> None:
    def config_in(folder: Path) -> Any:
        config = preference_config(folder, model=request.getfixturevalue(model), drawn=drawn, method="alignprop")
        return laid_over(config, {"training": {"method": DIRECT, "epochs": 4, "learning_rate": 3e-3}})

    straight = run(config_in(tmp_path / "straight"))
    rewards = [step.metrics["reward"] for step in straight.of(StepFinished)]
    assert rewards[-1] > rewards[0]
    config = config_in(tmp_path / "stopped")
    first = run(config, on_event=stop_at(2))
    second = run(config, resume_from=Path(first.finished.backup_path))
    assert steps_of(first) + steps_of(second) == steps_of(straight)
    assert_equal_tensors(straight.weights, second.weights)


def test_own_images_are_noised_and_none_is_sampled(
    tiny_sd: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same images, timesteps and noises get higher rewards than from a model that stays as it is."""
    monkeypatch.setattr("trainer.methods.alignprop.roll_out", None)
    method = {**DIRECT, "clean_images": "own"}

    def rewards(folder: str, rate: float) -> list[float]:
        config = preference_config(tmp_path / folder, model=tiny_sd, drawn=drawn, method="alignprop")
        ran = run(laid_over(config, {"training": {"method": method, "epochs": 4, "learning_rate": rate}}))
        return [step.metrics["reward"] for step in ran.of(StepFinished)]

    first, *trained = rewards("trained", 3e-3)
    first_as_well, *same = rewards("same", 1e-12)
    assert first == first_as_well
    assert sum(trained) > sum(same)


def test_the_image_of_the_rollout_is_not_decoded(
    tiny_sd: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that of the single step is: the rollout's was thrown away."""

    def decode(*_: Any, **__: Any) -> None:
        raise AssertionError("the rollout decodes")

    monkeypatch.setattr("modules.sampling.rollout.decode_images", decode)
    config = preference_config(tmp_path, model=tiny_sd, drawn=drawn, method="alignprop")
    config = laid_over(config, {"training": {"method": DIRECT, "epochs": 1}})
    assert run(config).finished.outcome == "finished"


def test_a_noise_that_is_not_the_known_one_is_seen(
    tiny_z_image: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the image is recovered with other noise than it was noised with, so it is far from the sampled one."""
    config = preference_config(tmp_path, model=tiny_z_image, drawn=drawn, method="alignprop")
    config = laid_over(config, {"training": {"method": {**DIRECT, "min_timestep": 600}, "epochs": 1}})
    plain = run(config).of(StepFinished)[0].metrics["reward"]
    step = FlowStep.clean_before
    monkeypatch.setattr(FlowStep, "clean_before", lambda self, following, noise: step(self, following, -noise))
    assert abs(run(config).of(StepFinished)[0].metrics["reward"] - plain) > 1e-4


def test_ranges_without_a_step_are_refused(tiny_sd: Path, drawn: Path, tmp_path: Path) -> None:
    config = preference_config(tmp_path, model=tiny_sd, drawn=drawn, method="alignprop")

    def with_range(lowest: int, highest: int) -> Any:
        method = {**DIRECT, "min_timestep": lowest, "max_timestep": highest}
        return laid_over(config, {"training": {"method": method}})

    assert "training.method.min_timestep" in {p.path for p in problems_of(with_range(500, 400))}
    ending = run(with_range(997, 998)).ending
    assert isinstance(ending, RunFailed)
    assert "No denoising step is between the timesteps" in ending.message
