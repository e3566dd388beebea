"""The adapters: small trainable layers on a frozen model."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from modules.config.field import Section, Setting, When

_A_LORA = When("training.trains", ("adapter",))


class Lora(Section):
    """LoRA (Hu et al. 2021): a low-rank product beside each chosen layer."""

    name: Literal["lora"] = "lora"
    rank: Annotated[
        int,
        Ge(1),
        Le(1024),
        Setting(
            "Rank",
            "How much the LoRA can hold; 8 to 32 for most subjects. The file grows with it.",
            group="LoRA",
            applies_when=_A_LORA,
        ),
    ] = 16
    alpha: Annotated[
        float,
        Gt(0),
        Le(4096),
        Setting(
            "Alpha",
            "The strength of the LoRA is alpha divided by rank; equal values give strength 1.",
            group="LoRA",
            applies_when=_A_LORA,
        ),
    ] = 16.0
    dropout: Annotated[
        float,
        Ge(0),
        Lt(1),
        Setting(
            "Dropout",
            "The share of the LoRA's inputs that are left out at random.",
            group="LoRA",
            applies_when=_A_LORA,
            level="advanced",
        ),
    ] = 0.0
    start_from: Annotated[
        str,
        Setting(
            "Start from",
            "A LoRA file to learn on from, in kohya or diffusers form. Its rank and its layers must be those set here.",
            group="LoRA",
            level="advanced",
            applies_when=_A_LORA,
            path_kind="file",
            empty_means="a fresh LoRA",
        ),
    ] = ""
    layers: Annotated[
        Literal["attention_mlp", "attention", "all", "custom"],
        Setting(
            "Layers",
            "Which layers of the image model get a LoRA: those of the attention blocks, only the attention "
            "itself, every linear and convolution layer, or those you name. The text encoder always gets all.",
            group="LoRA",
            applies_when=_A_LORA,
            level="advanced",
            choice_labels={
                "attention_mlp": "Attention blocks",
                "attention": "Attention only",
                "all": "All layers",
                "custom": "Named below",
            },
        ),
    ] = "attention_mlp"
    custom_layers: Annotated[
        str,
        Setting(
            "Layer names",
            "Parts of layer names, separated by commas: a layer is taken if its name contains one of them.",
            group="LoRA",
            level="advanced",
            applies_when=When("layers", ("custom",)),
        ),
    ] = ""
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Setting(
            "Weight type",
            "The number format of the LoRA's own weights while training.",
            group="LoRA",
            applies_when=_A_LORA,
            level="advanced",
            choice_labels={"float32": "float32", "bfloat16": "bfloat16"},
        ),
    ] = "float32"
