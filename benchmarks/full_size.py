"""Training at realistic sizes: seconds per step, peak memory compared to the estimate, and FLOP/s.

The weights are random, because speed and memory do not depend on them, so nothing is downloaded. Torch counts the FLOPs
of a step; recomputation under checkpointing counts too, because the device does it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.loop_speed import run_setup
from benchmarks.measure import wait_for
from benchmarks.saving_memory import of_denoiser, peak_of
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.run_plan import RUNTIME_BYTES
from modules.families.parts.folder_model import write_folder
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.write import CheckpointTraits
from modules.families.registry import FAMILIES, published
from modules.formats.lazy_tensors import LazyTensor
from modules.settings.shared_types import side_of
from modules.system.devices import Device
from modules.system.factories import load_factory
from trainer.preflight.run_budget import memory_estimate
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings

_SPREAD = 0.02  # of random weights: small enough that nothing overflows in 16 bits
_RANK = 16
CASES: Mapping[str, dict[str, Any]] = {
    f"LoRA rank {_RANK}, batch 1": {"trains": "adapter", "batch_size": 1},
    f"LoRA rank {_RANK}, batch 4": {"trains": "adapter", "batch_size": 4},
    "fine-tune, Adafactor in the backward pass, batch 1": {
        "trains": "full",
        "batch_size": 1,
        "low_precision_updates": "stochastic",
        "clip_grad_norm": None,
        "optimizer": {"name": "adafactor", "fused_back_pass": True},
    },
}


@dataclass(frozen=True, slots=True)
class FullSize:
    """Measurements of a step: seconds (median), peak and estimated bytes on the device, and FLOPs."""

    case: str
    step_seconds: float
    peak_bytes: int
    predicted_bytes: int
    step_flops: int
    flops_per_second: float
    matrix_flops_per_second: float

    @property
    def share_of_matrix_speed(self) -> float:
        """The speed as a share of that of a large matrix product on this device."""
        return self.flops_per_second / self.matrix_flops_per_second


def write_random_model(folder: Path, model: str) -> Path:
    """Write a published model's shapes as a diffusers folder of random bfloat16 weights, one tensor at a time."""
    configs = shipped_configs(model)
    classes = {p.name: load_factory(p.model_class) for p in FAMILIES[published(model).family].parts}
    parts = {name: empty_part(classes[name], configs[name]) for name in configs if name in classes}
    states = {
        name: {
            key: LazyTensor(tuple(t.shape), torch.bfloat16, partial(_random_weight, key, tuple(t.shape)))
            for key, t in part.state_dict().items()
        }
        for name, part in parts.items()
    }
    write_folder(folder, states, configs, CheckpointTraits(model), dtype=torch.bfloat16)
    return folder


def full_size_config(base: Config, model: Path, images: Path, case: Mapping[str, Any], *, side_px: int) -> Config:
    """Return a config that trains SDXL's UNet in bfloat16 at one size, with the settings of a case."""
    tree = encode(base)
    tree["model"] |= {"base_model": str(model), "family": "sdxl"}
    tree["data"] |= {"resolution_px": [side_px], "latent_cache": True, "text_cache": True}
    tree["concepts"] = [{"name": "noise", "path": str(images)}]
    tree["training"] |= {"precision": "bfloat16", "learning_rate": 1e-5, "ema": {"mode": "off"}, **case}
    tree["adapter"] = {"name": "lora", "rank": _RANK, "alpha": float(_RANK)}
    tree["parts"] = {
        part: {"dtype": "bfloat16", "checkpointing": "block"} for part in ("unet", "text_encoder", "text_encoder_2")
    }
    tree["parts"]["vae"] = {"dtype": "float32"}
    return of_denoiser(decode(tree).config, trains=str(case["trains"]))


def draw_noise(folder: Path, *, num_images: int, side_px: int) -> Path:
    """Write images of noise, with captions."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for index in range(num_images):
        pixels = generator.integers(0, 256, (side_px, side_px, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text("an image of noise", encoding="utf-8")
    return folder


def measured(case: str, config: Config, device: Device, *, rounds: int, num_threads: int) -> FullSize:
    """Train a few epochs and measure the steps after the first epoch. Raises ValueError without a memory estimate."""
    side_px = side_of(config.data.resolution_px[0])
    estimate = memory_estimate(config, {Size(side_px, side_px): 1})
    training = estimate.phase("training") if estimate is not None else None
    if training is None:
        raise ValueError("the memory estimate must support every config that is measured here")
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        step_seconds, step_flops = _steps(config, device, rounds)
        return FullSize(
            case=case,
            step_seconds=step_seconds,
            peak_bytes=peak_of(config),
            # The allocator does not count the memory of the CUDA runtime.
            predicted_bytes=training.total_bytes - (0 if device.is_cpu else RUNTIME_BYTES),
            step_flops=step_flops,
            flops_per_second=step_flops / step_seconds,
            matrix_flops_per_second=matrix_flops_per_second(device, side=512 if device.is_cpu else 8192),
        )


def all_measured(
    base: Config, model: Path, folder: Path, device: Device, *, side_px: int, rounds: int, num_threads: int
) -> Iterator[FullSize]:
    """Yield the measurement of each case."""
    images = draw_noise(folder / "noise", num_images=8, side_px=side_px)
    for name, case in CASES.items():
        config = full_size_config(base, model, images, case, side_px=side_px)
        yield measured(name, config, device, rounds=rounds, num_threads=num_threads)


def matrix_flops_per_second(device: Device, *, side: int, rounds: int = 5) -> float:
    """Return the FLOP/s of a product of two square bfloat16 matrices: 2 n^3 operations in the median time."""
    left, right = (torch.randn(side, side, device=device.torch, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        torch.matmul(left, right)
        wait_for(device)
        times.append(time.perf_counter() - start)
    return float(2 * side**3 / median(times[1:]))


def _steps(config: Config, device: Device, rounds: int) -> tuple[float, int]:
    """Return the median seconds and the FLOPs of a step."""
    gc.collect()  # frees the model of the previous case before this one is loaded
    run = prepare(run_setup(config))
    try:
        train_epoch(run.training)
        times = []
        for _ in range(rounds):
            first = run.training.counters.step
            start = time.perf_counter()
            train_epoch(run.training)
            wait_for(device)
            times.append((time.perf_counter() - start) / (run.training.counters.step - first))
        first = run.training.counters.step
        with FlopCounterMode(display=False) as counter:
            train_epoch(run.training)
        return median(times), counter.get_total_flops() // (run.training.counters.step - first)
    finally:
        run.close()


def _random_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if len(shape) < 2:  # a norm's weights are about one, biases about zero
        return torch.full(shape, float(name.endswith("weight")), dtype=torch.bfloat16)
    return torch.randn(shape, dtype=torch.bfloat16) * _SPREAD
