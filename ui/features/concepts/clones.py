"""Copies of concepts. No Tk."""

from __future__ import annotations

from collections.abc import Collection

from modules.data.concept import Concept
from ui.forms import items
from ui.forms.model import FormModel


def clone(form: FormModel, path: str, indices: Collection[int]) -> list[int]:
    """Insert a copy after each concept, as one undo step; return the indexes of the copies.

    Each copy gets another augmentation seed, so that its augmentations differ from those of the original.
    """
    result: list[Concept] = []
    copies: list[int] = []
    concepts = items.items_of(form, path)
    seeds = {c.seed for c in concepts if isinstance(c, Concept)}
    for index, concept in enumerate(concepts):
        assert isinstance(concept, Concept)
        result.append(concept)
        if index in indices:
            seed = form.value("general.seed") if concept.seed is None else concept.seed
            while seed in seeds or seed == form.value("general.seed"):
                seed = (seed + 1) % 2**31
            seeds.add(seed)
            copies.append(len(result))
            result.append(concept.model_copy(update={"seed": seed}))
    form.edit(path, tuple(result))
    return copies
