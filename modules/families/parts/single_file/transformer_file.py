"""The records of files for families whose single files contain the denoiser alone, mostly a transformer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from modules.families.kinds.file_kind import Prediction
from modules.families.parts.single_file.detect import DENOISER_PREFIX, denoiser_kind, prefixed_names
from modules.families.parts.single_file.record import DenoiserFile, InnerPart, PartLayout, SingleFile
from modules.families.parts.single_file.slots import Slot, limit_layers
from modules.families.published import FamilyFiles, PublishedModel
from modules.formats.program_table import Answer, Answers, refuses

_PART = "transformer"
NO_COMFY_ALPHAS: Mapping[str, Answers] = {
    "alpha in ComfyUI's names": {"diffusers": refuses("raises an error for alphas in these names")}
}
"""The `extra_rows` of models for which diffusers refuses alphas in ComfyUI's names."""
ONE_WIDTH: Mapping[str, Answers] = {
    "matrices of another size": {"diffusers": Answer("unknown", "divides joined layers at the published width alone")}
}
"""The `extra_rows` of models whose widths are constants in diffusers' converter of kohya's files."""


def transformer_file(
    slots: Callable[[Mapping[str, Any]], Iterable[Slot]],
    *,
    first: str,
    marks: tuple[str, ...],
    diffusers_marks: tuple[str, ...],
    unused: Collection[str] = (),
    prefix: str = DENOISER_PREFIX,
    inside: Mapping[str, InnerPart] | None = None,
    others: tuple[str, ...] = (),
) -> DenoiserFile:
    """Return how files contain a transformer: `slots(config)` are the slots of its original layout.

    `first` begins a name that every file in that layout has, and `unused` are names of tensors that such files may have
    besides the weights, or with a dot at their end the beginnings of such names, all without a prefix; `marks`,
    `diffusers_marks`, `inside` and `others` are as in `DenoiserFile`. Our files have `prefix`. The layout raises
    ValueError for more layers than any model has: a config may come from a file.
    """
    unused_names = frozenset(f"{prefix}{name}" for name in unused)
    starts = (*(part.start for part in (inside or {}).values()), *(name for name in unused if name.endswith(".")))
    unused_starts = tuple(f"{prefix}{start}" for start in starts)

    def is_unused(name: str) -> bool:
        return name in unused_names or name.startswith(unused_starts)

    def layout(config: Mapping[str, Any]) -> PartLayout:
        return PartLayout(_PART, prefix, tuple(limit_layers(slots(config))), is_unused=is_unused)

    return DenoiserFile(
        layout=layout,
        original_names=partial(prefixed_names, mark=first, prefix=prefix),
        marks=marks,
        diffusers_marks=diffusers_marks,
        diffusers_prefixes=(f"{_PART}.", DENOISER_PREFIX, "diffusion_model."),
        inside=inside or {},
        others=others,
    )


def single_denoiser(file: DenoiserFile, *shaping: str, part: str = _PART) -> SingleFile:
    """Return the record of single files with a denoiser, `part`; `shaping` are keys of its config (`SingleFile`)."""
    return SingleFile(
        parts=lambda configs: (file.layout(configs[part]),),
        original_names=file.original_names,
        shaping={part: shaping},
    )


def files_of_one_model(
    model: PublishedModel, file: DenoiserFile, *lora_words: str, part: str = _PART, prediction: Prediction = "flow"
) -> FamilyFiles:
    """Return the files of a family with one published model, whose denoiser, the part `part`, is in `file`."""
    return FamilyFiles(
        models=(model,),
        pipelines={pipeline: variant for variant, pipeline in model.pipelines.items()},
        folder_model=lambda facts: model.name,
        checkpoint=lambda header: denoiser_kind(header, model, part, file, prediction),
        denoiser_file=file,
        lora_words=tuple((word, model.name) for word in lora_words),
        repository_model=lambda name: model.name,
    )
