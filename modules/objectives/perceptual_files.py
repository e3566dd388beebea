"""The files of the perceptual distance LPIPS: VGG16 and the weights of its features.

Both are published at Hugging Face: timm/vgg16.tv_in1k has torchvision's weights (BSD-3-Clause), and vivym/lpips has
LPIPS's of v0.1 (Zhang et al. 2018; BSD-2-Clause). The user's own files may name its tensors as torchvision, timm or the
package `lpips` do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.published_files import FileRequest, PublishedFile, file_request, problem_of_file
from modules.memory.part_plan import FLOAT32_BYTES
from modules.objectives.methods.reconstruction import Reconstruction
from modules.system.errors import DarkroomError
from modules.system.problem import Problem

NEEDED_BY = "The perceptual loss"
VGG_FILE = PublishedFile(
    "vgg_file",
    "timm/vgg16.tv_in1k",
    "model.safetensors",
    553_000_000,
    revision="b8d8aa2dd860af9233c8c67385a8097fd6c35d3f",
)
LPIPS_FILE = PublishedFile(
    "lpips_file",
    "vivym/lpips",
    "vgg_lpips_linear.safetensors",
    6_260,
    revision="270571f1fb2a2c4c5f920cec96cd87838c345982",
)

STAGES = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
"""The convolutions of VGG16, by their numbers in torchvision. Each stage but the first begins with a max pooling."""
WIDTHS = (64, 128, 256, 512, 512)
"""The channels of the published VGG16's stages."""

_ALSO_ACCEPTED = "torchvision's or timm's VGG16, or a file of the package lpips"

Shapes = Mapping[str, tuple[int, ...]]


def requests_of(settings: Reconstruction) -> tuple[FileRequest, FileRequest]:
    """Return the file of VGG16 and the file of LPIPS's weights that a run of the VAE needs."""
    return file_request(VGG_FILE, settings.vgg_file), file_request(LPIPS_FILE, settings.lpips_file)


def vgg_names(names: Collection[str]) -> list[list[str]] | None:
    """Return the names of VGG16's convolutions without ".weight" by stage, as a file spells them; None if it has none.

    `names` are the names of a file's tensors.
    """
    for form in ("features.{number}", "net.slice{stage}.{number}", "{number}"):
        layers = [[form.format(number=n, stage=i) for n in stage] for i, stage in enumerate(STAGES, 1)]
        if all(f"{layer}.{kind}" in names for stage in layers for layer in stage for kind in ("weight", "bias")):
            return layers
    return None


def lpips_names(names: Collection[str]) -> list[str] | None:
    """Return the names of the weights of LPIPS by stage, as a file spells them; None if it has none."""
    for form in ("lin{stage}.model.1.weight", "lins.{stage}.model.1.weight", "{stage}.weight"):
        weights = [form.format(stage=stage) for stage in range(len(STAGES))]
        if all(name in names for name in weights):
            return weights
    return None


def refusal_of_vgg(path: Path, shapes: Shapes) -> DarkroomError | None:
    """Return an error for a file that does not contain VGG16's convolutions, each fitting the one before it."""
    stages, width_in = vgg_names(shapes), 3
    if stages is None:
        return DarkroomError(
            f"{path.name} does not contain the convolutions of VGG16 (features.0.weight to features.28.weight).",
            advice=f"Choose {_ALSO_ACCEPTED}, or leave the setting empty for the published one ({VGG_FILE.repo}).",
        )
    for layer in (layer for stage in stages for layer in stage):
        shape = shapes[f"{layer}.weight"]
        if len(shape) != 4 or shape[1:] != (width_in, 3, 3):
            return DarkroomError(
                f"{path.name} is not a VGG16: {layer}.weight should have {width_in} input channels and a kernel of 3 x "
                f"3, and has the shape {shape}.",
                advice=f"Choose {_ALSO_ACCEPTED}.",
            )
        width_in = shape[0]
    return None


def refusal_of_lpips(path: Path, shapes: Shapes) -> DarkroomError | None:
    """Return an error for a file that does not contain the five weights of LPIPS for VGG16."""
    names = lpips_names(shapes)
    if names is not None and all(len(shapes[n]) == 4 and shapes[n][::2] == (1, 1) for n in names):
        return None
    return DarkroomError(
        f"{path.name} does not contain the weights of LPIPS for VGG16 (lin0.model.1.weight to lin4.model.1.weight).",
        advice=f"Choose vgg.pth of LPIPS v0.1 as safetensors, or leave the setting empty for {LPIPS_FILE.repo}.",
    )


def problems_of_files(settings: Reconstruction, *, offline: bool, hub_cache_dir: str) -> Iterator[Problem]:
    """Yield missing or unsuitable files as errors, and coming downloads as infos. Only headers are read."""
    if not settings.perceptual_strength:
        return
    refusals = (refusal_of_vgg, refusal_of_lpips)
    for wanted, refusal_of in zip(requests_of(settings), refusals, strict=True):
        where = f"training.vae.{wanted.published.slot}"
        problem = problem_of_file(where, wanted, needed_by=NEEDED_BY, offline=offline, hub_cache_dir=hub_cache_dir)
        if problem is not None:
            yield problem
        elif wanted.user_path is not None:
            try:
                refused = refusal_of(wanted.user_path, read_checkpoint_header(wanted.user_path).shapes)
            except DarkroomError as error:
                refused = error
            if refused is not None:
                yield Problem(where, refused.message, advice=refused.advice)


def perceptual_bytes() -> int:
    """Return the bytes of the published VGG16's convolutions and of LPIPS's weights."""
    total, width_in = 0, 3
    for stage, width in zip(STAGES, WIDTHS, strict=True):
        for _ in stage:
            total += width * (9 * width_in + 1)
            width_in = width
        total += width
    return FLOAT32_BYTES * total
