"""Normalisations of latents against diffusers' formulas, and back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from diffusers import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_kl_flux2 import AutoencoderKLFlux2
from diffusers.pipelines.flux2.pipeline_flux2 import Flux2Pipeline

from modules.diffusion.latents import LatentNorm, PatchNorm, PerChannel, Scale, ShiftAndScale
from modules.families.parts.vae import decode_latents, encode_mean, encode_posterior, norm_of
from modules.families.protocol import Posterior

MEANS, DEVIATIONS = (0.5, -1.0, 0.25, 2.0), (1.5, 0.5, 2.0, 0.75)
NORMS = (
    Scale(0.18215),
    ShiftAndScale(0.1159, 0.3611),
    PerChannel(MEANS, DEVIATIONS, 0.5),
    PatchNorm(4 * MEANS, 4 * DEVIATIONS),
)
TINY = {"block_out_channels": (8, 8), "norm_num_groups": 4, "latent_channels": 4}
TWO_BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}


def encoded(*, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("norm", NORMS, ids=lambda n: type(n).__name__)
def test_what_is_normalised_comes_back(norm: LatentNorm) -> None:
    torch.testing.assert_close(norm.denormalize(norm.normalize(encoded())), encoded())


def test_each_identity_is_its_own() -> None:
    others = (Scale(0.13025), ShiftAndScale(0.1159, 0.5), PerChannel(MEANS, DEVIATIONS), PatchNorm(MEANS, DEVIATIONS))
    assert len({norm.identity for norm in NORMS + others}) == len(NORMS + others)


def test_the_key_of_sds_cached_latents_stays() -> None:
    assert Scale(0.18215).identity == "*0.18215"


def test_one_shift_is_that_of_fluxs_pipeline() -> None:
    vae = AutoencoderKL(**TINY, **TWO_BLOCKS, shift_factor=0.1159, scaling_factor=0.3611)
    assert norm_of(vae) == ShiftAndScale(0.1159, 0.3611)
    assert torch.equal(norm_of(vae).normalize(encoded()), (encoded() - 0.1159) * 0.3611)
    assert torch.equal(norm_of(vae).denormalize(encoded()), encoded() / 0.3611 + 0.1159)


def test_channels_are_those_of_qwen_images_pipeline() -> None:
    vae = SimpleNamespace(config=SimpleNamespace(latents_mean=list(MEANS), latents_std=list(DEVIATIONS)))
    mean = torch.tensor(MEANS).view(1, 4, 1, 1)
    inverse = 1.0 / torch.tensor(DEVIATIONS).view(1, 4, 1, 1)
    torch.testing.assert_close(norm_of(vae).normalize(encoded()), (encoded() - mean) * inverse)
    torch.testing.assert_close(norm_of(vae).denormalize(encoded()), encoded() / inverse + mean)


def test_patches_are_those_of_flux2s_pipeline() -> None:
    vae = AutoencoderKLFlux2(**TINY, **TWO_BLOCKS)
    values = torch.linspace(-1, 1, 16)
    vae.bn.running_mean.copy_(values)
    vae.bn.running_var.copy_(values.abs() + 0.1)
    theirs = Flux2Pipeline._patchify_latents(encoded())
    deviations = torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps).view(1, -1, 1, 1)
    theirs = Flux2Pipeline._unpatchify_latents((theirs - vae.bn.running_mean.view(1, -1, 1, 1)) / deviations)
    torch.testing.assert_close(norm_of(vae).normalize(encoded()), theirs)
    torch.testing.assert_close(norm_of(vae).denormalize(theirs), encoded())


class OnAppleGpu(torch.Tensor):
    """Values that cannot become float64 before they are on the CPU."""

    def double(self) -> torch.Tensor:  # type: ignore[override]
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def test_the_statistics_of_patches_are_read_on_apples_gpus() -> None:
    vae = AutoencoderKLFlux2(**TINY, **TWO_BLOCKS)
    here = norm_of(vae)
    vae.bn.running_var = vae.bn.running_var.as_subclass(OnAppleGpu)
    assert norm_of(vae).identity == here.identity


@pytest.mark.parametrize("shift", [None, 0.1159])
def test_a_vae_is_encoded_and_decoded_with_its_normalisation(shift: float | None) -> None:
    vae = AutoencoderKL(**TINY, **TWO_BLOCKS, shift_factor=shift, scaling_factor=0.5).eval()
    images_B3PP = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        latents_BCHW = encode_mean(vae, images_B3PP, factor=2)
        raw_BCHW = vae.encode(images_B3PP).latent_dist.mode()
        torch.testing.assert_close(latents_BCHW, (raw_BCHW - (shift or 0.0)) * 0.5)
        torch.testing.assert_close(encode_posterior(vae, images_B3PP).latents(), latents_BCHW)
        torch.testing.assert_close(decode_latents(vae.decode, vae, latents_BCHW, factor=2), vae.decode(raw_BCHW).sample)


def test_latents_are_drawn_before_they_are_normalised() -> None:
    posterior = Posterior(encoded(), torch.full((2, 4, 6, 8), 2.0), ShiftAndScale(1.0, 3.0))
    noise = encoded(seed=1)
    torch.testing.assert_close(posterior.latents(noise), (encoded() + torch.e * noise - 1.0) * 3.0)
