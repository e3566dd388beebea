"""The settings that adapters share: their layers, the file to start from, and what all of them have.

The settings that adapters with a rank share are in `training_settings`. Each adapter's file adds its own.
"""

from typing import Annotated, Any, ClassVar, Literal

from modules.settings.field import Section, When, advanced_setting
from modules.settings.layer_filter import PRESET_LABELS, LayerFilter, LayerPresets, Preset, layer_filter
from modules.settings.shared_types import Dropout

AN_ADAPTER = When("training.trains", ("adapter",))


class AdapterSection(Section):
    """The settings that every adapter has, which only a run of an adapter reads. Each adapter's class adds its own."""

    group: ClassVar[str] = "Adapter"
    applies_when: ClassVar[When | None] = AN_ADAPTER

    name: str
    layers: Annotated[
        Preset,
        advanced_setting(
            "Layers",
            "Which layers of the denoiser get an adapter: every layer of the attention blocks, only the attention "
            "itself, every layer of all blocks, every linear and convolution layer, or the ones you name. Text "
            "encoders always get all.",
            group="Layers",
            choice_labels=PRESET_LABELS,
        ),
    ] = "attention_mlp"
    custom_layers: Annotated[
        str,
        advanced_setting(
            "Layer names",
            "Parts of layer names, separated by commas: a layer gets an adapter if its name contains one of them.",
            group="Layers",
            applies_when=When("layers", ("custom",)),
        ),
    ] = ""
    layers_regex: Annotated[
        bool,
        advanced_setting(
            "Use regular expressions",
            "Treats the layer names as regular expressions, each of which may match anywhere in a name.",
            group="Layers",
            applies_when=When("layers", ("custom",)),
        ),
    ] = False
    dropout: Annotated[
        Dropout,
        advanced_setting(
            "Dropout", "The probability of dropping each of the adapter's inputs.", group="Regularization"
        ),
    ] = 0.0
    module_dropout: Annotated[
        Dropout,
        advanced_setting(
            "Module dropout",
            "The probability of leaving out the whole adapter of a layer in a step.",
            group="Regularization",
        ),
    ] = 0.0
    start_from: Annotated[
        str,
        advanced_setting(
            "Start from",
            "An adapter file to continue training from. Its layers keep the rank that they have in it.",
            group="Starting point",
            path_kind="file",
            empty_means="a new adapter",
        ),
    ] = ""
    other_layers: Annotated[
        Literal["keep", "leave_out"],
        advanced_setting(
            "Other layers",
            "What happens to layers in the file to start from that this run does not train, such as text encoder "
            "layers in a run of the denoiser. If kept, they act in the run and are saved unchanged; otherwise they are "
            "left out.",
            group="Starting point",
            applies_when=When("start_from", is_set=True),
            choice_labels={"keep": "Keep as they are", "leave_out": "Leave out"},
        ),
    ] = "keep"
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        advanced_setting(
            "Weight dtype",
            "The dtype of the adapter's weights while training.",
            group="Adapter weights",
            choice_labels={"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
        ),
    ] = "float32"
    bundle_embeddings: Annotated[
        bool,
        advanced_setting(
            "Bundle embeddings",
            "Writes the embeddings that are trained with the adapter into its file.",
            group="Adapter weights",
        ),
    ] = True


def adapter_layers(settings: AdapterSection, presets: LayerPresets) -> LayerFilter:
    """Return which layers of the denoiser get an adapter; `presets` are the denoiser's."""
    return layer_filter(settings.layers, presets, settings.custom_layers, is_regex=settings.layers_regex)


def network_args(settings: Any) -> dict[str, str]:
    """Return the arguments that sd-scripts and LyCORIS write for the settings that adapters share, if they are set."""
    args = {
        "conv_dim": settings.conv_rank,
        "conv_alpha": settings.conv_alpha,
        "layer_ranks": settings.layer_ranks.strip().replace("\n", ", "),
        "rs_lora": settings.rank_stabilized,
        "rank_dropout": settings.rank_dropout,
        "module_dropout": settings.module_dropout,
        "dora_wd": settings.decompose,
        "wd_on_output": str(settings.decompose_output_axis) if settings.decompose else "",
        "loraplus_lr_ratio": getattr(settings, "lora_plus_ratio", 1.0) if has_raised_rate(settings) else 0,
    }
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in args.items() if value}


def decomposition_axis(settings: Any) -> Literal["", "outputs", "inputs"]:
    """Return whether each layer's outputs or inputs have DoRA's magnitudes; empty if no magnitudes are trained."""
    if not getattr(settings, "decompose", False):
        return ""
    return "outputs" if settings.decompose_output_axis else "inputs"


def has_raised_rate(settings: Any) -> bool:
    """Return whether part of the adapter has a learning rate of its own (LoRA+)."""
    return getattr(settings, "lora_plus_ratio", 1.0) != 1.0
