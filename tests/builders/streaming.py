"""Saves models that do not fit into memory, in a process of its own: `python -m tests.builders.streaming`.

Each weight is a single number, expanded to a large tensor with strides of zero: it takes no memory until it is read as
a whole. While saving, the process may allocate only one tensor and a little more.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from modules.adapters.lora_layers import LoraShape, attach_lora
from modules.adapters.protocol import target_layers
from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from modules.formats import safetensors_io
from modules.optim.build import build_optimizer
from modules.optim.ema import Ema
from modules.optim.optimizers.adamw import AdamW
from modules.optim.param_groups import TrainGroup
from modules.settings.layer_filter import EVERYTHING
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.models import write_sd_folder
from tests.builders.more_models import write_sdxl_folder
from tests.builders.pipelines import load_tiny
from trainer.data.datasets import datasets_of
from trainer.export.adapter import AdapterExporter
from trainer.export.exporter import SaveMoment
from trainer.export.model import ModelExporter
from trainer.methods.denoise import Denoise
from trainer.run.checkpoint import write_state
from trainer.run_folder.backup import write_backup
from trainer.step.counters import Counters
from trainer.step.stepper import Stepper

TENSOR_BYTES = 1 << 20
LITTLE_BYTES = 48 << 20  # chunks of 16 MB that are cast and checked, Python's own memory, fragmentation
MODEL_BYTES = 160 << 20
NOW = datetime(2026, 1, 1)
FORMS = {
    "single file": {"training": {"trains": "full"}, "output": {"model_format": "single_file"}},
    "folder": {"training": {"trains": "full"}, "output": {"model_format": "diffusers"}},
    "kohya": {"output": {"format": "kohya"}},
    "diffusers": {"output": {"format": "diffusers"}},
}
FAMILIES = {"sd": write_sd_folder, "sdxl": write_sdxl_folder}
# SDXL for its layers that are joined from three when written; everything else of a form is the same for both.
SAVES = [*(("sd", form) for form in FORMS), ("sdxl", "single file")]


@contextmanager
def limited(more_bytes: int) -> Iterator[None]:
    """Limit the process to its current memory plus this many bytes."""
    former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + more_bytes, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


def shown(shape: tuple[int, ...], num_bytes: int) -> torch.Tensor:
    """Return a float32 tensor of about this many bytes, a shape grown along its first axis, that takes no memory."""
    rows = torch.Size(shape[1:]).numel() * 4
    return torch.full((1,), 0.1).expand(max(shape[0], num_bytes // rows), *shape[1:])


def blow_up(family: ModelFamily, num_bytes: int) -> dict[str, torch.Tensor]:
    """Expand every weight of a family to this many bytes and return the weights by full name."""
    weights = {}
    for name, part in family.parts.items():
        for key, parameter in part.module.named_parameters():
            parameter.data = shown(tuple(parameter.shape), num_bytes) if parameter.dim() else parameter.data
            weights[f"{name}.{key}"] = parameter.detach()
    return weights


def lora_exporter(family: ModelFamily, config: Config) -> AdapterExporter:
    """Return the exporter for the LoRA of a family's UNet."""
    unet = family.parts["unet"]
    targets = target_layers(unet.module, "denoiser", layers=EVERYTHING, reaches=unet.reaches)
    adapter = attach_lora("unet", unet.module, targets, LoraShape(2, 1.0, 0.0, torch.float32), seed=1)
    return AdapterExporter([adapter], family.lora_naming, config, datasets_of(config).training)


def saving(family_name: str, form: str, folder: Path) -> Callable[[int], Callable[[], None]]:
    """Return a function that saves a family in a form, with this many bytes per weight."""
    config = small_config(folder, model=folder / family_name, images=folder / "images")
    config = laid_over(laid_over(config, FORMS[form]), {"output": {"dtype": "float16"}})

    def save(num_bytes: int) -> Callable[[], None]:
        family: ModelFamily = load_tiny(folder / family_name)
        exporter: Any = ModelExporter(family, config)
        if config.training.trains == "adapter":
            exporter = lora_exporter(family, config)
            num_bytes *= 2  # there are fewer of them
        weights = blow_up(family, num_bytes)
        path = folder / "out" / f"model{exporter.suffix}"
        return lambda: exporter.save(path, weights, SaveMoment(NOW, step=1, epoch=1))

    return save


def backup(folder: Path) -> Callable[[int], Callable[[], None]]:
    """Return a function that backs up a fine-tune with this many bytes per weight: weights, optimizer state, EMA."""
    config = small_config(folder, model=folder / "sd", images=folder / "images")

    def prepare(num_bytes: int) -> Callable[[], None]:
        names = [f"unet.{n}" for n in range(MODEL_BYTES // TENSOR_BYTES)]
        parameters = {n: nn.Parameter(shown((1, 1024), num_bytes)) for n in names}
        group = TrainGroup("unet", parameters, 1e-4)
        optimizer = build_optimizer([group], AdamW())
        for parameter in parameters.values():
            state = {key: parameter.detach() for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(1.0), **state}
        ema = Ema({}, decay=0.9, update_every_steps=1, device=CPU)
        ema.averages = {n: p.detach() for n, p in parameters.items()}
        stepper = Stepper(
            [group], optimizer, scaler=torch.amp.GradScaler("cpu", enabled=False), clip_grad_norm=None,
            rate_factor=lambda step: 1.0, ema=ema,
        )  # fmt: skip
        facts: dict[str, Any] = {
            "config": config, "counters": Counters(1), "num_threads": 1, "plan": "", "validation": {},
            "method": Denoise(), "rewards": {},
        }  # fmt: skip

        def write(into: Path) -> None:
            write_state(into, groups=[group], stepper=stepper, **facts)

        def save() -> None:
            write_backup(folder / "run", step=1, epoch=1, now=NOW, write=write)

        return save

    return prepare


def hoard() -> None:
    """Plant the bug: keep every chunk that is written."""
    plain, kept = safetensors_io._parts_of, []

    def parts_of(*arguments: Any) -> Iterator[memoryview]:
        for part in plain(*arguments):
            kept.append(bytes(part))
            yield part

    safetensors_io._parts_of = parts_of


def tried(prepare: Callable[[int], Callable[[], None]], folder: Path) -> str:
    """Save small tensors first, so that all imports are done, then large ones within the limit; return the error."""
    prepare(1)()
    save = prepare(TENSOR_BYTES)
    try:
        with limited(TENSOR_BYTES + LITTLE_BYTES):
            save()
    except (MemoryError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        written = sum(f.stat().st_size for kind in ("out", "run") for f in (folder / kind).rglob("*.safetensors"))
        shutil.rmtree(folder / "out", ignore_errors=True)
        shutil.rmtree(folder / "run", ignore_errors=True)
    return "" if written > 1.5 * LITTLE_BYTES else f"only {written} bytes were written, which proves nothing"


def main(folder: Path) -> None:
    """Run every case and print the errors by case, as JSON."""
    torch.set_num_threads(1)
    draw_folder(folder / "images", sizes=[(64, 64)])
    for name, write in FAMILIES.items():
        write(folder / name)
    errors = {f"{name} {form}": tried(saving(name, form, folder), folder) for name, form in SAVES}
    errors["backup"] = tried(backup(folder), folder)
    hoard()
    errors["planted"] = tried(backup(folder), folder)
    print(json.dumps(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
