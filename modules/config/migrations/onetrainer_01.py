"""OneTrainer's config version 1 to 2: the flat keys of each part of the model become one object for each part."""

from __future__ import annotations

from modules.config.migrations.onetrainer_keys import FLAT_EMBEDDING_KEYS, FLAT_PART_KEYS
from modules.config.migrations.tree_moves import Notes, Tree, move_into


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
