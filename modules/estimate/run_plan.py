"""The settings of a run that its memory depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from modules.data.buckets import Size
from modules.data.tiles import LEAST_TILES, VAE_TILES, Tiling
from modules.estimate.passes import Plans
from modules.optim.spec import OptimizerSettings

Phase = Literal["encoding images", "encoding captions", "training", "validating", "sampling", "decoding samples"]
Average = Literal["off", "here", "elsewhere"]

RUNTIME_BYTES = 600_000_000
"""The memory of CUDA itself: its context and kernels (300 to 500 MB) and the workspaces of cuBLAS and cuDNN."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An image to sample; with `is_guided` the denoiser runs on a batch of two."""

    width_px: int
    height_px: int
    is_guided: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """The memory facts of a method that trains on images it samples.

    `backprop_steps` is the maximum number of denoising steps of one graph, which continues through the decoding; 0 for
    a method that samples without gradient and trains on the results in passes of their own. `is_guided`: sampling runs
    the denoiser on a doubled batch (guidance); `trains_guided`: so does training. `size_px` is the width and height of
    the images if they have their own. `kept_latents_bytes` are the stored states of the samples on the training device,
    `reward_models_bytes` the reward models' weights. `copies_weights`: training keeps a copy of the trained weights.
    """

    backprop_steps: int
    is_guided: bool
    reward_models_bytes: int
    trains_guided: bool = True
    size_px: tuple[int, int] | None = None
    kept_latents_bytes: int = 0
    copies_weights: bool = False


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The settings of a run that its memory depends on.

    `on_device` names the parts on the training device in each phase of the run; `sizes` are the sizes of the batches in
    pixels (width, height); `has_master_weights`: 16-bit weights have float32 ones; `average`: whether EMA is kept, and
    where. `scales_loss`: float16 with a loss scaler; `is_fused`: weights are updated inside the backward pass.
    `sampled` is set where training steps sample images; `runtime_bytes` is the memory of the device's runtime.
    `has_originals`: training keeps a copy of the trained weights as they were before. `step_batch` is the batch of this
    process where several share a step, 0 for the whole one. The weights of the `sharded` parts are sharded among
    `num_shards` processes. `summed_bytes` is how much of the gradients several processes sum at a time, None for a
    single process; with `sums_in_float32` gradients of 16 bits are summed in float32. `images_per_pass` is how many
    images a sample of the batch has: 2 for pairs. `reconstructs`: the VAE is trained, and no denoiser runs;
    `is_perceptual`: with LPIPS in the loss. `training_adapter_bytes` are on the device while images are sampled.
    `keeps_other_denoiser`: the denoiser of a sampling model stays on the device, because nothing is offloaded. The VAE
    encodes and decodes in `tiles`, samples in no smaller ones than `sample_tiles`. `references` are the sizes of
    reference images with another size than their image, `clips` the sizes of clips, which `sizes` has as images with as
    many latents.
    """

    plans: Plans
    on_device: Mapping[Phase, frozenset[str]]
    sizes: tuple[tuple[int, int], ...]
    batch_size: int
    accumulates: bool
    optimizer: OptimizerSettings
    has_master_weights: bool
    average: Average
    encodes_in_training: bool
    samples: tuple[Sample, ...] = ()
    scales_loss: bool = False
    is_fused: bool = False
    sampled: Sampled | None = None
    runtime_bytes: int = RUNTIME_BYTES
    has_originals: bool = False
    images_per_pass: int = 1
    reconstructs: bool = False
    is_perceptual: bool = False
    step_batch: int = 0
    sharded: frozenset[str] = frozenset()
    num_shards: int = 1
    summed_bytes: int | None = None
    sums_in_float32: bool = True
    training_adapter_bytes: int = 0
    keeps_other_denoiser: bool = False
    tiles: Tiling = VAE_TILES
    sample_tiles: Tiling = LEAST_TILES
    references: tuple[tuple[int, int], ...] = ()
    clips: tuple[Size, ...] = ()

    @property
    def batch_of_step(self) -> int:
        """The number of images that this process trains at once."""
        return self.step_batch or self.batch_size
