"""The speed of the training loop, compared to a bare loop."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

from benchmarks.bare import BareLoop, TypesOf, checkpoint_by_torch
from benchmarks.measure import Ratio, compare
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.config.usage import needs_autocast
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.commands import CommandDesk
from trainer.data.datasets import datasets_of
from trainer.launch import smooth_interpreter
from trainer.run.machine import Machine, machine_of
from trainer.run.model import load_model
from trainer.run.setup import Clocks, RunSetup
from trainer.run.training_run import prepare
from trainer.run_folder.event_log import EventLog
from trainer.run_folder.run_dir import new_run_dir
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings


def loop_against_bare(
    config: Config, *, rounds: int, num_threads: int, plain: Config | None = None, recomputes: TypesOf | None = None
) -> Ratio:
    """Return the speed of the training loop, compared to a bare loop; a round is an epoch of the config.

    The bare loop trains `plain`, if it is given, with the blocks `recomputes` under torch's own checkpointing. On a CPU
    with one thread, CPU time is compared. Both loops run without automatic garbage collection, as a run does: otherwise
    one would pay for the garbage of the other. Raises DarkroomError if the model is to be compiled and cannot be.
    """
    plain = plain or config
    machine, plain_machine = _machine(config), _machine(plain)
    with _settings(config, num_threads):
        run = prepare(run_setup(config, num_threads))
        # A second copy of the model, so that the loops do not train the same weights.
        model = load_model(plain, plain_machine)
        model.placement.enter("train")
        batches = list(run.training.loader.batches(0, first_epoch_step=0, step=0))
        bare = BareLoop.of(plain, model, batches, plain_machine.precision)
        if recomputes is not None:
            checkpoint_by_torch(model, recomputes)
        device = machine.train_device

        def ours() -> None:
            train_epoch(run.training)
            if run.model.compilation is not None and run.model.compilation.failure:
                raise DarkroomError(f"It cannot be compiled, because {run.model.compilation.failure}.")

        def theirs() -> None:
            with _settings(plain, num_threads):
                bare.run(device)

        try:
            with smooth_interpreter():
                return compare(
                    ours,
                    theirs,
                    rounds=rounds,
                    device=device,
                    in_cpu_time=device.is_cpu and num_threads == 1,
                )
        finally:
            run.close()
            model.placement.close()


def _machine(config: Config) -> Machine:
    training = config.training
    return machine_of(
        config.general,
        training.precision,
        autocast_cache=training.autocast_cache,
        steps_autocast=needs_autocast(config),
    )


def _settings(config: Config, num_threads: int) -> AbstractContextManager[None]:
    return process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False)


def demo_config(preset: Config, folder: Path, *, repeats: int, epochs: int, **changes: Any) -> Config:
    """Return the demo preset as a run for measuring."""
    tree = encode(for_measuring(preset, folder, epochs=epochs, **changes))
    tree["concepts"] = [concept | {"repeats": repeats} for concept in tree["concepts"]]
    return decode(tree).config


def for_measuring(config: Config, folder: Path, *, epochs: int, **changes: Any) -> Config:
    """Return a config as a run for measuring: its own folders, no samples, no backups, and changes of its training.

    On a GPU an automatic choice of compiled blocks would compare steps while they are measured: it is off.
    """
    tree = encode(config)
    if tree["model"]["compile"] == "auto":
        tree["model"] |= {"compile": "off"}
    tree["general"] |= {"workspace_dir": str(folder / "workspace"), "cache_dir": str(folder / "cache")}
    tree["training"] |= {"epochs": epochs, **changes}
    tree["sampling"] |= {"every": {"unit": "never"}, "at_start": False, "at_end": False}
    tree["validation"] |= {"every": {"unit": "never"}}
    tree["backup"] |= {"every": {"unit": "never"}}
    tree["output"] |= {"destination": str(folder / "lora.safetensors")}
    return decode(tree).config


def as_sdxl(config: Config, model: Path) -> Config:
    """Return the config for an SDXL model."""
    tree = encode(config)
    tree["model"] |= {"base_model": str(model), "family": "sdxl"}
    tree["training"] |= {"learning_rate": 1e-5}
    return decode(tree).config


def with_large_unet(config: Config, folder: Path) -> Config:
    """Return the config with the demo's UNet replaced by one with random weights whose step takes over a second."""
    model = folder / "large-unet"
    shutil.copytree(from_root(config.model.base_model), model, dirs_exist_ok=True)
    small = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(model / "unet"))
    large = UNet2DConditionModel.from_config(
        {**small.config, "block_out_channels": (128, 256), "layers_per_block": 2, "sample_size": 32}
    )
    shutil.rmtree(model / "unet")
    large.save_pretrained(model / "unet")
    tree = encode(config)
    tree["model"] |= {"base_model": str(model)}
    tree["data"] |= {"resolution_px": [128]}
    return decode(tree).config


def run_setup(config: Config, num_threads: int = 1) -> RunSetup:
    """Return the setup of a run of a config; its events only go to the log in its folder."""
    clocks = Clocks()
    log = EventLog(lambda event: None, clocks.now)
    run_dir = new_run_dir(Path(config.general.workspace_dir), now=datetime.now())
    log.open(run_dir)
    datasets = datasets_of(config)
    return RunSetup(config, datasets, _machine(config), CommandDesk(), log, clocks, run_dir, num_threads, None, None)
