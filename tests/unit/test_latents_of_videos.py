"""Latents of videos, (B, C, F, H, W): noise, targets, losses and policy steps take them as those of images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.diffusion.flow import FlowProcess
from modules.diffusion.latents import PerChannel, Scale, ShiftAndScale
from modules.diffusion.process import DDPMProcess, NoiseProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.training_noise import NoiseSeed, NoiseSettings, training_noise
from modules.objectives.denoise import area_weights, sample_losses, weighted_by_area
from modules.objectives.loss_mix import LossMix
from modules.objectives.losses import LOSSES
from modules.sampling.ddim_step import DdimStep
from modules.sampling.flow_step import FlowStep
from modules.system.devices import CPU
from tests.unit.test_training_noise import KINDS

PROCESSES: dict[str, NoiseProcess] = {
    "epsilon": DDPMProcess(cumulative_alphas()),
    "v": DDPMProcess(cumulative_alphas(), "v_prediction"),
    "flow": FlowProcess(),
}
TIMESTEPS = torch.tensor([100, 900])
OF_IMAGES = torch.randn((3, 2, 4, 6, 8), generator=torch.Generator().manual_seed(3))
CLEAN, NOISE, OUTPUT = OF_IMAGES


def learned(process: NoiseProcess, loss: str, tensors: tuple[torch.Tensor, ...], masks: torch.Tensor) -> Any:
    """All that training computes of latents: the noisy ones, the clean ones of the output, and each sample's loss."""
    clean, noise, output = tensors
    noisy = process.add_noise(clean, noise, TIMESTEPS)
    errors = LossMix(((loss, LOSSES[loss].settings.with_defaults()),)).at(process, TIMESTEPS)
    weights = area_weights(masks, unmasked_weight=0.1, normalises=True)
    element_errors = weighted_by_area(errors(output, process.target(clean, noise, TIMESTEPS)), weights)
    return noisy, process.to_x0(noisy, output, TIMESTEPS), sample_losses(element_errors)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", PROCESSES)
def test_frames_are_learned_as_images_are(name: str, loss: str) -> None:
    """A video whose frames are an image gives that image in each frame, and its loss."""
    masks = (torch.arange(48.0).view(1, 1, 6, 8) / 47).expand(2, 1, 6, 8)
    of_images = learned(PROCESSES[name], loss, (CLEAN, NOISE, OUTPUT), masks)
    videos = tuple(tensor.unsqueeze(2).expand(2, 4, 5, 6, 8) for tensor in (CLEAN, NOISE, OUTPUT))
    noisy, clean, losses = learned(PROCESSES[name], loss, videos, masks.unsqueeze(2))
    assert noisy.shape == clean.shape == (2, 4, 5, 6, 8)
    for frame in range(5):
        torch.testing.assert_close(noisy[:, :, frame], of_images[0])
        torch.testing.assert_close(clean[:, :, frame], of_images[1])
    torch.testing.assert_close(losses, of_images[2])


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_one_frame_is_that_of_an_image(kind: str) -> None:
    process, settings, seed = PROCESSES["epsilon"], NoiseSettings(**KINDS[kind]), NoiseSeed(5, 1, 0, CPU)
    of_images = training_noise(settings, CLEAN, TIMESTEPS, process, seed)
    of_frames = training_noise(settings, CLEAN.unsqueeze(2), TIMESTEPS, process, seed)
    torch.testing.assert_close(of_frames.target_BCHW.squeeze(2), of_images.target_BCHW)
    torch.testing.assert_close(of_frames.input_BCHW.squeeze(2), of_images.input_BCHW)


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_a_video_differs_between_its_frames(kind: str) -> None:
    video = CLEAN.unsqueeze(2).expand(2, 4, 5, 6, 8)
    seed = NoiseSeed(5, 1, 0, CPU)
    noise = training_noise(NoiseSettings(**KINDS[kind]), video, TIMESTEPS, PROCESSES["epsilon"], seed)
    assert noise.input_BCHW.shape == video.shape
    assert not torch.allclose(noise.target_BCHW[:, :, 0], noise.target_BCHW[:, :, 1], atol=0.1)


@pytest.mark.parametrize("step", [DdimStep(500, 0.4, 0.5, "epsilon", 1.0), FlowStep(600.0, 0.6, 0.4, 0.7, "sde")])
def test_policies_see_one_action_in_a_video(step: Any) -> None:
    videos = [tensor.unsqueeze(2).expand(2, 4, 5, 6, 8) for tensor in (OUTPUT, CLEAN, NOISE)]
    mean, of_image = step.mean(videos[0], videos[1]), step.mean(OUTPUT, CLEAN)
    torch.testing.assert_close(mean[:, :, 3], of_image)
    torch.testing.assert_close(step.log_prob(videos[2], mean), step.log_prob(NOISE, of_image))


@pytest.mark.parametrize("norm", [Scale(0.4), ShiftAndScale(0.1, 0.3), PerChannel((0.1, 0.2, 0.3, 0.4), (1, 2, 3, 4))])
def test_normalisations_take_frames(norm: Any) -> None:
    video = CLEAN.unsqueeze(2).expand(2, 4, 5, 6, 8)
    torch.testing.assert_close(norm.normalize(video)[:, :, 2], norm.normalize(CLEAN))
    torch.testing.assert_close(norm.denormalize(norm.normalize(video)), video)
