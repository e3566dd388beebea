"""OneTrainer's config versions 2 to 8, whose steps are small: losses, timesteps, switches and names."""

from __future__ import annotations

from modules.config.migrations.tree_moves import Notes, Tree, number, own_object, rename
from modules.system.problem import Problem, shown

# Switches of the whole config that became switches of each concept's images.
_MOVED_TO_CONCEPTS = {
    "circular_mask_generation": "enable_random_circular_mask_shrink",
    "random_rotate_and_crop": "enable_random_mask_rotate_crop",
}


def to_3(tree: Tree, notes: Notes) -> Tree:
    """2 to 3: `min_snr_gamma` becomes a weighting of the loss, `embeddings` the embedding and the additional ones.

    OneTrainer lost the embedding of versions 0 to 2, since two of its steps had the same number.
    """
    result = dict(tree)
    gamma = result.get("min_snr_gamma")
    if "min_snr_gamma" in result and "loss_weight_fn" not in result:
        if value := number(gamma):
            result.update(loss_weight_fn="MIN_SNR_GAMMA", loss_weight_strength=value)
        elif value is None and gamma is not None and gamma is not False:
            message = f"min_snr_gamma = {shown(gamma)} is not a number; loss weighting is off."
            notes.append(Problem("training.loss", message, "warning"))
        del result["min_snr_gamma"]
    _embedding(result, notes)
    _masks(result, notes)
    return result


def to_4(tree: Tree, notes: Notes) -> Tree:
    """3 to 4: `noising_weight` meant a sigmoid timestep distribution, and `noising_bias` was relative to 0.5."""
    result = dict(tree)
    if "timestep_distribution" in result or not {"noising_weight", "noising_bias"} & result.keys():
        return result
    weight, bias = number(result.get("noising_weight", 0.0)), number(result.get("noising_bias", 0.5))
    if weight is None or bias is None:
        name = "noising_weight" if weight is None else "noising_bias"
        message = f"{name} = {shown(result[name])} is not a number; the uniform timestep distribution is used."
        result.update(timestep_distribution="UNIFORM", noising_weight=0.0, noising_bias=0.0)
        notes.append(Problem("training.noise.distribution", message, "warning"))
    elif weight:
        # As in OneTrainer's own step; rounded, since 0.7 - 0.5 is not exact in floats.
        result.update(timestep_distribution="SIGMOID", noising_weight=weight, noising_bias=round(bias - 0.5, 12))
        message = (
            f"noising_weight = {shown(weight)} without a timestep_distribution is read as SIGMOID, its old meaning."
        )
        notes.append(Problem("training.noise.distribution", message, "info"))
    else:
        result.update(timestep_distribution="UNIFORM", noising_weight=0.0, noising_bias=0.0)
        if bias not in (0.5, 0):
            message = f"noising_bias = {shown(bias)} had no effect without a noising_weight; it is left out."
            notes.append(Problem("training.noise.distribution_bias", message, "info"))
    return result


def to_5(tree: Tree, notes: Notes) -> Tree:
    """4 to 5: gradient checkpointing becomes one of several names; it is on if missing, then and now."""
    result = dict(tree)
    if isinstance(given := result.get("gradient_checkpointing"), bool):
        result["gradient_checkpointing"] = "ON" if given else "OFF"
    return result


def to_6(tree: Tree, notes: Notes) -> Tree:
    """5 to 6: `save_after` becomes `save_every`."""
    result = dict(tree)
    rename(result, "save_after", "save_every")
    rename(result, "save_after_unit", "save_every_unit")
    return result


def to_7(tree: Tree, notes: Notes) -> Tree:
    """6 to 7: a missing layer preset becomes "full"; two attention implementations were removed.

    The list of layers was trained with or without a preset. OneTrainer's step set "full" even with such a list; here it
    becomes "custom".
    """
    result = dict(tree)
    layers = result.get("lora_layers")
    has_layers = isinstance(layers, str) and bool(layers.strip())
    if result.get("lora_layer_preset") is None and ("lora_layer_preset" in result or has_layers):
        result["lora_layer_preset"] = "custom" if has_layers else "full"
    given = result.get("attention_mechanism")
    if given in ("DEFAULT", "XFORMERS"):
        result["attention_mechanism"] = "SDP"
        message = f"attention_mechanism = {given} was removed; PyTorch's own attention, with the same results, is used."
        notes.append(Problem("training.attention", message, "info"))
    return result


def to_8(tree: Tree, notes: Notes) -> Tree:
    """7 to 8: the layer filter now applies not only to LoRAs."""
    result = dict(tree)
    rename(result, "lora_layers", "layer_filter")
    rename(result, "lora_layer_preset", "layer_filter_preset")
    rename(result, "lora_layers_regex", "layer_filter_regex")
    return result


def _embedding(tree: Tree, notes: Notes) -> None:
    given, others = tree.get("embeddings"), tree.get("additional_embeddings", [])
    if not isinstance(given, list) or not isinstance(others, list) or not all(isinstance(e, dict) for e in given):
        return
    del tree["embeddings"]
    if given and any(given):
        tree["embedding"] = {**given[0], **own_object(tree, "embedding", notes)}
    if given[1:]:
        tree["additional_embeddings"] = [*others, *given[1:]]


def _masks(tree: Tree, notes: Notes) -> None:
    for old, new in _MOVED_TO_CONCEPTS.items():
        if tree.get(old) in (None, False):
            tree.pop(old, None)
            continue
        concepts = tree.get("concepts")
        if isinstance(concepts, list) and any(isinstance(c, dict) for c in concepts):
            del tree[old]
            tree["concepts"] = [_with_image_switch(c, new) for c in concepts]
        else:
            message = f"{old} is now set for each concept, but there are no concepts."
            notes.append(Problem("concepts", message, "warning", "Switch it on in the concepts."))


def _with_image_switch(concept: object, key: str) -> object:
    if not isinstance(concept, dict) or not isinstance(image := concept.get("image", {}), dict):
        return concept
    return {**concept, "image": {key: True, **image}}
