"""The tiny transformers, one line each: every test of what such families share runs on all of them.

All but PixArt, Stable Cascade and Wuerstchen, which predict noise, are flow models; `FlowModel.is_flow` states it.

A new family adds its line here and a `FlowModel` to its builder, and records the states of its text encoders with
`python -m tests.parity.test_flow_shapes`. `tests/conftest.py` makes a fixture of each name: the folder of the model,
written once a session.

The tests are in `tests/training/flow`, `tests/training/test_flow_memory.py` and `tests/parity/test_flow_shapes.py`, and
in the matrices of checkpointing, freezing, devices, resuming and preference methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from modules.families.registry import FAMILIES
from modules.families.spec import FamilySpec
from modules.sampling.registry import samplers_for
from modules.system.factories import load_factory

FLOW_MODELS: Mapping[str, str] = {
    "tiny_z_image": "tests.builders.z_image:TINY",
    "tiny_flux": "tests.builders.flux:TINY",
    "tiny_chroma": "tests.builders.chroma:TINY",
    "tiny_sd3": "tests.builders.sd3:TINY",
    "tiny_hidream": "tests.builders.hidream:TINY",
    "tiny_hunyuan_video": "tests.builders.hunyuan_video:TINY",
    "tiny_hunyuan_image": "tests.builders.hunyuan_image:TINY",
    "tiny_flux2_klein": "tests.builders.flux2_klein:TINY",
    "tiny_krea2": "tests.builders.krea2:TINY",
    "tiny_qwen_image": "tests.builders.qwen_image:TINY",
    "tiny_qwen_image21": "tests.builders.qwen_image21:TINY",
    "tiny_flux3": "tests.builders.flux3:TINY",
    "tiny_anima": "tests.builders.anima:TINY",
    "tiny_pixart": "tests.builders.pixart:TINY",
    "tiny_sana": "tests.builders.sana:TINY",
    "tiny_lumina2": "tests.builders.lumina2:TINY",
    "tiny_ernie_image": "tests.builders.ernie_image:TINY",
    "tiny_ideogram4": "tests.builders.ideogram4:TINY",
    "tiny_stable_cascade": "tests.builders.stable_cascade:TINY",
    "tiny_wuerstchen": "tests.builders.wuerstchen:TINY",
}
"""The `FlowModel` of each tiny model, as "module:name"."""

VARIANTS: Mapping[str, str] = {"tiny_flux2_dev": "tests.builders.flux2:TINY"}
"""Models of families that have the denoiser and the VAE of one above: FLUX.2 dev has klein's, with another text encoder
and the guidance scale as an input. What is in `tests/training/flow`, and the tests of files and of the published size,
run on them, most with the full suite; the matrices, whose passes both share, do not.
"""

WITH_VARIANTS = [*FLOW_MODELS, *(pytest.param(name, marks=pytest.mark.full) for name in VARIANTS)]


PRESET_OF_ONETRAINER: Mapping[str, Any] = {
    "training_method": "LORA",
    "batch_size": 2,
    "resolution": "512",
    "transformer": {"train": True, "weight_dtype": "FLOAT_8"},
    "text_encoder": {"train": False, "weight_dtype": "FLOAT_8"},
    "vae": {"weight_dtype": "FLOAT_32"},
    "train_dtype": "BFLOAT_16",
    "timestep_distribution": "LOGIT_NORMAL",
    "layer_filter_preset": "attn-mlp",
}
"""What OneTrainer's own presets for flow models have in common."""

FULL_OF_ONETRAINER: Mapping[str, Any] = {
    "training_method": "FINE_TUNE",
    "transformer": {"train": True, "weight_dtype": "BFLOAT_16"},
}


@dataclass(frozen=True, slots=True)
class OneTrainerConfig:
    """A config of OneTrainer for a flow family, which `tests/training/flow/test_onetrainer.py` loads and runs.

    - `keys` are those that differ from `PRESET_OF_ONETRAINER`.
    - `values` are what the loaded config has, by path; its timesteps are logit-normal and its layers `attention_mlp`,
      or `custom` with a filter, unless stated here.
    - `closest` are the settings that get the closest value that there is, with a note.
    """

    keys: Mapping[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    closest: frozenset[str] = frozenset()

    def tree(self, **keys: Any) -> dict[str, Any]:
        """Return the config with further keys."""
        return {**PRESET_OF_ONETRAINER, **self.keys, **keys}


@dataclass(frozen=True, slots=True)
class FlowModel:
    """A tiny model of a flow family, and diffusers' pipeline of it as the reference.

    - `family`: its name in the registry.
    - `write(folder)` writes the model with random weights as a diffusers folder, with its tokenizers.
    - `pipeline(folder, family)` returns diffusers' pipeline of the parts of a loaded family.
    - `text(pipe, prompt)` returns what the pipeline gives its denoiser for a prompt, by the names of `Conditioning`.
    - `sample(pipe, prompt, noise_BCHW, guidance)` returns the latents (B, C, H, W) and images (B, 3, P, P) in [0, 1] of
      the pipeline, sampled in 4 steps; `guidance` is in the program's scale, in which 1 is none.
    - `guidances` are those that are compared.
    - `other_forms(lora, folder)` writes a LoRA as other programs do, in forms that this program only reads.
    - `published_shapes` are shapes of tensors in the published checkpoint of the denoiser, by their names there, and
      `published_weights` the number of weights of all: what users' files have.
    - `unread` are the names of forms that diffusers does not read, or only at the published size.
    - `settings` are those of the family in the shared runs; `places` are those whose value is the model's folder.
    - `oft` are the settings of an OFT of all layers.
    - `untrained` are the parts that the shared runs leave alone, so that their text is cached.
    - `attends_to_padding`: the denoiser does, so that the cache stores all tokens that the encoder reads.
    - `side_px` is the side of images in the shared runs.
    - `onetrainer` are configs of OneTrainer, by a name for each.
    """

    family: str
    write: Callable[[Path], Path]
    pipeline: Callable[[Path, Any], Any]
    text: Callable[[Any, str], Mapping[str, Any]]
    sample: Callable[..., tuple[Any, Any]]
    guidances: tuple[float, ...] = (1.0, 3.0)
    other_forms: Callable[[Path, Path], Sequence[Path]] = lambda lora, folder: ()
    published_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    published_weights: int = 0
    unread: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    oft: Mapping[str, Any] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()
    attends_to_padding: bool = False
    side_px: int = 64
    onetrainer: Mapping[str, OneTrainerConfig] = field(default_factory=dict)

    @property
    def spec(self) -> FamilySpec:
        """The record of the family."""
        return FAMILIES[self.family]

    @property
    def is_flow(self) -> bool:
        """Whether its noise process is flow matching."""
        return self.spec.process.flow is not None

    @property
    def sampler(self) -> str:
        """The sampler of the comparisons, whose steps are those of rollouts, too."""
        return "euler" if self.is_flow else "ddim"

    @property
    def samplers(self) -> tuple[str, ...]:
        """The samplers of the shared run: all of flow families, and two of those that all DDPM models have."""
        return tuple(samplers_for(["flow"])) if self.is_flow else ("ddim", "dpmpp")


def flow_model(name: str) -> FlowModel:
    """Return the tiny model of a name."""
    model: FlowModel = load_factory({**FLOW_MODELS, **VARIANTS}[name])
    return model


def trained_parts_of(name: str) -> tuple[str, ...]:
    """Return the names of the parts of a tiny flow model that may learn in the shared runs."""
    tiny = flow_model(name)
    frozen = tiny.spec.settings.model_validate({"name": tiny.family, **tiny.settings}).frozen_parts
    return tuple(part.name for part in tiny.spec.trainable_parts if part.name not in frozen)
