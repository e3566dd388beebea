"""Stage 4: training steps at full size: time, share of the device's speed, memory and its estimate, waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchmarks.full_size import FullSize, measure_steps
from benchmarks.gpu.models import Subject, device_of, subjects, training_config
from benchmarks.gpu.stage import Case, Finding, Request, at_most, within
from benchmarks.rows import Row
from modules.config.schema import Config

WAITS_A_STEP = 1.0
ESTIMATE_SHARE = 0.1
# In a small model the estimate's upper bounds dominate: it adds the workspace of the largest weight's update to all
# activations, and that is half of the peak of a small fused fine-tune.
_TINY_ESTIMATE_SHARE = 0.9
_FUSED = {
    "trains": "full",
    "batch_size": 1,
    "low_precision_updates": "stochastic",
    "clip_grad_norm": None,
    "optimizer": {"name": "adafactor", "fused_back_pass": True},
}


def _lora(batch_size: int, checkpointing: str) -> Mapping[str, Any]:
    return {"trains": "adapter", "batch_size": batch_size, "denoiser": {"checkpointing": checkpointing}}


_CASES: Mapping[str, Mapping[str, Any]] = {
    "LoRA, batch 1": _lora(1, "off"),
    "LoRA, batch 4, blocks checkpointed": _lora(4, "block"),
    "fused fine-tune": _FUSED,
    "LoRA, batch 1, blocks checkpointed": _lora(1, "block"),
    "LoRA, batch 4": _lora(4, "off"),
    "LoRA, batch 4, transformer blocks checkpointed": _lora(4, "transformer"),
    "LoRA, batch 4, cheap operations checkpointed": _lora(4, "selective"),
}
_SHORT = ("LoRA, batch 1", "LoRA, batch 4, blocks checkpointed", "fused fine-tune")


def cases(request: Request) -> Sequence[Case]:
    """Return a case for each model and setting; in a short run, or a small one, those that matter most."""
    names = _SHORT if request.is_short or request.is_tiny else tuple(_CASES)
    return [
        Case(f"{subject.label}, {name}", partial(_case, request, subject, name))
        for name in names
        for subject in subjects(request)
    ]


def _case(request: Request, subject: Subject, name: str, seconds: float) -> Iterator[Finding]:
    config = training_config(request, subject, _CASES[name])
    yield from measured_step(request, f"{subject.side_px} px", config, seconds)


def measured_step(request: Request, name: str, config: Config, seconds: float) -> Iterator[Finding]:
    """Measure a config's steps, timing them for a third of the seconds, and yield the row and its checks."""
    yield from step_checks(request, name, measure(request, config, seconds))


def measure(request: Request, config: Config, seconds: float) -> FullSize:
    """Measure a config's steps, timing them for a third of the seconds."""
    timing = 0.0 if request.is_tiny else seconds / 3
    return measure_steps("", config, device_of(request), seconds=timing, num_threads=1)


def step_checks(request: Request, name: str, step: FullSize, *, counts_waits: bool = True) -> Iterator[Finding]:
    """Yield the row of a measured step, and the checks of its waits and its estimate."""
    yield Row(name, step_words(step), numbers={**asdict(step), "share_of_matrix_speed": step.share_of_matrix_speed})
    if counts_waits:
        waits = ", ".join(f"{times:.2g} {place}" for place, times in step.waits.items())
        yield replace(at_most("waits of a step", sum(step.waits.values()), WAITS_A_STEP), got=waits or "none")
    share = _TINY_ESTIMATE_SHARE if request.is_tiny else ESTIMATE_SHARE
    yield within("estimated memory", step.predicted_bytes / 2**30, step.peak_bytes / 2**30, share, unit=" GiB")


def step_words(step: FullSize) -> str:
    """Return the measurements of a step in words."""
    words = (
        f"{step.step_seconds:.3f} s per step, {step.flops_per_second / 1e12:.3g} TFLOP/s "
        f"({step.share_of_matrix_speed:.0%} of a large matrix product), peak {step.peak_bytes / 2**30:.3f} GiB, "
        f"estimated {step.predicted_bytes / 2**30:.3f} GiB ({step.predicted_bytes / step.peak_bytes:.2f})"
    )
    if not step.kernels:
        return words
    return (
        f"{words}; reserved {step.reserved_bytes / 2**30:.3f} GiB, {step.kernels:.0f} kernels, the device idle for "
        f"{step.idle_share:.0%}"
    )
