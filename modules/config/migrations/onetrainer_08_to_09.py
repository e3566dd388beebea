"""OneTrainer's config versions 8 to 10: the transformer gets its own part, and each part its own weight dtype."""

from __future__ import annotations

import copy

from modules.config.migrations.onetrainer_keys import PARTS
from modules.config.migrations.tree_moves import Notes, Tree, own_object
from modules.system.problem import Problem, shown

_HAVE_A_PRIOR = ("WUERSTCHEN", "STABLE_CASCADE")


def to_9(tree: Tree, notes: Notes) -> Tree:
    """8 to 9: the settings of the prior also become those of the transformer, except for models with a real prior."""
    result = dict(tree)
    prior = result.get("prior")
    if isinstance(prior, dict) and "transformer" not in result and not has_prior(result):
        result["transformer"] = copy.deepcopy(prior)
    return result


def to_10(tree: Tree, notes: Notes) -> Tree:
    """9 to 10: the weight dtype of the whole model moves to the parts without their own.

    The default of a part was NONE, which meant the dtype of the model. So a sparse file with a model-wide dtype meant
    it for unnamed parts too; the current default, float32, would change the training. The VAE is the exception: its
    default was float32 in every version.
    """
    result = dict(tree)
    dtype = result.get("weight_dtype")
    if not isinstance(dtype, str):
        if "weight_dtype" in result:
            del result["weight_dtype"]
            message = f"weight_dtype = {shown(dtype)} is not a dtype; float32 is used instead."
            notes.append(Problem("parts", message, "warning"))
        return result
    del result["weight_dtype"]
    for name in PARTS:
        if name not in result and name not in parts_of(result):
            continue
        if name in result and not isinstance(result[name], dict):
            continue
        part = own_object(result, name, notes)
        own = part.get("weight_dtype")
        if own == "NONE" or (own is None and name != "vae"):
            result[name] = {**part, "weight_dtype": dtype}
    return result


def parts_of(tree: Tree) -> tuple[str, ...]:
    """Return the parts of a tree's model; for other families, all parts of any model."""
    model_type = tree.get("model_type", "STABLE_DIFFUSION_15")
    if not isinstance(model_type, str) or model_type.startswith("STABLE_DIFFUSION_XL"):
        return ("unet", "text_encoder", "text_encoder_2", "vae")
    if model_type.startswith(("STABLE_DIFFUSION_1", "STABLE_DIFFUSION_2")):
        return ("unet", "text_encoder", "vae")
    return tuple(name for name in PARTS if name not in ("unet", "unconditional_transformer"))


def has_prior(tree: Tree) -> bool:
    """Return whether a tree is for a model with a real prior (Wuerstchen, Stable Cascade)."""
    model_type = tree.get("model_type")
    return isinstance(model_type, str) and model_type.startswith(_HAVE_A_PRIOR)
