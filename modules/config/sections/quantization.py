"""Frozen weights in few bits: which layers, and how closely."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When


class Quantization(Section):
    """What holds for all parts whose weight type is a quantised one."""

    layers: Annotated[
        Literal["all", "attention_mlp", "attention", "custom"],
        Setting(
            "Quantised layers",
            "Which linear layers of the image model are kept in the small format. The others stay in 16 bits.",
            group="Quantisation",
            level="advanced",
            choice_labels={
                "all": "All layers",
                "attention_mlp": "Attention blocks",
                "attention": "Attention only",
                "custom": "Named below",
            },
            not_yet="refused",
        ),
    ] = "all"
    custom_layers: Annotated[
        str,
        Setting(
            "Names of quantised layers",
            "Parts of layer names, separated by commas: a layer is quantised if its name contains one of them.",
            group="Quantisation",
            level="advanced",
            applies_when=When("layers", ("custom",)),
        ),
    ] = ""
    layers_regex: Annotated[
        bool,
        Setting(
            "Names are patterns",
            "Reads the names of quantised layers as regular expressions.",
            group="Quantisation",
            level="advanced",
            applies_when=When("layers", ("custom",)),
        ),
    ] = False
    svd_dtype: Annotated[
        Literal["none", "float32", "bfloat16", "float16"],
        Setting(
            "What is lost, kept apart",
            "Keeps the largest share of what quantisation loses in a low-rank product beside each layer "
            "(SVDQuant, Li et al. 2024), in this number format.",
            group="Quantisation",
            level="advanced",
            choice_labels={"none": "Off", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
            not_yet="refused",
        ),
    ] = "none"
    svd_rank: Annotated[
        int,
        Ge(1),
        Le(1024),
        Setting(
            "Rank of what is kept",
            "How much the product can hold.",
            group="Quantisation",
            level="advanced",
            applies_when=When("svd_dtype", ("float32", "bfloat16", "float16")),
        ),
    ] = 16
    cache_dir: Annotated[
        str,
        Setting(
            "Folder for quantised weights",
            "Where they are kept, so that they are worked out only once.",
            group="Quantisation",
            level="advanced",
            path_kind="folder",
            empty_means="inside the cache folder",
            applies_when=When("svd_dtype", ("float32", "bfloat16", "float16")),
        ),
    ] = ""
