"""The layout of whole models with a UNet, CLIP text encoders and a VAE in a single file, from their configs.

Prefixes are as in the published files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from modules.families.parts.single_file.autoencoder import vae_layout, vae_names
from modules.families.parts.single_file.prediction import PredictionOf
from modules.families.parts.single_file.record import Configs, DenoiserFile, PartLayout, Shapes, SingleFile
from modules.families.parts.unet_clip_file.clip import TEXT_PREFIX, clip_slots, open_clip_slots
from modules.families.parts.unet_clip_file.unet import unet_slots
from modules.formats.checkpoint_header import CheckpointHeader

UNET_PREFIX = "model.diffusion_model."
EMA_PREFIX = "model_ema.diffusion_model"
"""Of the UNet's EMA weights, whose names have no dots behind it (LDM's `LitEma`)."""

_FIRST = "input_blocks.0.0.weight"
_UNET_MODULES = {"input_blocks", "middle_block", "output_blocks", "time_embed", "label_emb", "out"}
_CLIP_PREFIXES = ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer.")
_CLIP_MODULES = ("embeddings.", "encoder.", "final_layer_norm.")
# Tensors under an encoder's prefix that are not weights of it.
_UNUSED_TEXT = ("position_ids", "logit_scale", "attn_mask", "text_projection", "text_projection.weight")
_TEXT_SHAPING = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"),
    *("vocab_size", "max_position_embeddings"),
)
# The config values that make a model different from the published one; the others do not affect the weights' meaning.
_SHAPING = {
    "unet": (
        *("block_out_channels", "layers_per_block", "down_block_types", "up_block_types", "attention_head_dim"),
        *("cross_attention_dim", "transformer_layers_per_block", "norm_num_groups", "use_linear_projection"),
        *("addition_embed_type", "addition_time_embed_dim", "projection_class_embeddings_input_dim"),
    ),
    "vae": ("block_out_channels", "layers_per_block", "norm_num_groups", "latent_channels", "scaling_factor"),
}
# diffusers' defaults for missing config values: a loaded model's config has them, a file's often does not.
_SILENT: Mapping[str, Any] = {"transformer_layers_per_block": 1, "use_linear_projection": False}
_UNUSED = "modules.families.parts.unet_clip_file.unused"


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A text encoder in the original layout: our name, its prefix, its naming, whether it has a projection."""

    part: str
    prefix: str
    is_open_clip: bool = False
    has_projection: bool = False

    def layout(self, config: Mapping[str, Any]) -> PartLayout:
        """Return the encoder's layout, from its config."""
        slots_of = open_clip_slots if self.is_open_clip else clip_slots
        return PartLayout(
            self.part,
            self.prefix,
            slots_of(config, projection=self.has_projection),
            # SD 2 and others use the states before the last block; diffusers' config then leaves that block out.
            is_unused=_is_unused_in_open_clip if self.is_open_clip else _is_unused_text,
            unused_tensors=f"{_UNUSED}:{'open_clip_tensors' if self.is_open_clip else 'clip_tensors'}",
            library_prefix=TEXT_PREFIX,
        )


@dataclass(frozen=True, slots=True)
class UnetClipFile:
    """The single file of a model with a UNet: what it has besides the UNet and the VAE, and how it is detected.

    `text` lists its encoders; a file is of this model if a name starts with one of `markers`. `has_labels`: the UNet
    has a label embedding, which identifies a file with only a UNet of unusual width. `velocity_model` is the published
    model of a file with v-prediction; `prediction_from_weights(header)` derives the prediction type of a file without a
    marker where possible. The others are `SingleFile`'s.
    """

    text: tuple[TextPlace, ...]
    markers: tuple[str, ...]
    has_labels: bool = False
    velocity_model: str = ""
    is_ambiguous: bool = False
    prediction_from_weights: PredictionOf | None = None
    sidecar: Callable[[Configs, str], str] = lambda configs, prediction: ""
    velocity_tensors: bool = False
    companions: Mapping[str, str] = field(default_factory=dict)

    def single_file(self) -> SingleFile:
        """Return the record of the file's layout."""
        shaping = {t.part: (*_TEXT_SHAPING, *(("projection_dim",) if t.has_projection else ())) for t in self.text}
        return SingleFile(
            parts=self._parts,
            original_names=original_names,
            configs_of=_with_input_channels,
            shaping={**_SHAPING, **shaping},
            silent=_SILENT,
            widths=_widths,
            is_ambiguous=self.is_ambiguous,
            sidecar=self.sidecar,
            velocity_tensors=self.velocity_tensors,
            companions=self.companions,
        )

    def _parts(self, configs: Configs) -> Iterator[PartLayout]:
        yield unet_layout(configs["unet"])
        yield vae_layout("vae", configs["vae"])
        for place in self.text:
            yield place.layout(configs[place.part])


def unet_layout(config: Mapping[str, Any]) -> PartLayout:
    """Return the layout of a UNet of this config in a single file."""
    return PartLayout("unet", UNET_PREFIX, unet_slots(config), averaged_prefix=EMA_PREFIX)


def original_names(names: Iterable[str]) -> dict[str, str]:
    """Return the original layout's name of each tensor of a file: `{original: name in the file}`."""
    of_vae = vae_names(names)
    is_bare = any(n.startswith("input_blocks.0.0.") for n in of_vae)
    return {_original(original, is_bare=is_bare): name for original, name in of_vae.items()}


UNET_FILE = DenoiserFile(
    layout=unet_layout,
    original_names=original_names,
    marks=(".input_blocks.0.0.", ".mid_block.resnets.0.time_emb_proj."),  # a VAE has no embeddings of timesteps
    diffusers_marks=("down_blocks.",),
    diffusers_prefixes=("unet.",),
)


def _original(name: str, *, is_bare: bool) -> str:
    if is_bare and name.split(".", 1)[0] in _UNET_MODULES:
        return f"{UNET_PREFIX}{name}"
    if name.startswith("diffusion_model."):
        return f"model.{name}"
    for prefix in _CLIP_PREFIXES:
        rest = name.removeprefix(prefix)
        if rest != name and rest.startswith(_CLIP_MODULES):
            return f"{prefix}{TEXT_PREFIX}{rest}"
    return name


def _is_unused_text(name: str) -> bool:
    return name.endswith(_UNUSED_TEXT)


def _is_unused_in_open_clip(name: str) -> bool:
    return name.endswith(_UNUSED_TEXT) or ".resblocks." in name


def _with_input_channels(configs: Configs, shapes: Shapes) -> Configs:
    """Return the configs with the input channels of the file's UNet, which depend on the variant."""
    first = shapes.get(f"{UNET_PREFIX}{_FIRST}") or shapes.get(f"{EMA_PREFIX}{_FIRST.replace('.', '')}", ())
    if len(first) != 4 or "unet" not in configs:
        return configs
    return {**configs, "unet": {**configs["unet"], "in_channels": first[1]}}


def _widths(header: CheckpointHeader, configs: Configs) -> Iterator[tuple[int, int]]:
    """Yield the widths of a file's UNet that programs recognize it by, each with the published one; 0 if unknown."""
    unet = configs.get("unet", {})
    first = header.shapes.get(f"{UNET_PREFIX}{_FIRST}", ())
    yield first[0] if len(first) == 4 else 0, unet.get("block_out_channels", [0])[0]
    yield header.second_axis("attn2.to_k.weight", prefix=UNET_PREFIX), unet.get("cross_attention_dim", 0)
