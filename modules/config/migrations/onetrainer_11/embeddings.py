"""OneTrainer's embeddings: the one that is trained alone, and additional ones."""

from __future__ import annotations

from modules.config.migrations.onetrainer_11.tables import DTYPES, every, move_all
from modules.config.migrations.tree_moves import Notes, Tree, choose, pop_object, put, put_back
from modules.system.problem import Problem, shown

_PLAIN = {
    "uuid": "uuid",
    "model_name": "file",
    "placeholder": "placeholder",
    "train": "train",
    "token_count": "token_count",
    "initial_embedding_text": "initial_text",
    "is_output_embedding": "is_output",
}


def embeddings_of(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    """Convert the embeddings. Their single embedding applies only to the method EMBEDDING."""
    words: list[Tree] = []
    if result.get("training", {}).get("trains") == "embedding":
        given = pop_object(rest, "embedding", notes, "embeddings.words")
        words.append(_word(given, notes, "embeddings.words.0", steps_per_update))
        put_back(rest, "embedding", given)
    additional = rest.pop("additional_embeddings", None)
    if additional is not None and not isinstance(additional, list):
        message = f"{shown(additional)} is not a list of embeddings; it is left out."
        notes.append(Problem("embeddings.words", message, "warning"))
    leftovers: list[Tree] = []
    for item in additional if isinstance(additional, list) else []:
        if not isinstance(item, dict):
            message = f"{shown(item)} is not an embedding; it is left out."
            notes.append(Problem("embeddings.words", message, "warning"))
            continue
        left = {k: v for k, v in item.items() if not k.startswith("__")}
        words.append(_word(left, notes, f"embeddings.words.{len(words)}", steps_per_update))
        leftovers.append(left)
    if any(leftovers):
        rest["additional_embeddings"] = leftovers
    if words:
        put(result, "embeddings.words", words)
    move_all(
        rest,
        result,
        {"embedding_learning_rate": "embeddings.learning_rate", "preserve_embedding_norm": "embeddings.preserve_norm"},
    )
    choose(rest, result, "embedding_weight_dtype", "embeddings.dtype", DTYPES, notes)


def _word(given: Tree, notes: Notes, where: str, steps_per_update: int) -> Tree:
    word: Tree = {}
    move_all(given, word, _PLAIN)
    word["stop_after"] = every(
        given, "stop_training_after", steps_per_update, (0, "NEVER"), notes, f"{where}.stop_after"
    )
    return word
