"""The models that the stages train: published shapes with random weights, or small ones, and configs for them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.demo_runs import demo_run
from benchmarks.full_size import draw_noise, full_size_config
from benchmarks.gpu.stage import Request
from benchmarks.random_models import Shapes, write_random_model
from benchmarks.t5_tokenizer import write_t5_tokenizer
from benchmarks.toy_sdxl import write_toy_sdxl
from modules.config.schema import Config
from modules.families.registry import published_model
from modules.families.spec import FamilySpec
from modules.system.atomic import remove_folder
from modules.system.devices import Device, resolve_device
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from trainer.preflight.captions import read_tokenizer

_DEMO, _FLOW_DEMO = PROGRAM_ROOT / "demo/model", PROGRAM_ROOT / "demo/flow/model"
_SMALL_PX, _FULL_PX = 64, 1024
_NUM_TOKENS = 445  # of the flow demo's tokenizer
IMAGE_TOKENS = {
    token: _NUM_TOKENS + place for place, token in enumerate(("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"))
}
"""The tokens of an image in a prompt, with the ids that they have behind the others."""
_NUM_IMAGES, _NUM_TINY_IMAGES = 8, 4
_WORD = "noise"
WITH_HOLES = "-with-holes"
"""The end of the names of folders whose files have holes in place of most weights."""


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
        return random_model(request, Shapes(subject.model))
    if subject.model != "sdxl":
        return _FLOW_DEMO
    folder = request.folder / "models" / "small-sdxl"
    return folder if folder.is_dir() else write_toy_sdxl(folder, like=_DEMO)


def random_model(request: Request, shapes: Shapes, *, name: str = "", copies: int = 1) -> Path:
    """Return the folder of a published model's shapes with random weights, which is written if it is missing.

    A model of other shapes than the published ones has a folder of its own, called `name`. Other models are removed if
    the disk has no room for `copies` of it: the result of a fine-tune is a second one. If that does not make enough
    room, the files have holes (`write_random_model`), which the folder's name shows (`has_holes`). Raises NoRoomError
    if there is not enough for those either.
    """
    whole = request.folder / "models" / (name or shapes.model)
    with_holes = whole.with_name(f"{whole.name}{WITH_HOLES}")
    if known := next((folder for folder in (whole, with_holes) if folder.is_dir()), None):
        return known
    whole.parent.mkdir(parents=True, exist_ok=True)
    has_holes = not _has_room(whole.parent, shapes, copies)
    tokenizers = _tokenizers(request.folder / "tokenizers" / whole.name, shapes.spec)
    return write_random_model(
        with_holes if has_holes else whole,
        shapes,
        device=device_of(request),
        tokenizers_from=tokenizers,
        has_holes=has_holes,
    )


def has_holes(folder: Path) -> bool:
    """Return whether a folder of `random_model` has zeros in place of most weights."""
    return folder.name.endswith(WITH_HOLES)


def _has_room(models: Path, shapes: Shapes, copies: int) -> bool:
    """Make room for a model, and return whether there is enough; if not, there is for one with holes."""
    num_bytes = shapes.num_bytes(has_holes=False)
    for other in sorted(models.iterdir()):
        if shutil.disk_usage(models).free >= copies * num_bytes:
            break
        remove_folder(other)  # the next case that needs it writes it again
    free, least = shutil.disk_usage(models).free, shapes.num_bytes(has_holes=True) + (copies - 1) * num_bytes
    if free < least:
        raise NoRoomError(
            f"The weights of {shapes.model} need {least / 1e9:.0f} GB of disk, {free / 1e9:.0f} GB are free."
        )
    return free >= copies * num_bytes


def _tokenizers(folder: Path, spec: FamilySpec) -> Path:
    """Return a folder with tokenizers of letters for a family's text encoders: with random weights any ids will do.

    CLIP's tokenizer comes with the program; that of an encoder that sees images has their tokens, too.
    """
    for part in spec.parts:
        place = folder / part.tokenizer_folder
        if part.role != "text_encoder" or part.class_name.startswith("CLIP") or place.is_dir():
            continue
        if "T5" in part.class_name or place.name.startswith("t5"):
            write_t5_tokenizer(place)
        else:
            shutil.copytree(_FLOW_DEMO / "tokenizer", place)
        if spec.seen_with_captions is not None:
            _add_tokens(place / "tokenizer.json", IMAGE_TOKENS)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _add_tokens(file: Path, tokens: Mapping[str, int]) -> None:
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    like = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [{**like, "content": token, "id": number} for token, number in tokens.items()]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
