"""Profiles the training steps of small models, or of a config, as `train --profile` does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.demo_runs import ENDLESS, demo_run
from benchmarks.host_waits import waits_per_step
from benchmarks.loop_speed import as_sdxl, for_measuring, run_setup
from benchmarks.toy_sdxl import write_toy_sdxl
from modules.config.schema import Config
from modules.system.devices import resolve_device
from modules.system.paths import from_root
from trainer.commands import ProfileNow
from trainer.run.finish import PreparedRun
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings

FILES = ("functions.txt", "operators.txt", "waits.txt", "trace.json", "host-waits.txt")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """A profile of some steps: its name, and the folder with its `FILES`."""

    name: str
    folder: Path

    def __str__(self) -> str:
        """Return the first rows of the tables."""
        shown = [f"{self.name}: {self.folder}"]
        for file, num_lines in (("functions.txt", 30), ("waits.txt", 12), ("host-waits.txt", 12)):
            lines = (self.folder / file).read_text(encoding="utf-8").splitlines()
            shown += ["", f"{file}:", *lines[:num_lines]]
        return "\n".join(shown) + "\n"


def profile_config(name: str, config: Config, folder: Path, *, num_steps: int, num_threads: int) -> StepProfile:
    """Train two epochs of a config, profile the next steps into a folder, and count the host's waits.

    The config must have enough epochs. An older profile in the folder is replaced.
    """
    setup = run_setup(config, num_threads)
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        run = prepare(setup)
        try:
            for _ in range(2):
                train_epoch(run.training)
            written = profile_steps(run, num_steps)
        finally:
            run.close()
    folder.mkdir(parents=True, exist_ok=True)
    for file in written.iterdir():
        shutil.copyfile(file, folder / file.name)
    waits = waits_per_step(config, warmup_epochs=12, epochs=2, num_threads=num_threads)
    lines = [f"The host waits for the device {sum(waits.values()):.2f} times a step:"]
    lines += [f"{times:8.2f}  {place}" for place, times in waits.items()]
    (folder / "host-waits.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return StepProfile(name, folder)


def profile_steps(run: PreparedRun, num_steps: int) -> Path:
    """Train until a profile of some steps is complete and return its folder. A run can be profiled once."""
    run.callbacks.profiling.num_steps = num_steps
    run.setup.desk.put(ProfileNow())
    folder = run.setup.run_dir / "profile"
    while not any(folder.glob("*/functions.txt")):
        train_epoch(run.training)
    (written,) = folder.iterdir()
    return written


def profile_all(
    device_name: str, out: Path, *, num_steps: int, num_threads: int, config: Config | None = None
) -> Iterator[StepProfile]:
    """Yield the profiles of a config, or of LoRAs of the demo model and of a small SDXL; their files go to `out`."""
    device = resolve_device(device_name)
    torch.set_num_threads(num_threads)
    with tempfile.TemporaryDirectory(prefix="darkroom-benchmark-") as name:
        folder = Path(name)
        if config is not None:
            configs = {"config": for_measuring(config, folder, epochs=ENDLESS)}
        else:
            demo = demo_run(folder, device, repeats=2)
            model = write_toy_sdxl(folder / "toy-sdxl", like=from_root(demo.model.base_model))
            configs = {"SD LoRA": demo, "SDXL LoRA": as_sdxl(demo, model)}
        for label, one in configs.items():
            folder_of_profile = out / label.replace(" ", "-").lower()
            yield profile_config(label, one, folder_of_profile, num_steps=num_steps, num_threads=num_threads)
