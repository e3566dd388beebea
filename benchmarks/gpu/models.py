"""The models that the stages train: published shapes with random weights, or small ones, and configs for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.demo_runs import demo_run
from benchmarks.full_size import draw_noise, full_size_config, write_random_model
from benchmarks.gpu.stage import Request
from benchmarks.t5_tokenizer import write_t5_tokenizer
from benchmarks.toy_sdxl import write_toy_sdxl
from modules.config.schema import Config
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import FAMILIES, published_model
from modules.families.spec import FamilySpec
from modules.system.atomic import remove_folder
from modules.system.devices import Device, resolve_device
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import PROGRAM_ROOT
from trainer.preflight.tokenizer import read_tokenizer

_DEMO, _FLOW_DEMO = PROGRAM_ROOT / "demo/model", PROGRAM_ROOT / "demo/flow/model"
_SMALL_PX, _FULL_PX = 64, 1024
_NUM_IMAGES, _NUM_TINY_IMAGES = 8, 4
_WORD = "noise"
_BYTES = 2  # of a weight


class NoRoomError(DarkroomError):
    """The disk is too small for a model."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A published model whose shapes are trained at one size, under its label."""

    label: str
    model: str
    side_px: int
    is_tiny: bool

    @property
    def family(self) -> str:
        """The name of its family."""
        return published_model(self.model).family


def subjects(request: Request) -> tuple[Subject, ...]:
    """Return SDXL and a flow model, at 1024 px or small."""
    side_px = _SMALL_PX if request.is_tiny else _FULL_PX
    names = {"SDXL": "sdxl", "Z-Image": "z_image"}
    return tuple(Subject(label, name, side_px, request.is_tiny) for label, name in names.items())


def device_of(request: Request) -> Device:
    """Return the device of a request. Raises DarkroomError where this machine does not have it."""
    return resolve_device(request.device)


@contextmanager
def memory_of(device: Device, num_bytes: int) -> Iterator[None]:
    """Limit the memory of a GPU that this process may use to a number of bytes; on a CPU nothing changes."""
    if device.type != "cuda":
        yield
        return
    total, index = torch.cuda.get_device_properties(device.torch).total_memory, device.torch.index or 0
    torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total), index)  # refuses a device without an index
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)


def offload_name(device: Device) -> str:
    """Return the name of an offload device other than the training device; on a CPU a second logical CPU."""
    return "cpu:1" if device.is_cpu else "cpu"


def small_run(request: Request, *, folder: str = "small", **changes: Any) -> Config:
    """Return a run of the demo preset that does not end by itself, with changes of its training."""
    device = device_of(request)
    config = demo_run(request.folder / folder, device, repeats=1, **changes)
    general = config.general.model_copy(update={"temp_device": offload_name(device)})
    return config.model_copy(update={"general": general})


def training_config(request: Request, subject: Subject, case: Mapping[str, Any]) -> Config:
    """Return the config that trains a subject with the settings of a case (`full_size_config`).

    Its model and its images are written if they are missing.
    """
    images = request.folder / f"noise-{subject.model}-{subject.side_px}"
    config = full_size_config(
        small_run(request), model_of(request, subject), images, case, side_px=subject.side_px, family=subject.family
    )
    if not images.is_dir():
        num_images = _NUM_TINY_IMAGES if subject.is_tiny else _NUM_IMAGES
        draw_noise(images, num_images=num_images, side_px=subject.side_px, caption=_caption(config))
    return config


def _caption(config: Config) -> str:
    """Return a caption of as many tokens as the memory estimate assumes."""
    tokenizer, text = read_tokenizer(config), config.family.text
    caption = _WORD
    while tokenizer.count(f"{caption}, {_WORD}") <= (text.usual_tokens or text.chunk_tokens):
        caption = f"{caption}, {_WORD}"
    return caption


def model_of(request: Request, subject: Subject) -> Path:
    """Return the folder of a subject's model, which is written if it is missing."""
    if not subject.is_tiny:
        return random_model(request, subject.model)
    if subject.model != "sdxl":
        return _FLOW_DEMO
    folder = request.folder / "models" / "small-sdxl"
    return folder if folder.is_dir() else write_toy_sdxl(folder, like=_DEMO)


def random_model(
    request: Request,
    model: str,
    *,
    name: str = "",
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    copies: int = 1,
) -> Path:
    """Return the folder of a published model's shapes with random weights, which is written if it is missing.

    A model with `changes` of its parts' configs has a folder of its own, called `name`. Other models are removed if the
    disk has no room for `copies` of it: the result of a fine-tune is a second one. Raises NoRoomError if that does not
    make enough room.
    """
    folder = request.folder / "models" / (name or model)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make_room(folder.parent, model, copies)
        tokenizers = _tokenizers(request.folder / "tokenizers" / model, FAMILIES[published_model(model).family])
        write_random_model(folder, model, device=device_of(request), tokenizers_from=tokenizers, changes=changes or {})
    return folder


def _make_room(models: Path, model: str, copies: int) -> None:
    configs, parts = shipped_configs(model), FAMILIES[published_model(model).family].parts
    empty = (empty_part(load_factory(p.model_class), configs[p.name]) for p in parts if p.name in configs)
    needed = copies * sum(_BYTES * weight.numel() for part in empty for weight in part.state_dict().values())
    for other in sorted(models.iterdir()):
        if shutil.disk_usage(models).free >= needed:
            break
        remove_folder(other)  # the next case that needs it writes it again
    if (free := shutil.disk_usage(models).free) < needed:
        raise NoRoomError(f"The weights of {model} need {needed / 1e9:.0f} GB of disk, {free / 1e9:.0f} GB are free.")


def _tokenizers(folder: Path, spec: FamilySpec) -> Path:
    """Return a folder with tokenizers of letters for a family's text encoders: with random weights any ids will do.

    CLIP's tokenizer comes with the program.
    """
    for part in spec.parts:
        place = folder / part.tokenizer_folder
        if part.role != "text_encoder" or part.class_name.startswith("CLIP") or place.is_dir():
            continue
        if "T5" in part.class_name or place.name.startswith("t5"):
            write_t5_tokenizer(place)
        else:
            shutil.copytree(_FLOW_DEMO / "tokenizer", place)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
