"""The concepts' folders and what lies in them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from modules.config.problem import Problem, cut
from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.system.paths import from_root
from trainer.model_check import kind_of
from trainer.preflight.plans import plans_of


def problems_of_concept_folders(config: Config) -> Iterator[tuple[int, Problem]]:
    """Yield what is wrong with the concepts' folders, with the number of the concept."""
    for index, concept in enumerate(config.concepts):
        if not concept.enabled:
            continue
        path = f"concepts.{index}.path"
        label = concept.name or f"number {index + 1}"
        if not concept.path.strip():
            yield index, Problem(path, f"The concept {label} has no folder.", advice="Name its folder or disable it.")
        elif kind_of(from_root(concept.path)) != "folder":
            folder = cut(concept.path, max_chars=200)
            message = f"The folder {folder} of the concept {label} does not exist."
            yield index, Problem(path, message, advice="Correct the path or disable the concept.")
        elif not os.access(from_root(concept.path), os.R_OK | os.X_OK):
            message = f"The folder {concept.path} may not be read."
            yield index, Problem(path, message, advice="Change its permissions.")


def problems_of_pictures(config: Config, training: Dataset, validation: Dataset) -> Iterator[Problem]:
    for dataset, kind in ((training, "training"), (validation, "validation")):
        indices = [i for i, c in enumerate(config.concepts) if c.enabled and c.kind == kind]
        for index, fact in zip(indices, dataset.concepts, strict=True):
            if fact.num_examples == 0:
                yield Problem(
                    f"concepts.{index}.path",
                    f"The concept {fact.name} holds no picture that can be read.",
                    advice="Check the folder, or switch on its sub-folders.",
                )
    skipped = (*training.skipped, *validation.skipped)
    if skipped:
        first = skipped[0]
        yield Problem(
            "concepts",
            f"{len(skipped)} files are passed over; the first is {first.path.name}: {first.reason}.",
            "warning",
        )
    num_without = sum(not e.picture.captions for e in training.examples)
    if num_without:
        yield Problem("concepts", f"{num_without} pictures have no caption and are learned without one.", "warning")
    plans, epochs = plans_of(config, training), config.training.epochs
    if training.examples and plans.total_steps(epochs) == 0:
        yield Problem("concepts", "With these repeats no picture is shown at all.", advice="Raise the repeats.")
    elif training.examples and plans.has_empty_epoch(epochs):
        yield Problem(
            "concepts",
            "There are so few pictures, and so few repeats, that some epochs would show none.",
            advice="Raise the repeats.",
        )
