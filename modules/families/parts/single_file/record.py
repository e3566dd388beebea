"""The record of the layout of a model's single files, which its family's files fill in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modules.families.kinds.file_kind import Prediction
from modules.families.parts.single_file.slots import Slot
from modules.formats.checkpoint_header import CheckpointHeader

Configs = Mapping[str, Mapping[str, Any]]
Shapes = Mapping[str, tuple[int, ...]]
NamesOf = Callable[[Iterable[str]], dict[str, str]]
"""From the names in a file to the original layout's, with prefixes: `{original: name in the file}`."""


@dataclass(frozen=True, slots=True)
class PartLayout:
    """The original layout of one part: its name in diffusers, its prefix, and the slots of its tensors.

    `averaged_prefix` is the prefix of its EMA weights, whose names have no dots behind it. `is_unused(name)` is true of
    tensors under the prefix that published files have besides the weights; `unused_tensors` names the function that
    makes them from the part's config and tensors, as "module:function". `library_prefix` starts names in files that
    some versions of the part's library leave out in the module.
    """

    name: str
    prefix: str
    slots: tuple[Slot, ...]
    averaged_prefix: str = ""
    is_unused: Callable[[str], bool] = lambda name: False
    unused_tensors: str = ""
    library_prefix: str = ""


@dataclass(frozen=True, slots=True)
class PredictionMark:
    """The prediction type of a file, and the marker it was found by."""

    prediction: Prediction
    zero_snr: bool
    marker: str


@dataclass(frozen=True, slots=True)
class SingleFile:
    """The layout of a model in a single file.

    `parts(configs)` returns the layouts of the parts in the file; the other parts of the family must come from
    elsewhere. `original_names` are the layout's names of the tensors of a file, whatever a program calls them.
    `configs_of(configs, shapes)` adapts the published configs to the shapes of a file's tensors, by original names.

    `shaping` are the config values, by part, that make a model different from the published one; `silent` are the
    libraries' defaults for those that a file's config may leave out. `widths(header, configs)` are the widths from
    which programs recognize the model, in the file and as published, 0 where unknown.

    `is_ambiguous`: a file without a marker may have either prediction type. `sidecar(configs, prediction)` is the text
    of the .yaml that the file needs, empty where it needs none; `velocity_tensors`: empty tensors in the file mark
    v-prediction. `companions` are the prefixes of further networks in the files of a variant, such as the depth
    estimator: they are kept, never run.
    """

    parts: Callable[[Configs], Iterable[PartLayout]]
    original_names: NamesOf = lambda names: {name: name for name in names}
    configs_of: Callable[[Configs, Shapes], Configs] = lambda configs, shapes: configs
    shaping: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    silent: Mapping[str, Any] = field(default_factory=dict)
    widths: Callable[[CheckpointHeader, Configs], Iterable[tuple[int, int]]] = lambda header, configs: ()
    is_ambiguous: bool = False
    sidecar: Callable[[Configs, str], str] = lambda configs, prediction: ""
    velocity_tensors: bool = False
    companions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InnerPart:
    """A part of a model inside the files of its denoiser: the beginning of its names there, and its original layout.

    In a file of its own it has the same names, with or without that beginning.
    """

    start: str
    layout: Callable[[Mapping[str, Any]], PartLayout]

    def is_in(self, names: Iterable[str]) -> bool:
        """Return whether a file with tensors of these names contains the part besides others."""
        return any(f".{self.start}" in f".{name}" for name in names)


@dataclass(frozen=True, slots=True)
class DenoiserFile:
    """How files contain the denoiser of a family's models, alone or with other parts, in either layout.

    `layout(config)` is the original layout of a denoiser with this config; `original_names` as in `SingleFile`. A file
    has a denoiser if the name of a tensor, with a dot before it, contains one of `marks`; it is in diffusers' layout if
    a name starts with one of `diffusers_marks`, after one of `diffusers_prefixes` where it has one. `inside` are the
    parts that such files contain as well, by name, and `others` are marks of another family's denoiser. `config_marks`
    are names, without a prefix, of tensors whose presence states values of the denoiser's config.
    """

    layout: Callable[[Mapping[str, Any]], PartLayout]
    original_names: NamesOf
    marks: tuple[str, ...]
    diffusers_marks: tuple[str, ...]
    diffusers_prefixes: tuple[str, ...] = ()
    inside: Mapping[str, InnerPart] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    config_marks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_marks(self, names: Iterable[str], config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config of the denoiser in a file with these tensors, with the values that its marks state."""
        there = {name.rpartition(".")[2] for name in names}
        stated = (values for mark, values in self.config_marks.items() if mark in there)
        return {**config, **{key: value for values in stated for key, value in values.items()}}

    def is_in(self, names: Iterable[str]) -> bool:
        """Return whether a file with tensors of these names contains such a denoiser, in either layout."""
        dotted = [f".{name}" for name in names]
        if any(other in name for name in dotted for other in self.others):
            return False
        return any(mark in name for name in dotted for mark in self.marks)
