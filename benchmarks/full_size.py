"""Training at realistic sizes: seconds per step, peak memory compared to the estimate, FLOP/s, kernels and waits.

The weights are random, because speed and memory do not depend on them, so nothing is downloaded. Torch counts the FLOPs
of a step; recomputation under checkpointing counts too, because the device does it.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.copies import Copies, copies_of
from benchmarks.host_waits import Place, waits_per_step, waits_reported_by_torch
from benchmarks.loop_speed import run_setup
from benchmarks.measure import median_seconds, wait_for
from benchmarks.profile import profile_steps
from benchmarks.saving_memory import of_denoiser, peak_of
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.run_plan import RUNTIME_BYTES
from modules.families.registry import FAMILIES
from modules.settings.shared_types import side_of
from modules.system.devices import Device
from trainer.callbacks.profiling import device_time
from trainer.preflight.run_budget import memory_estimate
from trainer.run.finish import PreparedRun
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings, timed_kernels

_WARMUP_EPOCHS, _MAX_EPOCHS = 2, 10
_PROFILED_STEPS = 2
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
    """Measurements of a step: seconds (median), peak and estimated bytes on the device, and FLOPs.

    `waits` are the host's waits for the device by their places, as means of the steps. On a GPU also the peak bytes
    that the allocator reserved, the kernels of a step, its copies (those of the profiled steps), and the share of the
    time in which the device had nothing to do.
    """

    case: str
    step_seconds: float
    peak_bytes: int
    predicted_bytes: int
    step_flops: int
    flops_per_second: float
    matrix_flops_per_second: float
    waits: Mapping[Place, float] = field(default_factory=dict)
    reserved_bytes: int = 0
    kernels: float = 0.0
    idle_share: float = 0.0
    copies: Copies = field(default_factory=Copies)

    @property
    def share_of_matrix_speed(self) -> float:
        """The speed as a share of the speed of a large matrix product on this device."""
        return self.flops_per_second / self.matrix_flops_per_second


def full_size_config(
    base: Config, model: Path, images: Path, case: Mapping[str, Any], *, side_px: int, family: str = "sdxl"
) -> Config:
    """Return a config that trains a family's denoiser in bfloat16 at one size.

    `case` has changes of the training section, and the settings of the denoiser under "denoiser".
    """
    spec, training = FAMILIES[family], {k: v for k, v in case.items() if k != "denoiser"}
    tree = encode(base)
    tree["model"] |= {"base_model": str(model), "family": family}
    tree["data"] |= {"resolution_px": [side_px], "latent_cache": True, "text_cache": True}
    tree["concepts"] = [{"name": "noise", "path": str(images)}]
    tree["training"] |= {"precision": "bfloat16", "learning_rate": 1e-5, "ema": {"mode": "off"}, **training}
    tree["adapter"] = {"name": "lora", "rank": _RANK, "alpha": float(_RANK)}
    tree["parts"] = {part.name: {"dtype": "float32" if part.role == "vae" else "bfloat16"} for part in spec.parts}
    tree["parts"][spec.denoiser.name] |= {"checkpointing": "block", **case.get("denoiser", {})}
    return of_denoiser(decode(tree).config, trains=str(case["trains"]))


def draw_noise(folder: Path, *, num_images: int, side_px: int, caption: str = "an image of noise") -> Path:
    """Write images of noise, all with the same caption."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for index in range(num_images):
        pixels = generator.integers(0, 256, (side_px, side_px, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(caption, encoding="utf-8")
    return folder


def measure_steps(case: str, config: Config, device: Device, *, seconds: float, num_threads: int) -> FullSize:
    """Train some epochs, for about as many seconds, and measure the steps after the first ones.

    Raises ValueError without a memory estimate.
    """
    side_px = side_of(config.data.resolution_px[0])
    estimate = memory_estimate(config, {Size(side_px, side_px): 1})
    training = estimate.phase("training") if estimate is not None else None
    if training is None:
        raise ValueError("the memory estimate must support every config that is measured here")
    with (
        process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False),
        timed_kernels(device, num_sizes=1, deterministic=False),
    ):
        step = _of_steps(config, device, seconds)
        if device.is_cpu:  # the guards that stand in for a GPU's counters would slow down the steps
            step |= {"peak_bytes": peak_of(config)}
            step |= {"waits": waits_per_step(config, warmup_epochs=_WARMUP_EPOCHS, epochs=1, num_threads=num_threads)}
        return FullSize(
            case=case,
            # The allocator does not count the memory of the CUDA runtime.
            predicted_bytes=training.total_bytes - (0 if device.is_cpu else RUNTIME_BYTES),
            flops_per_second=step["step_flops"] / step["step_seconds"],
            matrix_flops_per_second=matrix_flops_per_second(device, side=512 if device.is_cpu else 8192),
            **step,
        )


def measure_cases(
    base: Config, model: Path, folder: Path, device: Device, *, side_px: int, seconds: float, num_threads: int
) -> Iterator[FullSize]:
    """Yield the measurement of each case."""
    images = draw_noise(folder / "noise", num_images=8, side_px=side_px)
    for name, case in CASES.items():
        config = full_size_config(base, model, images, case, side_px=side_px)
        yield measure_steps(name, config, device, seconds=seconds, num_threads=num_threads)


def matrix_flops_per_second(
    device: Device, *, side: int, rounds: int = 5, dtype: torch.dtype = torch.bfloat16
) -> float:
    """Return the FLOP/s of a product of two square matrices: 2 n^3 operations in the median time."""
    left, right = (torch.randn(side, side, device=device.torch).to(dtype) for _ in range(2))
    return 2 * side**3 / median_seconds(lambda: torch.matmul(left, right), device, rounds=rounds)


def _of_steps(config: Config, device: Device, seconds: float) -> dict[str, Any]:
    """Return the measurements of the steps of one run: the fields of `FullSize` that do not depend on others."""
    gc.collect()  # frees the model of the previous case before this one is loaded
    run = prepare(run_setup(config))
    try:
        for _ in range(_WARMUP_EPOCHS):
            train_epoch(run.training)
        measured: dict[str, Any] = {} if device.is_cpu else {"waits": _waits_on_gpu(run)}
        if not device.is_cpu:
            torch.cuda.reset_peak_memory_stats(device.torch)
        measured |= {"step_seconds": median(_step_seconds(run, device, seconds))}
        if not device.is_cpu:
            measured |= {
                "peak_bytes": torch.cuda.max_memory_allocated(device.torch),
                "reserved_bytes": torch.cuda.max_memory_reserved(device.torch),
            }
        first = run.training.counters.step
        with FlopCounterMode(display=False) as counter:
            train_epoch(run.training)
        measured |= {"step_flops": counter.get_total_flops() // (run.training.counters.step - first)}
        return measured | _of_profile(run)
    finally:
        run.close()


def _step_seconds(run: PreparedRun, device: Device, seconds: float) -> Iterator[float]:
    """Yield the seconds of a step, as a mean of each epoch: of at least two, and of more while there is time."""
    start = time.perf_counter()
    for number in range(_MAX_EPOCHS):
        first, before = run.training.counters.step, time.perf_counter()
        if number > 1 and before - start > seconds:
            return
        train_epoch(run.training)
        wait_for(device)
        yield (time.perf_counter() - before) / (run.training.counters.step - first)


def _waits_on_gpu(run: PreparedRun) -> dict[Place, float]:
    """Return the host's waits in an epoch by their places, as means of its steps."""
    waits: Counter[Place] = Counter()
    first = run.training.counters.step
    with waits_reported_by_torch(waits):
        train_epoch(run.training)
    return {place: times / (run.training.counters.step - first) for place, times in waits.most_common()}


def _of_profile(run: PreparedRun) -> dict[str, Any]:
    """Return the kernels and the copies of a step, and the share of the time in which the device had nothing to do."""
    trace = profile_steps(run, _PROFILED_STEPS) / "trace.json"
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    of_device = device_time(events)
    return {
        "kernels": sum(event.get("cat") == "kernel" for event in events) / _PROFILED_STEPS,
        "idle_share": of_device.waited_seconds / of_device.seconds if of_device.seconds else 0.0,
        "copies": copies_of(events),
    }
