"""OneTrainer's config version 0 to 1: the optimizer becomes an object, and the keys of 2023 get their later names.

Version 0 was flat. In its last days the optimizer was an object already, still without a version in the file.
"""

from __future__ import annotations

from modules.config.migrations.tree_moves import Notes, Tree, move_into
from modules.system.problem import Problem, shown

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
        message = f"loss_function = {shown(given)} is not supported; the mean squared error is used instead."
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
        Problem("", f"extra_model_name = {shown(given)} is used as the file to continue training from.", "info")
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
            f"latent_caching_epochs = {shown(given)}: the number of cached variations is now set for each concept.",
            "info",
            "Set Image variations in the concepts if they use random augmentations.",
        )
    )
