"""The presets of stage 5: some steps, a sample and a validation in the memory of the card that each names."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from benchmarks.full_size import draw_noise
from benchmarks.gpu.full_size import ESTIMATE_SHARE
from benchmarks.gpu.models import (
    device_of,
    memory_of,
    model_of,
    offload_name,
    random_model,
    subjects,
)
from benchmarks.gpu.stage import Case, Check, Found, Request, at_most, within
from benchmarks.loop_speed import for_measuring, run_setup
from benchmarks.rows import Row
from modules.config.codec import decode, encode
from modules.config.presets import Preset, list_presets
from modules.config.schema import Config
from modules.config.usage import learns_from
from modules.data.buckets import Size
from modules.estimate.run_plan import RUNTIME_BYTES
from modules.families.registry import FAMILIES, files_of, published
from modules.settings.shared_types import side_of
from modules.system.atomic import remove_folder
from trainer.preflight.room import on_card
from trainer.preflight.run_budget import known_budget
from trainer.run import training_run
from trainer.step.precision import process_settings

_NUM_STEPS, _NUM_IMAGES, _SAMPLE_STEPS, _TINY_PX = 5, 2, 4, 64
_HAPPENS = ("StepFinished", "SampleReady", "ValidationFinished")
_GIB = 1 << 30


def cases(request: Request) -> Sequence[Case]:
    """Return a case for each built-in preset that names a card and learns from images, one model after the other."""
    named = [p for p in list_presets() if p.is_built_in and p.card_gb and not p.is_demo]
    chosen = {p: config for p in named if learns_from(config := p.load().config) == "images" and _is_plain(config)}
    if request.is_tiny:
        chosen = _of_each_kind(request, chosen)
    families = list(FAMILIES)
    order = sorted(chosen, key=lambda p: (families.index(p.group), _model_of(chosen[p]), p.card_gb))
    return [Case(f"preset: {p.name}", partial(_run, request, p, chosen[p])) for p in order]


def _is_plain(config: Config) -> bool:
    """Whether a preset needs nothing but images: no words, masks or models of rewards."""
    return config.training.trains in ("adapter", "full") and config.model.variant == Config().model.variant


def _of_each_kind(request: Request, chosen: dict[Preset, Config]) -> dict[Preset, Config]:
    """Return a preset of each family of which there is a small model, and of what it trains."""
    families = {subject.family for subject in subjects(request)}
    kinds = {(c.model.family.name, c.training.trains): (p, c) for p, c in chosen.items()}
    return dict(found for (family, _), found in kinds.items() if family in families)


def _model_of(config: Config) -> str:
    """Return the published model that a preset trains."""
    return files_of(config.model.family.name).repository_model(config.model.base_model)


def _run(request: Request, preset: Preset, plain: Config, _seconds: float) -> Iterator[Found]:
    """Carry out a run of a preset as if the device had no more memory than its card."""
    device, folder = device_of(request), request.folder / "presets"
    config = _config(request, plain, folder)
    side_px = side_of(config.data.resolution_px[0])
    card_bytes = preset.card_gb * _GIB - RUNTIME_BYTES  # what CUDA itself takes, the allocator does not count
    budget = known_budget(config, {Size(side_px, side_px): _NUM_IMAGES})
    assert budget is not None, "every preset's model has an estimate"
    estimate = (budget if device.is_cpu else on_card(budget, card_bytes)).memory()
    setup = run_setup(config)
    setup = replace(setup, machine=replace(setup.machine, assumed_free_bytes=None if device.is_cpu else card_bytes))
    settings = process_settings(num_threads=1, precision=config.training.precision, deterministic=False)
    # While cuDNN times kernels it takes what memory is free, and less where there is less: no estimate knows how much.
    by_rules = mock.patch.object(training_run, "timed_kernels", return_value=nullcontext())
    with settings, by_rules, memory_of(device, card_bytes):
        training_run.carry_out(setup)
    happened = Counter(json.loads(line)["event"] for line in _lines(setup.run_dir / "events.jsonl"))
    for name in _HAPPENS:
        wanted = _NUM_STEPS if name == "StepFinished" else 1
        yield Check(name, str(happened[name]), f"at least {wanted}", happened[name] >= wanted)
    estimated = (estimate.peak.total_bytes - (0 if device.is_cpu else RUNTIME_BYTES)) / _GIB
    yield Row("estimated memory", f"{estimated:.2f} GiB while {estimate.peak.phase}", numbers={"estimated": estimated})
    if device.type == "cuda":
        peak, reserved = torch.cuda.max_memory_allocated(device.torch), torch.cuda.max_memory_reserved(device.torch)
        yield within("estimated memory", estimated, peak / _GIB, ESTIMATE_SHARE, unit=" GiB")
        yield at_most("reserved memory", reserved / _GIB, card_bytes / _GIB, unit=" GiB")
    remove_folder(folder / "workspace")


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _config(request: Request, plain: Config, folder: Path) -> Config:
    """Return a preset's config with a random model and images of noise, for a few steps, a sample and a validation."""
    device, side_px = device_of(request), _TINY_PX if request.is_tiny else side_of(plain.data.resolution_px[0])
    images = request.folder / f"noise-{side_px}"
    if not images.is_dir():
        draw_noise(images, num_images=_NUM_IMAGES, side_px=side_px)
    per_step = plain.training.batch_size * plain.training.accumulation_steps
    tree = encode(for_measuring(plain, folder, epochs=1))
    tree["general"] |= {"train_device": device.name, "temp_device": offload_name(device)}
    tree["model"] |= {"base_model": str(_folder_of(request, plain)), "offline": True}
    tree["data"] |= {"resolution_px": [side_px]}
    tree["concepts"] = [
        {"name": "noise", "path": str(images), "repeats": math.ceil(_NUM_STEPS * per_step / _NUM_IMAGES)},
        {"name": "validation", "path": str(images), "kind": "validation"},
    ]
    prompt = {"prompt": "noise", "width_px": side_px, "height_px": side_px, "steps": _SAMPLE_STEPS}
    tree["sampling"] |= {"prompts": [prompt], "at_end": True}
    tree["validation"] |= {"every": {"n": 1, "unit": "epoch"}}
    tree["backup"] |= {"at_end": False}
    name = "model.safetensors" if plain.training.trains == "adapter" else "model"
    tree["output"] |= {"destination": str(folder / "workspace" / name)}
    if plain.training.trains == "full":
        tree["output"] |= {"model_format": "diffusers"}
    return decode(tree).config


def _folder_of(request: Request, plain: Config) -> Path:
    """Return the model of a preset; of other models only those of the stages stay on the disk."""
    model = _model_of(plain)
    if request.is_tiny:
        return next(model_of(request, s) for s in subjects(request) if s.family == published(model).family)
    kept = {model, *(subject.model for subject in subjects(request))}
    models = request.folder / "models"
    for other in models.iterdir() if models.is_dir() else ():
        if other.name not in kept:
            remove_folder(other)
    return random_model(request, model)
