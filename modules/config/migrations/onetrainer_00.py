"""OneTrainer's config version 0 to 1: the optimizer becomes an object, and the keys of 2023 get their later names.

Version 0 was flat. For its last days the optimizer was an object already, still without a version in the file.
"""

from __future__ import annotations

from modules.config.migrations.taking import Notes, Tree, move_into
from modules.system.problem import Problem, shown

_PREFIX = "optimizer_"


def to_1(tree: Tree, notes: Notes) -> Tree:
    """Return the tree as OneTrainer's version 1 would hold it.

    `optimizer` as a name and `optimizer_*` become one object; where there is no `optimizer`, OneTrainer threw the
    others away, which is not done here. Its copy of the object under `optimizer_defaults` says nothing new and is
    not made.
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
    """The one loss of 2023 is the sum's first term since; another stays, to be reported."""
    given = tree.get("loss_function")
    if given == "MSE":
        del tree["loss_function"]
    elif "loss_function" in tree:
        message = f"loss_function = {shown(given)} of 2023 has no counterpart; the mean squared error stands instead."
        notes.append(Problem("training.loss", message, "warning"))


def _extra_model(tree: Tree, notes: Notes) -> None:
    """The second model of 2023 was what the training went on from: a LoRA, or an embedding."""
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
        Problem("", f"extra_model_name = {shown(given)} is read as the file that the training goes on from.", "info")
    )


def _latent_caching_epochs(tree: Tree, notes: Notes) -> None:
    """One cached variation is what a concept has unless it says otherwise; more of them are the concepts' own now."""
    given = tree.get("latent_caching_epochs")
    if given in (None, 0, 1):
        tree.pop("latent_caching_epochs", None)
        return
    notes.append(
        Problem(
            "concepts",
            f"latent_caching_epochs = {shown(given)}: how many variations of each image are cached is now a setting "
            "of each concept.",
            "info",
            "Set it there if the concepts have random augmentations.",
        )
    )
