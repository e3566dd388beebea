"""How the layers of an adapter file are named, as the programs that load it tell namings apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from modules.formats.adapter_forms import Layout, Naming, Prefix, split_layer
from modules.formats.adapter_names import ALPHA
from modules.formats.adapter_targets import AdapterTarget

# kohya's prefixes of the first text encoder in the files of another family's models.
_OTHER_PREFIXES: Mapping[str, Naming] = {
    "lora_te1_": "kohya, lora_te1_ for lora_te_",
    "lora_te_": "kohya, lora_te_ for lora_te1_",
}
_PEFT: tuple[Naming, ...] = ("PEFT, UNet", "PEFT, text", "PEFT, text without text_model")
_MAGNITUDES = (".lora_magnitude_vector", ".lora_magnitude_vector.weight")
_PEFT_ENDS = (".lora_A.weight", ".lora_B.weight", *_MAGNITUDES, f".{ALPHA}")
_LINEAR_LAYER = (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight")
_OLD_ENDS = (
    *("_lora.down.weight", "_lora.up.weight", ".lora.down.weight", ".lora.up.weight"),
    *(".lora_A.default.weight", ".lora_B.default.weight"),
    *_LINEAR_LAYER,
)


def layout_of(layer: str, target: AdapterTarget) -> Layout | None:
    """Return in which layout the name of a layer in a file has the target's path; None for a mixed spelling."""
    prefix, _ = split_layer(layer)
    return next((layout for layout, path in target.paths.items() if prefix.name_of(path) == layer), None)


def naming_of(layer: str, target: AdapterTarget, tensors: Collection[str]) -> Naming:
    """Return the naming of a layer by its name in a file, the target of that name, and the names of its tensors."""
    layout = layout_of(layer, target)
    if layout is None:
        return "other"
    prefix, _ = split_layer(layer)
    naming = prefix.namings.get(layout, "other")
    if naming.startswith("kohya") and prefix.start != target.prefix:
        return _of_other_prefix(prefix, layout, target)
    return _with_factors(naming, tensors) if naming in _PEFT else naming


def kohya_naming_of(target: AdapterTarget) -> Naming:
    """Return the naming of a layer in the files of kohya's trainers."""
    return split_layer(target.kohya_name)[0].namings.get(target.kohya_layout, "other")


def _of_other_prefix(prefix: Prefix, layout: Layout, target: AdapterTarget) -> Naming:
    return _OTHER_PREFIXES.get(prefix.start, "other") if layout == target.kohya_layout else "other"


def _with_factors(naming: Naming, tensors: Collection[str]) -> Naming:
    """Return the naming of a dotted layer by how its factors are spelled, which programs tell apart, too."""
    if all(t.endswith(_PEFT_ENDS) for t in tensors):
        return naming
    if naming == "PEFT, UNet" and all(t.endswith(_OLD_ENDS) for t in tensors):
        return "before PEFT, UNet"
    if naming == "PEFT, text" and all(t.endswith(_LINEAR_LAYER) for t in tensors):
        return "before PEFT, text"
    return "other factors in PEFT names"
