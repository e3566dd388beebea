"""The scales of float8 weights in a file, by the names of its tensors (scaled float8).

A float8 weight is divided by a scale before it is rounded, so that it uses the whole range of the format; read without
its scale it is another weight. ComfyUI's files name the scale `layer.scale_weight`, with a tensor `scaled_fp8` as a
mark, or `layer.weight_scale`, with the formats of layers in a tensor `comfy_quant` of each or in the metadata.
Scales of inputs, which are for products computed in float8, are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modules.system.problem import count

_SCALE = ".scale_weight"
_OF_WEIGHTS = (_SCALE, ".weight_scale")
_OF_INPUTS = (".scale_input", ".input_scale")
_MARK, _LAYER_FORMAT, _METADATA = "scaled_fp8", ".comfy_quant", "_quantization_metadata"
_OTHER_SCALES = (".weight_scale_2", ".weight_scale_inv")  # of blocks: nvfp4, and float8 of DeepSeek
_FLOAT8 = ("F8_E4M3", "F8_E5M2")


@dataclass(frozen=True, slots=True)
class Float8Scales:
    """The scales of a file: the name of each scaled weight's scale, and the other tensors that are not weights.

    `problem` is the reason why the weights cannot be read, such as missing scales; it is empty if they can.
    """

    names: Mapping[str, str]
    others: frozenset[str] = frozenset()
    problem: str = ""

    def weights(self, names: Mapping[str, object]) -> list[str]:
        """Return the names of a file's tensors that are neither scales nor marks."""
        companions = {*self.names.values(), *self.others}
        return [name for name in names if name not in companions]


NO_SCALES = Float8Scales({})


def scale_of(weight: str) -> str:
    """Return the name of a weight's scale in our files."""
    return f"{weight.removesuffix('.weight')}{_SCALE}"


def mark_of_scales(prefix: str, *, exact_products: bool) -> tuple[str, int]:
    """Return the name and the number of values of the mark of a part in scaled float8, behind the part's prefix.

    ComfyUI quantizes the inputs of layers to float8, too, if the mark is empty. With `exact_products`, two values, it
    computes in 16 bits (`convert_old_quants` in its comfy/utils.py).
    """
    return f"{prefix}{_MARK}", 2 if exact_products else 0


def scales_in(
    shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], metadata: Mapping[str, str]
) -> Float8Scales:
    """Return the scales of a file's weights; `dtypes` are the codes of safetensors."""
    others = frozenset(n for n in shapes if n.endswith((*_OF_INPUTS, _LAYER_FORMAT)) or n.rpartition(".")[2] == _MARK)
    names = {f"{n.rpartition('.')[0]}.weight": n for n in shapes if n.endswith(_OF_WEIGHTS)}
    of_blocks = sorted(n for n in shapes if n.endswith(_OTHER_SCALES))
    if not (names or of_blocks or _METADATA in metadata or any(not n.endswith(_OF_INPUTS) for n in others)):
        return NO_SCALES
    return Float8Scales(names, others, _problem(shapes, dtypes, names, of_blocks))


def _problem(
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    names: Mapping[str, str],
    of_blocks: list[str],
) -> str:
    if of_blocks:
        return f"has scales for blocks of its weights, such as {of_blocks[0]}, which are not supported."
    for weight, scale in sorted(names.items()):
        if weight not in shapes:
            return f"has a scale, {scale}, without its weight."
        if dtypes[weight] not in _FLOAT8:
            return f"has weights in {dtypes[weight]} with scales, such as {weight}, which are not supported."
        rows = shapes[weight][0] if shapes[weight] else 1
        if shapes[scale] not in ((), (1,), (1, 1), (rows,), (rows, 1)):
            return f"has scales for blocks of its weights, such as {scale}, which are not supported."
    without = sorted(n for n, d in dtypes.items() if d in _FLOAT8 and len(shapes[n]) > 1 and n not in names)
    if without:
        return f"is in scaled float8, but lacks the scales of {count(len(without), 'weight')}, such as {without[0]}."
    return ""


ADVICE = "Choose the same model with its scales, in float16 or bfloat16, or as GGUF."
"""The advice for a file with a problem of its scales."""
