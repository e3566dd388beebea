"""Qwen-Image's autoencoder on images against diffusers' on videos of one frame, and its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from safetensors.torch import save_file

from modules.diffusion.latents import PerChannel
from modules.families.parts.circular_padding import pad_circularly
from modules.families.parts.forwards import block_types, transformer_types
from modules.families.parts.frame_vae import AutoencoderKLQwenImage as FrameVae
from modules.families.parts.frame_vae import vae_slots
from modules.families.parts.part_classes import QWEN_IMAGE_VAE
from modules.families.parts.single_file.checkpoint import empty_part, load_vae_file
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.vae import norm_of
from modules.formats.lazy_tensors import lazy_state
from modules.memory.checkpointing import create_checkpointed_forward
from modules.system.devices import CPU
from tests.builders.qwen_vae import tiny_qwen_vae

IMAGES = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)


@pytest.fixture(scope="module")
def theirs() -> AutoencoderKLQwenImage:
    return tiny_qwen_vae()


@pytest.fixture(scope="module")
def ours(theirs: AutoencoderKLQwenImage) -> FrameVae:
    return same(theirs)


def same(theirs: AutoencoderKLQwenImage) -> FrameVae:
    vae: FrameVae = FrameVae.from_config(theirs.config)
    vae.load_state_dict(theirs.state_dict())
    return vae.eval()


def test_an_image_is_a_video_of_one_frame(theirs: AutoencoderKLQwenImage, ours: FrameVae) -> None:
    with torch.no_grad():
        expected = theirs.encode(IMAGES.unsqueeze(2)).latent_dist
        distribution = ours.encode(IMAGES).latent_dist
        torch.testing.assert_close(distribution.mean, expected.mean.squeeze(2))
        torch.testing.assert_close(distribution.logvar, expected.logvar.squeeze(2))
        torch.testing.assert_close(
            ours.decode(distribution.mean).sample, theirs.decode(expected.mean).sample.squeeze(2)
        )


def test_the_normalisation_is_that_of_the_config_by_channel(ours: FrameVae) -> None:
    """As `QwenImagePipeline` and its training scripts have it."""
    config = ours.config
    assert norm_of(ours) == PerChannel(tuple(config.latents_mean), tuple(config.latents_std))


@pytest.mark.parametrize("mode", ["block", "whole", "transformer"])
def test_checkpointing_changes_no_gradient(theirs: AutoencoderKLQwenImage, mode: str) -> None:
    """Blocks with a memory of earlier frames would compute something else the second time."""
    gradients = []
    for checkpointing in ("off", mode):
        vae = same(theirs)
        decode = create_checkpointed_forward(
            vae,
            train_device=CPU,
            temp_device=CPU,
            mode=checkpointing,  # type: ignore[arg-type]
            block_types=block_types(QWEN_IMAGE_VAE),
            transformer_types=transformer_types(QWEN_IMAGE_VAE),
            entry="decode",
        )
        latents = torch.randn(1, 16, 4, 4, generator=torch.Generator().manual_seed(2), requires_grad=True)
        decode(latents).sample.square().mean().backward()
        assert latents.grad is not None
        gradients.append(latents.grad)
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_the_original_names_are_those_that_diffusers_reads() -> None:
    slots = vae_slots({})
    converted = convert_wan_vae_to_diffusers({slot.original: slot.key for slot in slots})
    assert {name: name for name in converted} == converted
    assert converted.keys() == empty_part(FrameVae, {}).state_dict().keys()


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_a_file_of_it_is_read(theirs: AutoencoderKLQwenImage, layout: str, tmp_path: Path) -> None:
    file, config, state = tmp_path / "vae.safetensors", dict(theirs.config), theirs.state_dict()
    original = {name: tensor.make() for name, tensor in to_original(vae_slots(config), lazy_state(dict(state))).items()}
    save_file(original if layout == "original" else state, file)
    read = load_vae_file(file, QWEN_IMAGE_VAE, config, torch.float32)
    torch.testing.assert_close(dict(read.state_dict()), dict(state), rtol=0, atol=0)


def test_circular_padding_sees_the_opposite_edge(theirs: AutoencoderKLQwenImage) -> None:
    vae = same(theirs)
    pad_circularly(vae)
    latents = torch.randn(1, 16, 4, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for run, given, by, to in ((vae.decode, latents, 1, 8), (vae.encode, IMAGES[:, :, :, :32], 8, 1)):
            plain, rolled = run(given)[0], run(given.roll((by, -by), (2, 3)))[0]
            plain, rolled = (x if isinstance(x, torch.Tensor) else x.mean for x in (plain, rolled))
            torch.testing.assert_close(rolled, plain.roll((to, -to), (2, 3)), rtol=1e-4, atol=1e-5)
