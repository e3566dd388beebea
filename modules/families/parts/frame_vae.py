"""Autoencoders of videos that encode images as single frames: images and latents have no axis of frames here.

Convolutions over frames are causal, so the first frame of a video depends on no other, and diffusers' cache of earlier
frames is needed only for further ones. Without that cache a block computes the same from the same input each time, as
gradient checkpointing requires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from diffusers.models.autoencoders import autoencoder_kl_hunyuan_video as hunyuan_video
from diffusers.models.autoencoders import autoencoder_kl_qwenimage as qwenimage
from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput

from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.traced_passes import TracedPasses, autoencoder_passes
from modules.families.spec import FamilySpec, encoding_of
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


class AutoencoderKLQwenImage(qwenimage.AutoencoderKLQwenImage):  # type: ignore[misc]  # diffusers has no types
    """Qwen-Image's autoencoder for images: diffusers' module, with the same configs and tensors.

    Equal to diffusers' `encode` and `decode` of a video with one frame (arXiv 2508.02324, section 2.2).
    """

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
        """Return the distribution of the latents (B, C, H, W) of images (B, 3, P, P) in [-1, 1]."""
        moments_BCHW = self.quant_conv(self.encoder(x.unsqueeze(2))).squeeze(2)
        distribution = DiagonalGaussianDistribution(moments_BCHW)
        return AutoencoderKLOutput(latent_dist=distribution) if return_dict else (distribution,)

    def decode(self, z: torch.Tensor, return_dict: bool = True) -> Any:
        """Return the images (B, 3, P, P) of latents (B, C, H, W), in [-1, 1]."""
        images_B3PP = self.decoder(self.post_quant_conv(z.unsqueeze(2))).squeeze(2).clamp(-1.0, 1.0)
        return DecoderOutput(sample=images_B3PP) if return_dict else (images_B3PP,)


class AutoencoderKLHunyuanVideo(hunyuan_video.AutoencoderKLHunyuanVideo):  # type: ignore[misc]
    """HunyuanVideo's autoencoder for images: diffusers' module, with the same configs and tensors.

    Equal to diffusers' `encode` and `decode` of a video with one frame (arXiv 2412.03603, section 4.1). It encodes
    clips, too.
    """

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
        """Return the distribution of the latents (B, C, H, W) of images (B, 3, P, P) in [-1, 1].

        The latents of clips (B, 3, F, P, P) have an axis of frames, too.
        """
        if x.dim() == 5:
            return super().encode(x, return_dict)
        moments_BCHW = self.quant_conv(self.encoder(x.unsqueeze(2))).squeeze(2)
        distribution = DiagonalGaussianDistribution(moments_BCHW)
        return AutoencoderKLOutput(latent_dist=distribution) if return_dict else (distribution,)

    def decode(self, z: torch.Tensor, return_dict: bool = True) -> Any:
        """Return the images (B, 3, P, P) of latents (B, C, H, W), in about [-1, 1]."""
        images_B3PP = self.decoder(self.post_quant_conv(z.unsqueeze(2))).squeeze(2)
        return DecoderOutput(sample=images_B3PP) if return_dict else (images_B3PP,)


def hunyuan_vae_passes(vae: Any, spec: FamilySpec) -> TracedPasses:
    """Return the encoding and decoding of images by a VAE of Tencent."""
    config = vae.config
    return autoencoder_passes(
        vae, config.in_channels, config.latent_channels, factor=int(config.spatial_compression_ratio)
    )


def hunyuan_video_vae_passes(vae: Any, spec: FamilySpec) -> TracedPasses:
    """Return the encoding and decoding of images of an `AutoencoderKLHunyuanVideo`, and the encoding of clips.

    Each number of frames has its own pass. Longer clips are encoded in pieces with the largest of these numbers.
    """
    passes, latents = hunyuan_vae_passes(vae, spec), spec.latents
    encode = passes["encode"].run

    def clips(num_frames: int, size: PassSize) -> dict[str, Any]:
        return {"x": torch.empty(size.batch, vae.config.in_channels, num_frames, size.height_px, size.width_px)}

    counts = range(1 + latents.frame_factor, latents.frames_at_once + 1, latents.frame_factor)
    return {**passes, **{encoding_of(n): TracedPass(encode, partial(clips, n)) for n in counts}}


def vae_passes(vae: Any, spec: FamilySpec) -> TracedPasses:
    """Return the encoding and decoding of an `AutoencoderKLQwenImage`."""
    config = vae.config
    return autoencoder_passes(vae, config.input_channels, config.z_dim, factor=2 ** (len(config.dim_mult) - 1))


_ENDS = {
    "quant_conv": "conv1",
    "post_quant_conv": "conv2",
    "conv_in": "conv1",
    "norm_out": "head.0",
    "conv_out": "head.2",
    "mid_block.resnets.0": "middle.0",
    "mid_block.attentions.0": "middle.1",
    "mid_block.resnets.1": "middle.2",
}
_IN_RESNET = {
    "norm1": "residual.0",
    "conv1": "residual.2",
    "norm2": "residual.3",
    "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}


def vae_slots(config: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of an `AutoencoderKLQwenImage` of this config in the original layout, which is Wan 2.1's.

    Source: diffusers' `convert_wan_vae_to_diffusers`.
    """
    return tuple(_slots(config))


def _slots(config: Mapping[str, Any]) -> Iterator[Slot]:
    in_block = int(config.get("num_res_blocks", 2)) + 2  # of the decoder: one more than the encoder has, and upsampling
    for key in empty_part(AutoencoderKLQwenImage, config).state_dict():
        yield Slot(key, _original(key, in_block))


def _original(key: str, in_block: int) -> str:
    """Return the original name of a tensor; a block of the decoder has `in_block` layers."""
    path, _, parameter = key.rpartition(".")
    coder, _, rest = path.partition(".") if path.startswith(("encoder.", "decoder.")) else ("", "", path)
    steps = rest.split(".")
    if steps[0] == "down_blocks":
        steps[0] = "downsamples"
    elif steps[0] == "up_blocks":
        _, block, kind, index, *steps = steps
        within = int(index) if kind == "resnets" else in_block - 1
        steps = ["upsamples", str(int(block) * in_block + within), *steps]
    rest = ".".join(steps)
    for ours, theirs in _ENDS.items():
        if rest == ours or rest.startswith(f"{ours}."):
            rest = theirs + rest.removeprefix(ours)
    head, _, last = rest.rpartition(".")
    if last in _IN_RESNET and head:
        rest = f"{head}.{_IN_RESNET[last]}"
    return ".".join(filter(None, (coder, rest, parameter)))
