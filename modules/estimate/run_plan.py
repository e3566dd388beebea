"""The settings of a run that its memory depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from modules.data.buckets import Size
from modules.data.tiles import SMALLEST_TILES, VAE_TILES, Tiling
from modules.estimate.passes import Plans
from modules.optim.spec import OptimizerSettings

Phase = Literal["encoding images", "encoding captions", "training", "validating", "sampling", "decoding samples"]
Average = Literal["off", "here", "elsewhere"]

RUNTIME_BYTES = 600_000_000
"""The memory of CUDA itself: its context and kernels (300 to 500 MB) and the workspaces of cuBLAS and cuDNN."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An image to sample; with guidance (`is_guided`) the denoiser runs on a batch of two."""

    width_px: int
    height_px: int
    is_guided: bool


@dataclass(frozen=True, slots=True)
class SampledImages:
    """The facts of a method that trains on sampled images on which its memory depends.

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
    """The settings of a run that its memory depends on. Sizes are (width, height) in pixels."""

    plans: Plans
    on_device: Mapping[Phase, frozenset[str]]
    """The parts on the training device in each phase of the run."""
    sizes: tuple[tuple[int, int], ...]
    """The sizes of the batches."""
    batch_size: int
    accumulates: bool
    optimizer: OptimizerSettings
    has_master_weights: bool
    """Whether 16-bit weights have float32 master weights."""
    average: Average
    """Whether EMA is kept, and where."""
    encodes_in_training: bool
    samples: tuple[Sample, ...] = ()
    scales_loss: bool = False
    """Whether it trains in float16 with a loss scaler."""
    is_fused: bool = False
    """Whether weights are updated inside the backward pass."""
    sampled: SampledImages | None = None
    """Set if training steps sample images."""
    runtime_bytes: int = RUNTIME_BYTES
    """The memory of the device's runtime."""
    has_originals: bool = False
    """Whether the trained weights are also kept as they were before training."""
    images_per_pass: int = 1
    """How many images a sample of the batch has: 2 for pairs."""
    reconstructs: bool = False
    """Whether the VAE is trained, and no denoiser runs."""
    is_perceptual: bool = False
    """Whether the loss contains LPIPS."""
    step_batch: int = 0
    """The batch of this process if several share a step; 0 for the whole batch."""
    sharded: frozenset[str] = frozenset()
    """The parts whose weights are sharded among `num_shards` processes."""
    num_shards: int = 1
    summed_bytes: int | None = None
    """The bytes of gradients that several processes sum at a time; None for a single process."""
    sums_in_float32: bool = True
    """Whether gradients of 16 bits are summed in float32."""
    training_adapter_bytes: int = 0
    """The size of the training adapter, which is on the device while images are sampled."""
    keeps_other_denoiser: bool = False
    """Whether the denoiser of a sampling model stays on the device, because nothing is offloaded."""
    tiles: Tiling = VAE_TILES
    """The tiles in which the VAE encodes and decodes."""
    sample_tiles: Tiling = SMALLEST_TILES
    """The smallest tiles in which samples are decoded."""
    references: tuple[tuple[int, int], ...] = ()
    """The sizes of reference images with another size than their image."""
    clips: tuple[Size, ...] = ()
    """The sizes of clips; `sizes` contains them as images with as many latents."""

    @property
    def batch_of_step(self) -> int:
        """The number of images that this process trains at once."""
        return self.step_batch or self.batch_size
