"""All measurements, as rows of a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.cache_speed import cache_against_bare
from benchmarks.demo_runs import demo_preset, demo_run
from benchmarks.full_size import FullSize, measure_cases
from benchmarks.gpu.full_size import step_words
from benchmarks.host_waits import waits_per_step
from benchmarks.loop_speed import as_sdxl, loop_against_bare, with_large_unet
from benchmarks.loop_variants import LoopVariant, measure_variants
from benchmarks.measure import Ratio
from benchmarks.preference_cases import DEMOS
from benchmarks.preference_command import reported_rows
from benchmarks.quantized_bases import quantized_bases
from benchmarks.random_models import Shapes, write_random_model
from benchmarks.rows import Row
from benchmarks.saving_memory import Saving, of_denoiser, ways_against_none, with_parts
from benchmarks.several import two_against_one
from benchmarks.start_time import start_against_bare
from benchmarks.toy_sdxl import write_toy_sdxl
from benchmarks.waiting import waiting_share
from modules.config.schema import Config
from modules.families.parts.forwards import block_types, transformer_types
from modules.system.devices import Device, resolve_device
from modules.system.paths import PROGRAM_ROOT, from_root


def measure_all(device_name: str, *, num_threads: int, wanted: frozenset[str]) -> Iterator[Row]:
    """Yield the rows of the selected measurements (`MEASUREMENTS` of the command line)."""
    device = resolve_device(device_name)
    torch.set_num_threads(num_threads)
    with tempfile.TemporaryDirectory(prefix="darkroom-benchmark-") as name:
        folder = Path(name)
        measurements: dict[str, Callable[[], Iterator[Row]]] = {
            # First, because a child's peak includes the memory of this process at its start.
            "memory": lambda: _memory(folder, device),
            "start": lambda: _start(folder, device),
            "loop": lambda: _loop(folder, device, num_threads),
            "checkpointed-loop": lambda: _checkpointed_loop(folder, device, num_threads),
            "large-loop": lambda: _large_loop(folder, device, num_threads),
            "host-waits": lambda: _host_waits(folder, device, num_threads),
            "several": lambda: _several(folder, device),
            "loop-variants": lambda: _loop_variants(folder, device, num_threads),
            "saving": lambda: _saving(folder, device, num_threads),
            "quantization": lambda: _quantization(folder, device, num_threads),
            "full-size": lambda: _full_size(folder, device, num_threads),
            "waiting": lambda: _waiting(folder, device, num_threads),
            "caching": lambda: _caching(folder, device),
            "preference": lambda: _preference(folder, device, num_threads),
            "window": _window,
        }
        for key, measure in measurements.items():
            if key in wanted:
                yield from measure()


def machine_facts(device_name: str, num_threads: int) -> dict[str, Any]:
    """Return facts about the machine of the measurements."""
    device = resolve_device(device_name)
    return {
        "device": torch.cuda.get_device_name(device.torch) if device.type == "cuda" else platform.processor() or "cpu",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "threads": num_threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _start(folder: Path, device: Device) -> Iterator[Row]:
    start = start_against_bare(_one_epoch(demo_preset(device)), folder / "start", rounds=3)
    phases = ", ".join(f"{name.replace('_', ' ')} {seconds:.2f}" for name, seconds in start.phases.items())
    yield Row(
        "from start to first step, demo preset",
        f"{start.until_first_step:.2f} s, {start.cpu:.2f} s of CPU time ({phases}); a bare script {start.bare:.2f} s, "
        f"{start.bare_cpu:.2f} s of CPU time",
        "under 5 s on two cores",
        asdict(start) | {"until_first_step": start.until_first_step},
    )
    yield Row("from last step to end, demo preset", f"{start.ending:.2f} s", "", {"ending": start.ending})


def _one_epoch(config: Config) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"epochs": 1})})


def _loop(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    config = demo_run(folder, device, repeats=6)  # six steps a round
    yield _ratio_row("training loop, demo model", loop_against_bare(config, rounds=15, num_threads=num_threads), 0.97)
    model = write_toy_sdxl(folder / "toy-sdxl", like=from_root(config.model.base_model))
    config = as_sdxl(config, model)
    yield _ratio_row("training loop, small SDXL", loop_against_bare(config, rounds=15, num_threads=num_threads), 0.97)


def _checkpointed_loop(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    """Compare with bare loops that checkpoint the same blocks by torch alone."""
    demo = demo_run(folder / "checkpointed", device, repeats=6)
    model = write_toy_sdxl(folder / "checkpointed-sdxl", like=from_root(demo.model.base_model))
    for name, config in (("demo model", demo), ("small SDXL", as_sdxl(demo, model))):
        plain = with_parts(config, {"checkpointing": "off"})
        for mode, words, types in (
            ("block", "per block", block_types),
            ("transformer", "transformer blocks only", transformer_types),
        ):
            ours = with_parts(config, {"checkpointing": mode})
            result = loop_against_bare(ours, rounds=7, num_threads=num_threads, plain=plain, recomputes=types)
            yield _ratio_row(f"training loop, {name}, checkpointing {words}", result, 0.97)


def _large_loop(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    config = with_large_unet(demo_run(folder, device, repeats=1, batch_size=6), folder)
    yield _ratio_row("training loop, large UNet", loop_against_bare(config, rounds=5, num_threads=num_threads), 0.97)


def _host_waits(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    """Count the waits of a step after the first ones, in which each weight is watched until it has been updated."""
    demo = demo_run(folder, device, repeats=1, batch_size=2)
    for trains, what in (("adapter", "LoRA"), ("full", "fine-tune")):
        config = of_denoiser(demo, trains=trains)
        waits = waits_per_step(config, warmup_epochs=5, epochs=1, num_threads=num_threads)
        value = f"{sum(waits.values()):.2f} a step" + "".join(f"; {n:.2f} {place}" for place, n in waits.items())
        yield Row(f"waits for the device, demo model, {what}", value, "none", dict(waits))


def _several(folder: Path, device: Device) -> Iterator[Row]:
    name = "two processes against one, a thread each"
    if not device.is_cpu:
        yield Row(name, "measured on a CPU only")
        return
    demo = demo_run(folder, device, repeats=6, batch_size=6)
    large = with_large_unet(demo_run(folder, device, repeats=1, batch_size=6), folder)
    batches = large.model_copy(update={"training": large.training.model_copy(update={"accumulation_steps": 2})})
    for words, config in (("demo model", demo), ("large UNet", large), ("large UNet, whole batches", batches)):
        both = two_against_one(config, folder, rounds=5)
        yield Row(
            f"{name}, {words}",
            f"{both.together.ratio:.2f} times as fast ({both.together.ratio / 2:.0%} of linear); two runs at once "
            f"{both.apart.ratio:.2f}, with half the batch {both.halves.ratio:.2f}; CPU time "
            f"{both.cpu_time['together']:.2f}, {both.cpu_time['apart']:.2f} and {both.cpu_time['halves']:.2f}",
            "at least 95 % of linear" if config is not demo else "",
            asdict(both),
        )


def _loop_variants(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    """Compare each variant of the loop with the same bare one, which has none of the settings."""
    demo = demo_run(folder, device, repeats=2, clip_grad_norm=None)  # two steps a round
    config = as_sdxl(demo, write_toy_sdxl(folder / "variants-sdxl", like=from_root(demo.model.base_model)))

    def measure(variant: LoopVariant) -> Ratio:
        return loop_against_bare(variant.config, rounds=5, num_threads=num_threads, plain=variant.plain)

    for result in measure_variants(config, measure):
        name = f"training loop, small SDXL, {result.name}"
        yield Row(name, result.reason) if result.speed is None else _ratio_row(name, result.speed, None)


def _saving(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    small = demo_run(folder, device, repeats=2)  # two steps a round
    small = as_sdxl(small, write_toy_sdxl(folder / "saving-sdxl", like=from_root(small.model.base_model)))
    large = with_large_unet(demo_run(folder, device, repeats=1, batch_size=6), folder / "saving-sd")  # one step a round
    for model, config in (("large SD UNet", large), ("small SDXL", small)):
        config = _with_offload_device(config, device)
        for trains in ("adapter", "full"):
            for saving in ways_against_none(of_denoiser(config, trains=trains), rounds=3, num_threads=num_threads):
                yield _saving_row(model, trains, saving)


def _saving_row(model: str, trains: str, saving: Saving) -> Row:
    speed, memory = saving.speed, saving.peak_bytes / saving.plain_peak_bytes
    value = (
        f"{1 / speed.ratio:.2f} of the time ({1 / speed.highest:.2f} to {1 / speed.lowest:.2f}), {memory:.2f} of the "
        f"memory, {saving.peak_bytes / 1e6:.1f} MB against {saving.plain_peak_bytes / 1e6:.1f} MB"
    )
    what = {"adapter": "LoRA", "full": "fine-tune"}[trains]
    numbers = asdict(speed) | {"peak_bytes": saving.peak_bytes, "plain_peak_bytes": saving.plain_peak_bytes}
    return Row(f"{model}, {what}: {saving.way}", value, numbers=numbers)


def _quantization(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    """Quantize the demo model's UNet for the error, and a larger one, whose weights are random, for the speed."""
    trained = demo_run(folder / "quantization", device, repeats=1)
    config = with_large_unet(demo_run(folder / "quantization", device, repeats=1, batch_size=6), folder)
    for base in quantized_bases(trained, config, folder, rounds=3, num_threads=num_threads):
        value = (
            f"{base.bytes_per_weight:.3f} bytes per weight, output off by {base.output_error:.2%}, "
            f"{base.speed.ratio:.2f} of the speed ({base.speed.lowest:.2f} to {base.speed.highest:.2f})"
        )
        numbers = {"bytes_per_weight": base.bytes_per_weight, "output_error": base.output_error}
        yield Row(f"UNet in {base.case.label}", value, numbers=numbers | asdict(base.speed))


def _full_size(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    """Train SDXL's shapes at 1024 px on a GPU; on a CPU, where that would take hours, a small model at 64 px."""
    config = _with_offload_device(demo_run(folder, device, repeats=1), device)
    if device.is_cpu:
        model, side_px = write_toy_sdxl(folder / "small-sdxl", like=from_root(config.model.base_model)), 64
    else:
        model, side_px = write_random_model(folder / "full-sdxl", Shapes("sdxl")), 1024
    name = "small SDXL" if device.is_cpu else "SDXL"
    for result in measure_cases(config, model, folder, device, side_px=side_px, seconds=20.0, num_threads=num_threads):
        yield _full_size_row(f"{name} at {side_px} px, {result.case}", result)


def _full_size_row(name: str, result: FullSize) -> Row:
    return Row(name, step_words(result), "estimated within 10 %", asdict(result))


def _with_offload_device(config: Config, device: Device) -> Config:
    """Return the config with an offload device other than the training device; on a CPU a second logical CPU."""
    offload_device = "cpu:1" if device.is_cpu else "cpu"
    return config.model_copy(update={"general": config.general.model_copy(update={"temp_device": offload_device})})


def _waiting(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    small = demo_run(folder / "waiting", device, repeats=6)
    large = with_large_unet(demo_run(folder / "waiting-large", device, repeats=1, batch_size=6), folder)
    for name, config, rounds in (("demo model", small, 10), ("large UNet", large, 3)):
        waits = waiting_share(config, rounds=rounds, num_threads=num_threads)
        milliseconds = waits.waited_seconds / waits.num_steps * 1000
        value = f"{waits.share:.2%} of {waits.num_steps} steps, {milliseconds:.2f} ms each"
        yield Row(f"waiting for batches, {name}", value, "under 2 %", asdict(waits) | {"share": waits.share})


def _caching(folder: Path, device: Device) -> Iterator[Row]:
    on_gpu = device.type == "cuda"
    result = cache_against_bare(folder, device, num_images=32 if on_gpu else 3, side_px=512, rounds=5 if on_gpu else 3)
    yield _ratio_row("caching images, SD's VAE at 512 px", result, 0.95)


def _memory(folder: Path, device: Device) -> Iterator[Row]:
    """Train the demo briefly in its own process and read its peak memory."""
    command = [
        sys.executable, "-m", "trainer", "train", "#demo",
        "--set", f"general.workspace_dir={json.dumps(str(folder / 'memory'))}",
        "--set", f"general.train_device={json.dumps(device.name)}",
        "--set", "training.epochs=5",
        "--set", f"output.destination={json.dumps(str(folder / 'memory.safetensors'))}",
    ]  # fmt: skip
    if sys.platform == "win32":
        yield Row("peak memory, demo run", "not measured on Windows")
        return
    import resource

    subprocess.run(command, cwd=PROGRAM_ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    yield Row("peak memory, demo run", f"{peak_gib:.2f} GiB", numbers={"peak_gib": peak_gib})


def _preference(folder: Path, device: Device, num_threads: int) -> Iterator[Row]:
    """Train every method that learns from rewards or preferences on the demo models, each from the same start."""
    for name, demo in DEMOS.items():
        yield from reported_rows(demo, folder / "preference" / name, device, num_threads=num_threads)


def _window() -> Iterator[Row]:
    """Run the window's benchmark in its own process."""
    command = [sys.executable, "-m", "benchmarks.window", "--json"]
    done = subprocess.run(command, cwd=PROGRAM_ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Row("window", f"not measured: {reason}")
        return
    result = json.loads(done.stdout)
    starts: list[float] = result["start_seconds"]
    median = result["start_median_seconds"]
    yield Row(
        "window start",
        f"{median:.2f} s ({min(starts):.2f} to {max(starts):.2f})",
        "at most 1.5 s",
        {"median_seconds": median, "seconds": starts},
    )
    for gaps in result["gaps"]:
        yield Row(
            f"window gaps, {gaps['phase']}",
            f"p99 {gaps['p99_ms']:.0f} ms, max {gaps['max_ms']:.0f} ms over {gaps['seconds']:.0f} s",
            "p99 under 50 ms, max under 100 ms (busy cores: 100, 250)",
            gaps,
        )


def _ratio_row(name: str, result: Ratio, goal: float | None) -> Row:
    value = (
        f"{result.ratio:.3f} of the bare speed ({result.lowest:.3f} to {result.highest:.3f}), "
        f"{result.ours_seconds:.2f} s against {result.bare_seconds:.2f} s"
    )
    return Row(name, value, "" if goal is None else f"at least {goal:.2f}", asdict(result))
