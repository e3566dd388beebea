"""The steps of OneTrainer's versions 0 to 11, one function each."""

from __future__ import annotations

import copy
import re

from modules.config.migrations.onetrainer_11.model import MODEL_TYPES
from modules.config.migrations.onetrainer_keys import FLAT_EMBEDDING_KEYS, FLAT_PART_KEYS, PARTS
from modules.config.migrations.tree_moves import (
    MovedKey,
    Notes,
    Tree,
    copy_object,
    move_into,
    number,
    pop_switch,
    put,
    rename,
    with_defaults,
)
from modules.families.registry import FAMILIES
from modules.system.problem import Problem, quote

# OneTrainer's config version 0 to 1: the optimizer becomes an object, and the keys of 2023 get their later names.
#
# Version 0 was flat. In its last days the optimizer was an object already, still without a version in the file.


_PREFIX = "optimizer_"


def to_1(tree: Tree, notes: Notes) -> Tree:
    """Return the tree at OneTrainer's version 1.

    `optimizer` as a name and `optimizer_*` become one object. Without `optimizer`, OneTrainer dropped the others; they
    are kept here. OneTrainer also copied the object to `optimizer_defaults`, which adds nothing and is not done here.
    """
    result = dict(tree)
    if isinstance(name := result.get("optimizer"), str):
        result["optimizer"] = {"optimizer": name}
    for key in tree:
        if key.startswith(_PREFIX) and key != "optimizer_defaults":
            move_into(result, key, "optimizer", key.removeprefix(_PREFIX), notes)
    move_into(result, "weight_decay", "optimizer", "weight_decay", notes)
    _loss_function(result, notes)
    _extra_model(result, notes)
    _latent_caching_epochs(result, notes)
    return result


def _loss_function(tree: Tree, notes: Notes) -> None:
    """MSE, the only loss of 2023, is the first term of the later sum; any other value is kept and reported."""
    given = tree.get("loss_function")
    if given == "MSE":
        del tree["loss_function"]
    elif "loss_function" in tree:
        message = f"loss_function = {quote(given)} is not supported; the mean squared error is used instead."
        notes.append(Problem("training.loss", message, "warning"))


def _extra_model(tree: Tree, notes: Notes) -> None:
    """The extra model of 2023 was the LoRA or the embedding to continue training from."""
    given = tree.get("extra_model_name")
    if "extra_model_name" in tree and given in (None, ""):
        del tree["extra_model_name"]
        return
    target = {"LORA": "lora_model_name", "EMBEDDING": "embedding_model_names"}.get(str(tree.get("training_method")))
    if not isinstance(given, str) or target is None or tree.get(target):
        return
    del tree["extra_model_name"]
    tree[target] = given if target == "lora_model_name" else [given]
    notes.append(
        Problem("", f"extra_model_name = {quote(given)} is used as the file to continue training from.", "info")
    )


def _latent_caching_epochs(tree: Tree, notes: Notes) -> None:
    """One cached variation is the default of a concept; more of them are now set for each concept."""
    given = tree.get("latent_caching_epochs")
    if given in (None, 0, 1):
        tree.pop("latent_caching_epochs", None)
        return
    notes.append(
        Problem(
            "concepts",
            f"latent_caching_epochs = {quote(given)}: the number of cached variations is now set for each concept.",
            "info",
            "Set Image variations in the concepts if they use random augmentations.",
        )
    )


# OneTrainer's config version 1 to 2: the flat keys of each part of the model become one object for each part.


def to_2(tree: Tree, notes: Notes) -> Tree:
    """Return the tree at OneTrainer's version 2; parts without keys are not created."""
    result = dict(tree)
    for flat, (part, key) in FLAT_PART_KEYS.items():
        if move_into(result, flat, part, key, notes) and key == "stop_training_after":
            result[part].setdefault("stop_training_after_unit", "EPOCH")
    _embeddings(result)
    return result


def _embeddings(tree: Tree) -> None:
    """Several embedding files become several embeddings; OneTrainer kept only the first."""
    given = tree.get("embeddings", [])
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        return
    items = [dict(item) for item in given]
    names = tree.get("embedding_model_names")
    names = [names] if isinstance(names, str) and names else names
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        del tree["embedding_model_names"]
        for i, name in enumerate(names):
            if i == len(items):
                items.append({})
            items[i].setdefault("model_name", name)
    for key in FLAT_EMBEDDING_KEYS:
        if key in tree and (not items or key not in items[0]):
            items = items or [{}]
            items[0][key] = tree.pop(key)
    if items:
        tree["embeddings"] = items


# OneTrainer's config versions 2 to 8, whose steps are small: losses, timesteps, switches and names.


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
            result["loss_weight_fn"] = "MIN_SNR_GAMMA"
            put(result, "loss_weight_strength", value, source="min_snr_gamma")
        elif value is None and gamma is not None and gamma is not False:
            message = f"min_snr_gamma = {quote(gamma)} is not a number; loss weighting is off."
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
        message = f"{name} = {quote(result[name])} is not a number; the uniform timestep distribution is used."
        result.update(timestep_distribution="UNIFORM", noising_weight=0.0, noising_bias=0.0)
        notes.append(Problem("training.noise.distribution", message, "warning"))
    elif weight:
        # As in OneTrainer's own step; rounded, since 0.7 - 0.5 is not exact in floats.
        result.update(timestep_distribution="SIGMOID", noising_weight=weight, noising_bias=round(bias - 0.5, 12))
        message = (
            f"noising_weight = {quote(weight)} without a timestep_distribution is read as SIGMOID, its old meaning."
        )
        notes.append(Problem("training.noise.distribution", message, "info"))
    else:
        result.update(timestep_distribution="UNIFORM", noising_weight=0.0, noising_bias=0.0)
        if bias not in (0.5, 0):
            message = f"noising_bias = {quote(bias)} had no effect without a noising_weight; it is left out."
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
        tree["embedding"] = {**given[0], **copy_object(tree, "embedding", notes)}
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


# OneTrainer's config versions 8 to 10: the transformer gets its own part, and each part its own weight dtype.


_HAVE_A_PRIOR = ("WUERSTCHEN", "STABLE_CASCADE")


def to_9(tree: Tree, notes: Notes) -> Tree:
    """8 to 9: the transformer gets the settings of the prior, too, except in models with a real prior."""
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
            message = f"weight_dtype = {quote(dtype)} is not a dtype; float32 is used instead."
            notes.append(Problem("parts", message, "warning"))
        return result
    del result["weight_dtype"]
    for name in PARTS:
        if name not in result and name not in parts_of(result):
            continue
        if name in result and not isinstance(result[name], dict):
            continue
        part = copy_object(result, name, notes)
        part_dtype = part.get("weight_dtype")
        if part_dtype == "NONE" or (part_dtype is None and name != "vae"):
            result[name] = {**part, "weight_dtype": dtype}
    return result


def parts_of(tree: Tree) -> tuple[str, ...]:
    """Return the parts of a tree's model; for a model that does not exist here, all parts of any model."""
    model_type = tree.get("model_type", "STABLE_DIFFUSION_15")
    if not isinstance(model_type, str) or model_type.startswith("STABLE_DIFFUSION_XL"):
        return ("unet", "text_encoder", "text_encoder_2", "vae")
    if model_type.startswith(("STABLE_DIFFUSION_1", "STABLE_DIFFUSION_2")):
        return ("unet", "text_encoder", "vae")
    if has_prior(tree):
        return ("prior", "text_encoder", "effnet_encoder", "decoder")
    family = FAMILIES[MODEL_TYPES[model_type][0]] if model_type in MODEL_TYPES else None
    named = {part.name for part in family.parts} if family is not None else set(PARTS) - {"unet"}
    return tuple(name for name in PARTS if name in named and name != "unconditional_transformer")


def has_prior(tree: Tree) -> bool:
    """Return whether a tree is for a model with a real prior (Wuerstchen, Stable Cascade)."""
    model_type = tree.get("model_type")
    return isinstance(model_type, str) and model_type.startswith(_HAVE_A_PRIOR)


# OneTrainer's config version 10 to 11: checkpointing and offloading move into the parts, formats are renamed.


_OLD_KEYS = ("gradient_checkpointing", "enable_activation_offloading", "layer_offload_fraction")
_METHODS = ("ON", "OFF", "CPU_OFFLOADED")


def to_11(tree: Tree, notes: Notes) -> Tree:
    """Return the tree at OneTrainer's version 11.

    In version 10 one `gradient_checkpointing` ("OFF", "ON", "CPU_OFFLOADED"; missing means "ON") applied to all parts,
    and the output format SAFETENSORS meant several formats that now have their own names. For two days in July 2026 the
    old keys were written into version 11; this step also applies to those files.
    """
    result = dict(tree)
    _into_parts(result, notes)
    rename(result, "enable_async_offloading", "async_offloading")
    _format(result, notes)
    result["__version"] = 11
    return result


def _into_parts(tree: Tree, notes: Notes) -> None:
    if not any(key in tree for key in _OLD_KEYS):
        return
    method = tree.pop("gradient_checkpointing", "ON")
    offloads_activations = pop_switch(tree, "enable_activation_offloading", notes, "parts", default=True)
    fraction = tree.pop("layer_offload_fraction", 0.0)
    if isinstance(method, bool):
        method = "ON" if method else "OFF"
    if not (isinstance(method, str) and method in _METHODS):
        message = f"gradient_checkpointing = {quote(method)} is not one of {', '.join(_METHODS)}; ON is used instead."
        notes.append(Problem("parts", message, "warning"))
        method = "ON"
    is_offloaded = method == "CPU_OFFLOADED"
    for name in PARTS:
        part = tree.get(name, {} if name in parts_of(tree) else None)
        if isinstance(part, dict):
            of_all = {
                "gradient_checkpointing": method != "OFF",
                "activation_offloading": is_offloaded and offloads_activations,
                MovedKey("offload_fraction", "layer_offload_fraction"): fraction if is_offloaded else 0.0,
            }
            tree[name] = with_defaults(part, of_all)  # keys of the part itself are of version 11


def _format(tree: Tree, notes: Notes) -> None:
    if tree.get("output_model_format") == "CKPT":
        tree["output_model_format"] = "SAFETENSORS"
        destination = tree.get("output_model_destination")
        if isinstance(destination, str):
            tree["output_model_destination"] = re.sub(r"\.ckpt$", ".safetensors", destination, flags=re.IGNORECASE)
        message = "The format CKPT can run code when loaded and is no longer written; safetensors is used instead."
        notes.append(Problem("output.destination", message, "info"))
    if tree.get("output_model_format") == "SAFETENSORS":
        match tree.get("training_method"):
            case "LORA":
                tree["output_model_format"] = "LEGACY_LORA"
            case "EMBEDDING":
                pass
            case _:
                tree["output_model_format"] = "LEGACY_SAFETENSORS"
