"""The layers that the adapter is attached to, their ranks, and the files it can be written to."""

from __future__ import annotations

from collections.abc import Iterator

from modules.adapters.ranks import parse_ranks
from modules.adapters.registry import ADAPTERS
from modules.adapters.settings import adapter_layers, decomposition_axis
from modules.adapters.training_settings import max_norm_of
from modules.config.schema import Config
from modules.config.sections.training import filtered_layers
from modules.config.usage import adapter_form
from modules.optim.registry import optimizer_spec
from modules.settings.layer_filter import EXAMPLES, invalid_entry
from modules.system.errors import DarkroomError
from modules.system.problem import Problem, quote


def layer_names(config: Config) -> Iterator[Problem]:
    """Yield an error if the layer filter in use is custom and has no layer names, or an invalid regular expression."""
    trains, presets = config.training.trains, config.family.denoiser.model.layers
    if trains == "adapter":
        layers, path = adapter_layers(config.adapter, presets), "adapter.custom_layers"
    elif trains == "full":
        layers, path = filtered_layers(config.training, presets), "training.layer_filter_names"
    else:
        return
    if not layers.entries:
        yield Problem(
            path,
            "The layer filter is set to named layers, but no layer names are given.",
            advice=f"Enter parts of layer names, for example: {EXAMPLES}.",
        )
    elif invalid := invalid_entry(layers):
        entry, reason = invalid
        yield Problem(
            path,
            f"{quote(entry)} is not a valid regular expression: {reason}.",
            advice="Correct it, or switch off regular expressions.",
        )


def ranks_by_layer(config: Config) -> Iterator[Problem]:
    """Yield an error for an invalid line of the ranks by layer."""
    text = getattr(config.adapter, "layer_ranks", "")
    if config.training.trains != "adapter" or not text:
        return
    try:
        parse_ranks(text)
    except DarkroomError as error:
        yield Problem("adapter.layer_ranks", error.message, advice=error.advice)


def file_format(config: Config) -> Iterator[Problem]:
    """Yield an error if the adapter cannot be written in the output format."""
    spec, form = ADAPTERS[config.adapter.name], adapter_form(config)
    if config.training.trains == "adapter" and form not in spec.forms:
        yield Problem(
            "output.format",
            f"{spec.label} cannot be saved in the {form} format.",
            advice=f"Choose the {spec.forms[0]} format.",
        )
    elif config.training.trains == "adapter" and form == "diffusers" and decomposition_axis(config.adapter) == "inputs":
        yield Problem(
            "output.format",
            "The diffusers format cannot hold DoRA magnitudes of a layer's inputs.",
            advice="Choose the kohya format, or DoRA on the output axis.",
        )


def misread_file(config: Config) -> Iterator[Problem]:
    """Yield a warning for an option of the adapter that makes other programs apply its file differently.

    The same facts about files are in `modules/formats/program_table.py`.
    """
    if config.training.trains != "adapter":
        return
    if decomposition_axis(config.adapter) == "outputs" and adapter_form(config) != "diffusers":
        yield Problem(
            "adapter.decompose_output_axis",
            "ComfyUI, Forge and A1111 compute DoRA on the output axis with other norms than in training: images made "
            "there will differ from the samples.",
            "warning",
            "Switch off DoRA on output axis: they apply the input axis as it was trained.",
        )
    if getattr(config.adapter, "rescale", False) and getattr(config.adapter, "rotates", "") == "outputs":
        yield Problem(
            "adapter.rescale",
            "ComfyUI ignores the scales of the outputs: images made there will differ from the samples.",
            "warning",
            "Switch off Rescale outputs for a file that ComfyUI applies as it was trained.",
        )


def max_norm(config: Config) -> Iterator[Problem]:
    """Yield an error if a max norm cannot work with the optimizer, the initialization or stochastic rounding."""
    if config.training.trains != "adapter" or max_norm_of(config.adapter) is None:
        return
    spec = optimizer_spec(config.training.optimizer)
    if spec.has_evaluation_mode(config.training.optimizer):
        yield Problem(
            "adapter.max_norm",
            f"{spec.label} derives the weights from its own averages, which a limit of the norm would not affect.",
            advice="Leave the max norm empty, or choose another optimizer.",
        )
    if getattr(config.adapter, "init", "zero") != "zero":
        yield Problem(
            "adapter.max_norm",
            "The product of the matrices does not begin as zero: a limit of its norm would change the model at once.",
            advice="Leave the max norm empty, or set the initialization to zero.",
        )
    if config.adapter.dtype != "float32" and config.training.low_precision_updates == "stochastic":
        yield Problem(
            "adapter.max_norm",
            f"The weights of the adapter are {config.adapter.dtype} and are rounded stochastically: scaling them down "
            "by a little would be lost in rounding.",
            advice="Set the low-precision weight updates to master weights, the weight dtype to float32, or leave the "
            "max norm empty.",
        )


def float8_file(config: Config) -> Iterator[Problem]:
    """Yield an error if the adapter cannot be written in float8: its alpha must undo the scaling of its factors."""
    if config.training.trains != "adapter" or config.output.dtype != "float8":
        return
    spec = ADAPTERS[config.adapter.name]
    if not spec.float8_factors:
        yield Problem("output.dtype", f"{spec.label} cannot be saved in float8.", advice="Choose float16 or bfloat16.")
    elif adapter_form(config) == "diffusers":
        yield Problem(
            "output.dtype",
            "A LoRA in the diffusers format has no alpha for each layer, and cannot be saved in float8.",
            advice="Choose the kohya format, or float16.",
        )
