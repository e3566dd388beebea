"""The presets of stage 5: some steps, a sample and a validation in the memory of the card that each names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from benchmarks.gpu.full_size import ESTIMATE_SHARE
from benchmarks.gpu.models import NoRoomError, device_of, has_holes, memory_of, subjects
from benchmarks.gpu.preset_runs import NUM_IMAGES, folder_name, num_steps, run_config
from benchmarks.gpu.stage import Case, Check, Finding, Request, at_most, within
from benchmarks.loop_speed import run_setup
from benchmarks.rows import Row
from modules.config.presets import Preset, list_presets
from modules.config.schema import Config
from modules.config.usage import learns_from
from modules.data.buckets import Size
from modules.estimate.run_plan import RUNTIME_BYTES
from modules.families.registry import FAMILIES
from modules.settings.shared_types import side_of
from modules.system.atomic import remove_folder
from trainer.preflight.room import on_card
from trainer.preflight.run_budget import known_budget
from trainer.run import training_run
from trainer.step.precision import process_settings

_GIB = 1 << 30


def cases(request: Request) -> Sequence[Case]:
    """Return a case for each built-in preset that names a card, one model after the other.

    Those that sample the images they learn from take longest, and come last.
    """
    chosen = {p: p.load().config for p in list_presets() if p.is_built_in and p.card_gb and not p.is_demo}
    if request.is_tiny:
        chosen = _of_each_kind(request, chosen)
    families = list(FAMILIES)

    def place(preset: Preset) -> tuple[bool, int, str, float]:
        config = chosen[preset]
        return learns_from(config) == "prompts", families.index(preset.group), folder_name(config), preset.card_gb

    return [Case(f"preset: {p.name}", partial(_run, request, p, chosen[p])) for p in sorted(chosen, key=place)]


def _of_each_kind(request: Request, chosen: dict[Preset, Config]) -> dict[Preset, Config]:
    """Return one preset for each family that has a small model, each training target, and each kind of data."""
    families = {subject.family for subject in subjects(request)}
    base = Config().model.variant
    kinds = {
        (c.model.family.name, c.training.trains, learns_from(c)): (p, c)
        for p, c in chosen.items()
        if c.model.variant == base  # of others there is no small model
    }
    return dict(preset for (family, *_), preset in kinds.items() if family in families)


def _run(request: Request, preset: Preset, plain: Config, _seconds: float) -> Iterator[Finding]:
    """Carry out a run of a preset as if the device had no more memory than its card."""
    device, folder = device_of(request), request.folder / "presets"
    try:
        config = run_config(request, plain, folder)
    except NoRoomError as reason:
        yield Check("is run", str(reason), "enough disk", False)
        return
    if has_holes(Path(config.model.base_model)):
        yield Row("weights", "drawn for the first block of each kind; the disk is too small for those of the others")
    side_px = side_of(config.data.resolution_px[0])
    card_bytes = preset.card_gb * _GIB - RUNTIME_BYTES  # what CUDA itself takes, the allocator does not count
    budget = known_budget(config, {Size(side_px, side_px): NUM_IMAGES})
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
    happens = {"StepFinished": num_steps(config), "SampleReady": 1}
    if learns_from(config) == "images":
        happens["ValidationFinished"] = 1
    for name, wanted in happens.items():
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
