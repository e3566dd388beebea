"""The weights of the parts: their dtypes, quantization, layer offloading and compiling."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.config.sections.quantization import quantized_layers
from modules.settings.layer_filter import EXAMPLES, invalid_entry
from modules.system.problem import Problem, shown

_SIXTEEN_BITS = ("bfloat16", "float16")


def mixed_16_bit(config: Config) -> Iterator[Problem]:
    """Yield a warning for each part whose 16-bit weight dtype differs from the 16-bit precision.

    Without mixed precision a part computes in its own weight dtype and nothing is converted. The VAE always does: it
    runs outside autocast.
    """
    precision = config.training.precision
    if precision not in _SIXTEEN_BITS:
        return
    for part in config.family.parts:
        dtype = config.part(part.name).dtype
        if part.role == "vae" or dtype not in _SIXTEEN_BITS or dtype == precision:
            continue
        yield Problem(
            f"parts.{part.name}.dtype",
            f"The weights of {part.label} are {dtype}, but the precision is {precision}: all of them are converted "
            "each time they are used, which is slow and loses precision.",
            "warning",
            f"Set the weight dtype to {precision}, or the precision to {dtype}.",
        )


_PLAIN = "Set its weight dtype to bfloat16, float16 or float32"


def quantized_weights(config: Config) -> Iterator[Problem]:
    """Yield an error for a quantized part that cannot be: a VAE, or any part of a fine-tune."""
    formats = quantized_parts(config).formats
    for part in config.family.parts:
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
    if not any(p.role == "denoiser" and p.name in formats for p in config.family.parts):
        return
    layers = quantized_layers(config.quantization, config.family.denoiser.model.layers)
    if not layers.entries:
        yield Problem(
            "quantization.custom_layers",
            "The quantized layers are set to named layers, but no layer names are given.",
            advice=f"Enter parts of layer names, for example: {EXAMPLES}.",
        )
    elif invalid := invalid_entry(layers):
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
    for part in config.family.parts:
        if part.name in formats and formats[part.name].format.is_stored:
            yield Problem(
                "quantization.svd_dtype",
                f"{part.label} gets no SVD residual: its weights stay packed as they are in the GGUF file.",
                "info",
            )


def offloaded_layers(config: Config) -> Iterator[Problem]:
    """Yield problems with offloaded layers: they need per-block checkpointing, and another device."""
    spec = config.family
    for part in spec.parts:
        settings = config.part(part.name)
        if settings.offload_fraction == 0:
            continue
        is_trained = part.trainable and settings.train
        # Gradients pass through the denoiser to trained text encoders; other frozen parts run without gradients.
        if (is_trained or part.role == "denoiser") and settings.checkpointing != "block":
            yield Problem(
                f"parts.{part.name}.checkpointing",
                f"Layers of {part.label} are set to be offloaded, but without gradient checkpointing per block all of "
                "them stay on the training device until the backward pass ends.",
                advice="Set its gradient checkpointing to per block, or its layer offload fraction to 0.",
            )
        if _device(config.general.temp_device) == _device(config.general.train_device):
            yield Problem(
                f"parts.{part.name}.offload_fraction",
                f"Layers of {part.label} are set to be offloaded, but the offload device is the training device.",
                "warning",
                "Choose another offload device, usually cpu, or set the layer offload fraction to 0.",
            )


def _device(name: str) -> str:
    return name.strip().lower()


def compiling(config: Config) -> Iterator[Problem]:
    """Yield a warning for debug checks, which see every operation: compiled blocks hide theirs."""
    if config.model.compile and config.general.debug_checks:
        yield Problem(
            "model.compile",
            "With debug checks the model is not compiled: they check every operation, and compiled blocks hide theirs.",
            "warning",
            "Switch off the debug checks, or Compile the model.",
        )
