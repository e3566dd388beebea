"""Quantization of frozen weights: which layers, and how precisely."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, When, advanced_setting
from modules.settings.layer_filter import PRESET_LABELS, LayerFilter, LayerPresets, layer_filter


class Quantization(Section):
    """Settings for all parts whose weight dtype is a quantized one."""

    group: ClassVar[str] = "Quantization"
    applies_when: ClassVar[When | None] = USES_DENOISER

    layers: Annotated[
        Literal["all", "attention_mlp", "attention", "custom"],
        advanced_setting(
            "Quantized layers",
            "Which linear layers of the denoiser are quantized. The others, and all convolutions, norms and "
            "embeddings, stay in 16 bits, or in float32 if that is the precision. Of text encoders all layers are "
            "quantized.",
            choice_labels={name: PRESET_LABELS[name] for name in ("all", "attention_mlp", "attention", "custom")},
        ),
    ] = "all"
    custom_layers: Annotated[
        str,
        advanced_setting(
            "Layer names",
            "Parts of layer names, separated by commas: a layer is quantized if its name contains one of them.",
            applies_when=When("layers", ("custom",)),
        ),
    ] = ""
    layers_regex: Annotated[
        bool,
        advanced_setting(
            "Use regular expressions",
            "Treats the layer names as regular expressions.",
            applies_when=When("layers", ("custom",)),
        ),
    ] = False
    svd_dtype: Annotated[
        Literal["none", "float32", "bfloat16", "float16"],
        advanced_setting(
            "SVD residual",
            "Keeps the largest singular values of each quantized weight in a low-rank product next to it, in this "
            "dtype, and quantizes only the rest (SVDQuant, Li et al. 2024): more precise for a little memory.",
            choice_labels={"none": "Off", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
        ),
    ] = "none"
    svd_rank: Annotated[
        int,
        *Interval(ge=1, le=1024),
        advanced_setting(
            "SVD rank",
            "The rank of the low-rank product.",
            applies_when=When("svd_dtype", ("float32", "bfloat16", "float16")),
        ),
    ] = 16
    cache_dir: Annotated[
        str,
        advanced_setting(
            "Quantization cache folder",
            "Where quantized weights with an SVD residual are kept, so that they are computed only once.",
            path_kind="folder",
            empty_means="inside the cache folder",
            applies_when=When("svd_dtype", ("float32", "bfloat16", "float16")),
        ),
    ] = ""


def quantized_layers(settings: Quantization, presets: LayerPresets) -> LayerFilter:
    """Return which linear layers of the denoiser are quantized; `presets` are the denoiser's."""
    return layer_filter(settings.layers, presets, settings.custom_layers, is_regex=settings.layers_regex)
