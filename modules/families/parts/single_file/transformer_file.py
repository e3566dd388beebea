"""The records of files for families whose single files contain the transformer alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from modules.families.parts.single_file.detect import DENOISER_PREFIX, denoiser_kind, prefixed_names
from modules.families.parts.single_file.record import DenoiserFile, PartLayout, SingleFile
from modules.families.parts.single_file.slots import Slot, limited
from modules.families.published import FamilyFiles, PublishedModel

_PART = "transformer"


def transformer_file(
    slots: Callable[[Mapping[str, Any]], Iterable[Slot]],
    *,
    first: str,
    marks: tuple[str, ...],
    diffusers_marks: tuple[str, ...],
    unused: Collection[str] = (),
) -> DenoiserFile:
    """Return how files contain a transformer: `slots(config)` are the slots of its original layout.

    `first` begins a name that every file in that layout has, and `unused` are names of tensors that such files may have
    besides the weights, both without a prefix; `marks` and `diffusers_marks` are as in `DenoiserFile`. The layout
    raises ValueError for more layers than any model has: a config may come from a file.
    """
    unused_names = frozenset(f"{DENOISER_PREFIX}{name}" for name in unused)

    def layout(config: Mapping[str, Any]) -> PartLayout:
        return PartLayout(_PART, DENOISER_PREFIX, tuple(limited(slots(config))), is_unused=unused_names.__contains__)

    return DenoiserFile(
        layout=layout,
        original_names=partial(prefixed_names, mark=first),
        marks=marks,
        diffusers_marks=diffusers_marks,
        diffusers_prefixes=(f"{_PART}.", DENOISER_PREFIX, "diffusion_model."),
    )


def single_transformer(file: DenoiserFile, *shaping: str) -> SingleFile:
    """Return the record of single files with a transformer; `shaping` are the keys of its config (`SingleFile`)."""
    return SingleFile(
        parts=lambda configs: (file.layout(configs[_PART]),),
        original_names=file.original_names,
        shaping={_PART: shaping},
    )


def files_of_one_model(model: PublishedModel, file: DenoiserFile, *lora_words: str) -> FamilyFiles:
    """Return the files of a flow family with one published model, and a transformer in `file`."""
    return FamilyFiles(
        models=(model,),
        pipelines={pipeline: variant for variant, pipeline in model.pipelines.items()},
        folder_model=lambda facts: model.name,
        checkpoint=lambda header: denoiser_kind(header, model, _PART, file, "flow"),
        denoiser_file=file,
        lora_words=tuple((word, model.name) for word in lora_words),
        repository_model=lambda name: model.name,
    )
