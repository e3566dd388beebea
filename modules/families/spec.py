"""The torch-free facts of a model family: what the window, preflight and the data pipeline need to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["denoiser", "text_encoder", "vae"]


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One part of a model: its name in configs and files, what people call it, and what it does.

    `model_class` names the diffusers or transformers class it is an instance of, as "module:Class".
    """

    name: str
    label: str
    role: Role
    model_class: str
    trainable: bool = True

    @property
    def library(self) -> str:
        """The package the class comes from, "diffusers" or "transformers": it decides how the files are named."""
        return self.model_class.partition(".")[0]

    @property
    def class_name(self) -> str:
        """The class's own name."""
        return self.model_class.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """What is known of a family before any weight is read.

    `factory` names the function that loads it, as "module:function"; it is imported inside the training
    thread. `size_step_px` is what widths and heights must be multiples of; `latent_factor` is how many
    pixels one latent stands for; `pipelines` are the classes that diffusers' folders of this family name;
    `vae_overflows` says that the family's own VAE is too large for float16.

    `files` names the record of what its files look like (`FamilyFiles`), `memory` the walk over its shapes for the
    estimate (`FamilyMemory`), `tokenizer` the function that loads the tokenizer its captions are counted with, all as
    "module:name" and torch-free.
    """

    name: str
    label: str
    parts: tuple[PartSpec, ...]
    factory: str
    default_resolution_px: int
    size_step_px: int
    latent_factor: int
    latent_channels: int
    chunk_tokens: int
    files: str
    memory: str
    tokenizer: str = "modules.families.parts.clip_tokens:load_clip_tokenizer"
    pipelines: tuple[str, ...] = ()
    vae_overflows: bool = False

    @property
    def trainable_parts(self) -> tuple[PartSpec, ...]:
        """The parts that a run may train, in the order the window shows them."""
        return tuple(p for p in self.parts if p.trainable)

    def names_of(self, role: Role) -> tuple[str, ...]:
        """Return the names of the parts that have a role; a family need not have one of each."""
        return tuple(p.name for p in self.parts if p.role == role)


def tokenizer_of(encoder: str) -> str:
    """Return the name of a text encoder's tokenizer folder, as diffusers' pipelines have it."""
    return encoder.replace("text_encoder", "tokenizer")


@dataclass(frozen=True, slots=True)
class LoraNaming:
    """What a loaded model and its layers are called in files; both functions take a part and a dotted path.

    `model` is its name among the family's published models, `base_version` kohya's, `architecture` ModelSpec's;
    `prediction` is what it predicts. `kohya_places` are all names that are understood in kohya files, with the part and
    the path they stand for, text layers with "text_model."; `own_configs` are the configs of the parts as JSON, where
    the model is of another size than the published one and a file has to bring them along.
    """

    kohya_name: Callable[[str, str], str]
    peft_name: Callable[[str, str], str]
    base_version: str
    architecture: str
    model: str
    kohya_places: Mapping[str, tuple[str, str]]
    prediction: str = "epsilon"
    own_configs: str = ""
    is_v2: bool = False
    """What kohya's trainers call `v2`: the text encoder is OpenCLIP's alone."""
