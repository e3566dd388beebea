"""A small model of the time of an optimizer step, to compare settings of one run with each other.

The unit of time is a forward pass of SDXL's UNet over one image of 1024 px in 16 bits: 6 TFLOP, about 0.075 s at
80 TFLOP/s, an assumed mid-range card. Only the order of settings and the ratio of two times are meaningful. The figures
are counted or assumed, as noted with each, not fitted to one card (`step_seconds` turns them into seconds):

- A backward pass is two forward passes, or one where only an adapter is trained and the weights need no gradient
  (Kaplan et al. 2020, section 2.1); recomputing adds what it computes again (Chen et al. 2016).
- Offloaded weights and activations cross the bus at 12 GB/s (PCIe 4.0 with 16 lanes and pinned memory) during the
  computation; the longer of the two decides.
- Unpacking quantized weights moves a counted number of bytes in each pass, at 1 TB/s on such a card. The measured
  speeds on a CPU are in docs/quantization.md.
- Starting the kernels of a micro-batch takes the host the same time for any size of images, so small images need large
  batches. Their number follows from the operations of the model's recorded pass (`kernels_of`).
"""

from __future__ import annotations

from dataclasses import dataclass

from modules.settings.shared_types import CheckpointMode

_WEIGHTS = 2.57e9  # of SDXL's UNet
_PIXELS = 1024 * 1024
_UNIT_SECONDS = 0.075
_FLOP_PER_WEIGHT_AND_PIXEL = 6e12 / (_WEIGHTS * _PIXELS)
# How many times longer than counted here a step takes for users: for an SDXL LoRA they report 1.2 s a step on an
# RTX 3090 (counted: 0.15 s), and with checkpointing 0.37 s an image on an RTX 4090 (counted: 0.2 s; kohya_ss 1288).
_MEASURED_TO_COUNTED = 4.0
_CORE_FLOPS = 40e9  # of one core in float32: SD 1.5's UNet took 10.4 s for 512 px (12.6 s by this)
_OPERATION_SECONDS = 0.13e-3  # on a CPU, however small: a step of the demo took 0.15 s for its 1,071 operations
_BUS = 12e9 * _UNIT_SECONDS  # bytes in a unit of time
_CARD_MEMORY = 1e12 * _UNIT_SECONDS
_HOST_MEMORY = 20e9 * _UNIT_SECONDS

# The share of the forward pass that is computed again. The transformer blocks have three quarters of the FLOPs in
# SDXL's UNet and about half of them in SD 1.5's. "selective" keeps products and attention and repeats only the rest;
# "auto" repeats anything between nothing and everything.
_RECOMPUTED: dict[CheckpointMode, float] = {
    "off": 0.0, "auto": 0.5, "selective": 0.15, "transformer": 0.7, "block": 1.0, "whole": 1.0,
}  # fmt: skip
_LAUNCH_SECONDS = 14e-6  # of PyTorch for each kernel: 230 ms for the 16,224 kernels of a step of an SDXL LoRA
# Kernels for each operation of the forward pass, and for each factor of an adapter, forward and back: counted for SDXL
# (`python -m benchmarks kernels`), within 1 %. For Z-Image this gives 4 % too few under autocast, and 4 to 7 % too many
# without it. A gradient of the weights needs a product, and a sum or a cast, of its own.
_BACKWARD, _BACKWARD_OF_WEIGHTS = 0.97, 1.6
_OF_FACTOR, _OF_FACTOR_IN_AUTOCAST = (0.65, 1.95), (3.5, 5.2)
_CPU_LAUNCHES = 0.02
# Selective checkpointing calls Python for each operation.
_SELECTIVE_HOST = {True: 1.5, False: 20.0}
_HIDDEN = 0.9  # the share of the shorter of computation and transfer that the longer one hides
_KEPT_PER_PASS = 0.25  # the part that is not hidden of moving one image's activations out and back in
_FUSED = 1.03  # many small updates instead of a few large ones
_OPTIMIZER_BYTES = 40  # read and written for each trained weight: gradient, value, two moments


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The settings and sizes on which the time of an optimizer step depends.

    `num_weights` is the number of weights of the denoiser, `weight_bytes` the stored bytes of each, and `work` the cost
    of a weight relative to a UNet's. `batch_size` is in images, `num_trained` the number of trained weights, and
    `num_encoder_weights` that of text encoders in 16 bits that are offloaded like the denoiser. `num_operations` is the
    number of operations of the denoiser's pass, `num_factors` that of its adapter's factors (2 for each layer of a
    LoRA), and `has_autocast` whether the pass runs under autocast. `unpacking_bytes` are moved for each quantized
    weight in a pass. `is_cast`: weights are float32 and cast to 16 bits once per batch.
    """

    num_weights: int
    weight_bytes: float
    pixels: int
    batch_size: int
    accumulation_steps: int
    num_trained: int
    num_encoder_weights: int
    trains_weights: bool
    checkpointing: CheckpointMode
    num_operations: int
    num_factors: int = 0
    has_autocast: bool = True
    offloads_activations: bool = False
    offload_fraction: float = 0.0
    unpacking_bytes: float = 0.0
    is_cast: bool = False
    is_fused: bool = False
    moves_average: bool = False
    on_gpu: bool = True
    work: float = 1.0


def step_time(facts: StepFacts) -> float:
    """Return the time of an optimizer step, in forward passes (see above); only ratios are meaningful."""
    forward = facts.work * facts.num_weights / _WEIGHTS * facts.pixels / _PIXELS * facts.batch_size
    recomputed = _RECOMPUTED[facts.checkpointing]
    computing = forward * (2 + facts.trains_weights + recomputed)
    computing *= _FUSED if facts.is_fused else 1.0
    if facts.checkpointing == "selective":
        computing += _SELECTIVE_HOST[facts.on_gpu] * min(1.0, facts.num_weights / _WEIGHTS + 0.3)
    passes = 2 + (0 if facts.checkpointing == "selective" else recomputed)  # selective repeats no product with weights
    stored = facts.num_weights * facts.weight_bytes
    computing += passes * facts.unpacking_bytes * facts.num_weights / _CARD_MEMORY
    if facts.is_cast:
        computing += (stored + 2 * facts.num_weights) / _CARD_MEMORY
    if facts.offloads_activations:
        computing += _KEPT_PER_PASS * forward
    moved = (
        facts.offload_fraction * (stored + 2 * facts.num_encoder_weights) * (passes + facts.trains_weights)
    )  # with the gradients
    transfer = moved / _BUS
    host = kernels_of(facts) * _LAUNCH_SECONDS / _UNIT_SECONDS if facts.on_gpu else _CPU_LAUNCHES
    micro_batch = max(computing, transfer, host) + (1 - _HIDDEN) * (
        computing + transfer + host - max(computing, transfer, host)
    )
    return facts.accumulation_steps * micro_batch + _update_time(facts)


def step_seconds(facts: StepFacts, *, num_cores: int) -> float:
    """Return about how many seconds an optimizer step takes, on a mid-range card or on the cores of a CPU.

    Today's cards differ by a factor of four, so it may be half or twice as long. A CPU's time follows from the FLOPs of
    the passes, or for a tiny model from the number of operations, and from the update of the weights.
    """
    if facts.on_gpu:
        return step_time(facts) * _UNIT_SECONDS * _MEASURED_TO_COUNTED
    forward = facts.work * facts.num_weights * facts.pixels * facts.batch_size * _FLOP_PER_WEIGHT_AND_PIXEL
    passes = 2 + facts.trains_weights + _RECOMPUTED[facts.checkpointing]
    computing = forward * passes / (_CORE_FLOPS * max(1, num_cores))
    computing = max(computing, kernels_of(facts) * _OPERATION_SECONDS)
    return facts.accumulation_steps * computing + _update_time(facts) * _UNIT_SECONDS


def kernels_of(facts: StepFacts) -> float:
    """Return the number of kernels of a micro-batch, without unpacking and the optimizer."""
    of_factor = _OF_FACTOR_IN_AUTOCAST if facts.has_autocast else _OF_FACTOR
    forward = facts.num_operations + of_factor[0] * facts.num_factors
    per_operation = _BACKWARD_OF_WEIGHTS if facts.trains_weights else _BACKWARD
    backward = per_operation * facts.num_operations + of_factor[1] * facts.num_factors
    return forward * (1 + _RECOMPUTED[facts.checkpointing]) + backward


def _update_time(facts: StepFacts) -> float:
    """Return the time of the optimizer and of EMA; offloaded weights are updated on the offload device."""
    there = facts.num_trained * (facts.offload_fraction if facts.trains_weights else 0.0)
    touched = _OPTIMIZER_BYTES * (facts.num_trained - there) / (_CARD_MEMORY if facts.on_gpu else _HOST_MEMORY)
    touched += _OPTIMIZER_BYTES * there / _HOST_MEMORY
    return touched + (2 * 4 * facts.num_trained / _BUS if facts.moves_average else 0.0)
