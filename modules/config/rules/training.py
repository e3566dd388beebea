"""The training target, the length of the run, and the weights: their dtypes, quantization, offloading and compiling."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.config.sections.quantization import quantized_layers
from modules.config.sections.training import SIXTEEN_BITS
from modules.config.usage import trained_embeddings, trained_parts
from modules.families.registry import files_of
from modules.settings.layer_filter import EXAMPLES, invalid_entry
from modules.system.problem import Problem, quote

# The training target, the length of the run, and low-precision weight updates.


def something_is_trained(config: Config) -> Iterator[Problem]:
    """Yield problems if no part is trained, or a trained part has a learning rate of 0."""
    trainable = [p for p in config.family_parts if p.trainable]
    trained = trained_parts(config)
    if trainable and not trained and not trained_embeddings(config) and config.training.trains != "embedding":
        yield Problem(
            f"parts.{trainable[0].name}.train",
            "No part of the model is trained.",
            advice=f"Switch training on for one of: {', '.join(p.label for p in trainable)}.",
        )
    for part in trained:
        if config.part(part.name).learning_rate == 0:
            yield Problem(
                f"parts.{part.name}.learning_rate",
                f"{part.label} is set to be trained, but its learning rate is 0.",
                advice="Set its learning rate, or switch its training off.",
            )
    if config.training.learning_rate == 0 and any(config.part(p.name).learning_rate is None for p in trained):
        yield Problem(
            "training.learning_rate",
            "The learning rate is 0: nothing is trained.",
            advice="Set the learning rate, or give each part its own.",
        )


def low_precision_updates(config: Config) -> Iterator[Problem]:
    """Yield problems with trained float16 weights: no stochastic rounding, and small gradients vanish."""
    if config.training.trains not in ("full", "vae"):
        return
    for part in trained_parts(config):
        if config.part(part.name).dtype != "float16":
            continue
        if config.training.low_precision_updates == "stochastic":  # to bfloat16 only, the upper half of float32
            yield Problem(
                "training.low_precision_updates",
                f"The weights of {part.label} are float16, which stochastic rounding does not support.",
                advice="Set the weight dtype to bfloat16, or the low-precision weight updates to master weights.",
            )
        elif config.training.precision != "float16":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{part.label} is trained with float16 weights and the precision {config.training.precision}, which "
                "does not scale the loss: small gradients vanish.",
                "warning",
                "Set the weight dtype to bfloat16 or float32, or choose the precision float16, which scales the loss.",
            )


def stops(config: Config) -> Iterator[Problem]:
    """Yield problems with parts that stop at once, never, or all before the end. Steps are checked with the images."""
    epochs = config.training.epochs
    trained = trained_parts(config)
    for part in trained:
        after = config.part(part.name).stop_after
        if after.unit != "never" and after.n <= 0:
            yield Problem(
                f"parts.{part.name}.stop_after",
                f"{part.label} is set to stop training after {after.n:g} {after.unit}s, before it starts; that counts "
                "as never, and it is trained to the end.",
                "warning",
                "Switch off the training of this part, or set when it stops.",
            )
        elif after.unit == "epoch" and after.n >= epochs:
            yield Problem(
                f"parts.{part.name}.stop_after",
                f"{part.label} would stop training after {after.n:g} epochs, but the run has only {epochs}.",
                "info",
            )
    spans = {p.name: config.part(p.name).stop_after for p in trained}
    if spans and not trained_embeddings(config) and all(s.unit == "epoch" and 0 < s.n < epochs for s in spans.values()):
        last = max(spans, key=lambda name: spans[name].n)
        yield Problem(
            f"parts.{last}.stop_after",
            f"Training of every part stops after {spans[last].n:g} epochs: the run of {epochs} epochs ends there.",
            "warning",
            "Train one part to the end, or shorten the run.",
        )


# The weights of the parts: their dtypes, quantization, layer offloading and compiling.


def mixed_16_bit(config: Config) -> Iterator[Problem]:
    """Yield a warning for each part whose 16-bit weight dtype differs from the 16-bit precision.

    Without mixed precision a part computes in its own weight dtype and nothing is converted. The VAE always does: it
    runs outside autocast.
    """
    precision = config.training.precision
    if precision not in SIXTEEN_BITS:
        return
    for part in config.family.parts:
        dtype = config.part(part.name).dtype
        if part.role == "vae" or dtype not in SIXTEEN_BITS or dtype == precision:
            continue
        yield Problem(
            f"parts.{part.name}.dtype",
            f"The weights of {part.label} are {dtype}, but the precision is {precision}: all of them are converted "
            "each time they are used, which is slow and loses precision.",
            "warning",
            f"Set the weight dtype to {precision}, or the precision to {dtype}.",
        )


def float16_overflow(config: Config) -> Iterator[Problem]:
    """Yield an error if a part would compute in float16 that overflows in it: by autocast, or by its weights."""
    precision = config.training.precision
    for part in config.family.parts if config.training.trains != "vae" else ():
        dtype = config.part(part.name).dtype
        if part.model.overflows_in_float16 and "float16" in (precision, dtype) and precision != "bfloat16":
            yield Problem(
                "training.precision" if precision == "float16" else f"parts.{part.name}.dtype",
                f"The {part.label.lower()} of {config.family.label} overflows in float16: its samples and losses would "
                "not be finite.",
                advice="Set the precision and the weight dtype to bfloat16.",
            )


_PLAIN = "Set its weight dtype to bfloat16, float16 or float32"


def quantized_weights(config: Config) -> Iterator[Problem]:
    """Yield an error for each part that cannot be quantized: a VAE, or a part that a fine-tune trains or saves."""
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
        elif config.training.trains == "full":
            is_trained = part.trainable and config.part(part.name).train
            is_apart = not files_of(config.family.name).is_in_single_file(part.name)
            if is_apart and not is_trained and config.output.model_format == "single_file":
                continue
            reason = "quantized weights cannot be trained" if is_trained else "a fine-tune saves the whole model"
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{part.label} is quantized to {label} in a fine-tune: {reason}.",
                advice=f"{_PLAIN}, or train an adapter, such as a LoRA, on the quantized weights."
                if is_trained or not is_apart
                else f"{_PLAIN}, or save a single file, which contains the {config.family.denoiser.label} alone.",
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
            f"{quote(invalid[0])} is not a valid regular expression: {invalid[1]}.",
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
    if config.model.compile == "on" and config.general.debug_checks:
        yield Problem(
            "model.compile",
            "With debug checks the model is not compiled: they check every operation, and compiled blocks hide theirs.",
            "warning",
            "Switch off the debug checks, or Compile the model.",
        )
