"""The names of tensors in adapter files, which are a layer and one factor of its change, and in files of embeddings.

Each program has its own names for the same factor; here they are the names in kohya's files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Literal

from modules.formats.adapter_types import DORA_SCALE, Shape, all_factors

DOWN, UP, MID = "lora_down.weight", "lora_up.weight", "lora_mid.weight"
LORA_FACTORS = frozenset({DOWN, UP, MID, DORA_SCALE})
BUNDLED_EMBEDDING = "bundle_emb."

# Other programs' names of factors: PEFT's, then diffusers' before PEFT.
_OTHER_NAMES = {
    "lora_A.weight": DOWN,
    "lora_B.weight": UP,
    "lora_magnitude_vector": DORA_SCALE,
    "lora_magnitude_vector.weight": DORA_SCALE,
    "lora.down.weight": DOWN,
    "lora.up.weight": UP,
    "lora_linear_layer.down.weight": DOWN,
    "lora_linear_layer.up.weight": UP,
}
_WEIGHTS = frozenset({"weight", "bias", "base_layer.weight", "base_layer.bias"})  # of the model, in a whole state dict
_LONGEST_END = 3  # dotted words in the longest of these names
# PEFT with the name of the adapter, as in a state dict: `lora_A.default.weight`.
_NAMED = {"lora_A": DOWN, "lora_B": UP, "lora_magnitude_vector": DORA_SCALE}
# diffusers' attention processors: `attn1.processor.to_q_lora.down.weight`, in text encoders `self_attn.to_q_lora...`.
_PROCESSORS = {"to_q_lora": "to_q", "to_k_lora": "to_k", "to_v_lora": "to_v", "to_out_lora": "to_out.0"}
_TEXT_PROCESSORS = {"to_q_lora": "q_proj", "to_k_lora": "k_proj", "to_v_lora": "v_proj", "to_out_lora": "out_proj"}
# Names with one dotted word for the whole layer, as in kohya's files: whatever follows the first dot is a factor.
_FLAT_LAYERS = (
    *("lora_unet_", "lora_te_", "lora_te1_", "lora_te2_", "lora_te3_", "oft_unet_", "lycoris_"),
    *("lora_prior_unet_", "lora_prior_te_"),
)


@cache
def _by_end() -> Mapping[str, str]:
    """Return the factors by the ends of the names of tensors."""
    return {factor: factor for factor in all_factors()} | _OTHER_NAMES


def dora_axis(scale: Shape) -> Literal["outputs", "inputs"]:
    """Return whether DoRA's magnitudes are norms of inputs (1, in, ...) or outputs (out, 1, ...), in PEFT (out,)."""
    return "inputs" if len(scale) > 1 and scale[0] == 1 else "outputs"


def layers_in(shapes: Mapping[str, Shape]) -> dict[str, dict[str, Shape]]:
    """Return the layers of a file by their names in it, each with the shapes of its factors by kohya's names."""
    layers = tensors_by_layer(shapes)
    return {layer: {factor: shapes[name] for factor, name in names.items()} for layer, names in layers.items()}


def tensors_by_layer(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the layers of a file by their names in it, each with the names of its tensors by kohya's names of factors.

    A tensor of a layer whose meaning is not known here becomes a factor of an unknown name: without it the layer would
    be mistaken for another type. The weights of the model itself are not such tensors.
    """
    layers: dict[str, dict[str, str]] = {}
    others: list[str] = []
    for name in names:
        layer, factor = layer_and_factor(name)
        if layer:
            layers.setdefault(layer, {})[factor] = name
        else:
            others.append(name)
    for name in others if layers else ():
        words = name.rsplit(".", _LONGEST_END)
        for first in range(1, len(words)):
            layer, factor = ".".join(words[:first]), ".".join(words[first:])
            if layer in layers and factor not in _WEIGHTS:
                layers[layer].setdefault(factor, name)
                break
    return layers


def layer_and_factor(name: str) -> tuple[str, str]:
    """Return the layer's name as it stands in the file, and kohya's name of the factor; ("", "") for any other tensor.

    A layer of diffusers' attention processors gets the name of its module, as in the PEFT form.
    """
    if name.startswith(BUNDLED_EMBEDDING):
        return "", ""
    words = name.rsplit(".", _LONGEST_END)
    if len(words) > _LONGEST_END and (module := _of_module(*words)):
        return module
    by_end = _by_end()
    for first in range(1, len(words)):
        if factor := by_end.get(".".join(words[first:])):
            return ".".join(words[:first]), factor
    if len(words) > 2 and words[-2] == "lora_magnitude_vector":
        return ".".join(words[:-2]), DORA_SCALE
    layer, _, factor = name.partition(".")
    return (layer, factor) if factor and layer.startswith(_FLAT_LAYERS) else ("", "")


def second_copies(others: Iterable[str], layers: Collection[str]) -> list[str]:
    """Return the names of other tensors that belong to a layer which is written under the same name.

    A file can contain a layer twice, as `lora_te1_...` and `lora_te_...` of SD 1.5. Only one copy can be written, and
    a mixture of both copies' factors would be wrong.
    """
    return [name for name in others if layer_and_factor(name)[0] in layers]


def _of_module(layer: str, third: str, second: str, last: str) -> tuple[str, str] | None:
    """Return layer and factor if the last three words of a name are PEFT's with an adapter, or a processor's."""
    if third in _NAMED and last == "weight":
        return layer, _NAMED[third]
    if third in _PROCESSORS and second in ("down", "up") and last == "weight":
        layer = layer.removesuffix(".processor")
        names = _TEXT_PROCESSORS if layer.endswith("self_attn") else _PROCESSORS
        return f"{layer}.{names[third]}", DOWN if second == "down" else UP
    return None


# The names of tensors in files of embeddings.


EMP_PARAMS = "emp_params"
"""OneTrainer's name of the vectors of a single encoder (with its typing error), and the name in our files."""
EMB_PARAMS = "emb_params"
"""kohya's name of them, and the name in our files until config version 2."""
OUTPUT_SUFFIX = "_out"
"""OneTrainer's suffix of the vectors at the output of an encoder."""
