"""Quantized weights: which parts can have them, and which of their layers."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.config.sections.quantization import quantized_layers
from modules.families.registry import FAMILIES
from modules.settings.layer_filter import EXAMPLES, invalid_entry
from modules.system.problem import Problem, shown

_PLAIN = "Set its weight dtype to bfloat16, float16 or float32"


def quantized_weights(config: Config) -> Iterator[Problem]:
    """Yield an error for a quantized part that cannot be: a VAE, or any part of a fine-tune."""
    formats = quantized_parts(config).formats
    for part in FAMILIES[config.model.family].parts:
        if part.name not in formats:
            continue
        label = formats[part.name].format.label
        if part.role == "vae":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{part.label} cannot be quantized to {label}: it consists of convolutions.",
                advice=f"{_PLAIN}.",
            )
        elif formats[part.name].format.is_stored and part.role != "denoiser":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{part.label} cannot be {label}: only a UNet is read from a GGUF file.",
                advice=f"{_PLAIN}, or to another quantized format.",
            )
        elif config.training.trains == "full":
            is_trained = part.trainable and config.part(part.name).train
            reason = "quantized weights cannot be trained" if is_trained else "a fine-tune saves the whole model"
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{part.label} is quantized to {label} in a fine-tune: {reason}.",
                advice=f"{_PLAIN}, or train an adapter, such as a LoRA, on the quantized weights.",
            )


def quantized_layer_names(config: Config) -> Iterator[Problem]:
    """Yield an error if quantized layers are to be named, but no names are given, or an invalid regular expression."""
    formats = quantized_parts(config).formats
    if not any(p.role == "denoiser" and p.name in formats for p in FAMILIES[config.model.family].parts):
        return
    found = quantized_layers(config.quantization)
    if not found.entries:
        yield Problem(
            "quantization.custom_layers",
            "The quantized layers are set to named layers, but no layer names are given.",
            advice=f"Enter parts of layer names, for example: {EXAMPLES}.",
        )
    elif invalid := invalid_entry(found):
        yield Problem(
            "quantization.custom_layers",
            f"{shown(invalid[0])} is not a valid regular expression: {invalid[1]}.",
            advice="Correct it, or switch off regular expressions.",
        )


def residual_without_effect(config: Config) -> Iterator[Problem]:
    """Yield a note on an SVD residual of a part whose weights come packed from a file, which stay as they are."""
    if config.quantization.svd_dtype == "none":
        return
    formats = quantized_parts(config).formats
    for part in FAMILIES[config.model.family].parts:
        if part.name in formats and formats[part.name].format.is_stored:
            yield Problem(
                "quantization.svd_dtype",
                f"{part.label} gets no SVD residual: its weights stay packed as they are in the GGUF file.",
                "info",
            )
