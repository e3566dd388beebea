"""Stage 9: samples at 1024 px: seconds, memory and its estimate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from PIL import ImageStat

from benchmarks.gpu.full_size import ESTIMATE_SHARE
from benchmarks.gpu.models import Subject, device_of, subjects, training_config
from benchmarks.gpu.stage import Case, Finding, Request, at_least, within
from benchmarks.measure import wait_for
from benchmarks.rows import Row
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.buckets import Size
from modules.data.images import open_image
from modules.estimate.run_plan import RUNTIME_BYTES, Phase
from modules.settings.edit import replace_value
from modules.system.paths import from_root
from trainer.job import Job
from trainer.jobs.sample import SampleChoices, SampleRequest
from trainer.jobs.sample_engine import SamplingEngine
from trainer.preflight.run_budget import memory_estimate

_STEPS, _TINY_STEPS = 20, 2
_PHASES: tuple[Phase, ...] = ("encoding captions", "sampling", "decoding samples")
_MIN_SPREAD = 1.0  # of the values 0 to 255 of an image that is not of one colour


def cases(request: Request) -> Sequence[Case]:
    """Return a case for each model."""
    return [Case(subject.label, partial(_sample, request, subject)) for subject in subjects(request)]


def _sample(request: Request, subject: Subject, _seconds: float) -> Iterator[Finding]:
    device, steps = device_of(request), _TINY_STEPS if request.is_tiny else _STEPS
    side_px = subject.side_px
    config = _with_prompt(training_config(request, subject, {"trains": "adapter", "batch_size": 1}), side_px, steps)
    engine, job = SamplingEngine(), Job(lambda event: None)
    wanted = SampleRequest(config, SampleChoices(folder=str(request.folder / "samples" / subject.label)))
    start = time.perf_counter()
    engine.sample(wanted, job)
    first = time.perf_counter() - start
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device.torch)
    start = time.perf_counter()
    made = engine.sample(wanted, job)
    wait_for(device)
    seconds = time.perf_counter() - start
    yield Row(
        f"{side_px} px, {steps} steps",
        f"{seconds:.2f} s, {first:.1f} s with loading the model",
        numbers={"seconds": seconds, "first_seconds": first, "steps": steps},
    )
    with open_image(from_root(made.paths[0])) as image:
        spread = max(ImageStat.Stat(image).stddev)
    yield at_least("spread of the image's values", spread, _MIN_SPREAD)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device.torch) / 2**30
        yield within("estimated memory", _estimated_bytes(config, side_px) / 2**30, peak, ESTIMATE_SHARE, unit=" GiB")
    engine.close()


def _estimated_bytes(config: Config, side_px: int) -> int:
    """Return the estimated peak of sampling in bytes, without the CUDA runtime, which the allocator does not count."""
    estimate = memory_estimate(config, {Size(side_px, side_px): 1})
    phases = [estimate.phase(name) for name in _PHASES] if estimate is not None else []
    return max((p.total_bytes for p in phases if p is not None), default=0) - RUNTIME_BYTES


def _with_prompt(config: Config, side_px: int, steps: int) -> Config:
    prompt = SamplePrompt(prompt="an image of noise", width_px=side_px, height_px=side_px, steps=steps)
    sampling = config.sampling.model_copy(update={"prompts": (prompt,)})
    with_prompt = config.model_copy(update={"sampling": sampling})
    return replace_value(with_prompt, "adapter.rank", 1)  # the sampled model has no adapter
