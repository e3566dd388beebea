"""What can be known before a run: everything that is wrong with it, at once, and what it will do. Torch-free."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from modules.config.problem import Problem, cut, errors_in
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.dataset import BucketRules, Dataset, EpochPlans, build_dataset
from modules.system.paths import from_root
from trainer.model_check import kind_of, problems_of_model, what_the_model_is

_LONGEST_NAME = 230  # bytes; most systems allow 255, and a file has a longer name while it is written


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run will do, in numbers that hold."""

    num_pictures: int
    num_validation_pictures: int
    num_without_caption: int
    buckets: tuple[tuple[str, int], ...]
    skipped: tuple[tuple[str, str], ...]
    steps_first_epoch: int
    total_steps: int
    model: str = ""
    """What the base model is, as far as its files tell; nothing for a repository that is not here yet."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check and, where the pictures could be read, the preview."""

    problems: tuple[Problem, ...]
    preview: Preview | None

    @property
    def errors(self) -> list[Problem]:
        """The findings that forbid a start."""
        return errors_in(list(self.problems))


def check(config: Config) -> Report:
    """Return everything that can be found without loading a model. Reads headers and file lists only."""
    problems = problems_of(config)
    problems += _folders(config)
    problems += problems_of_model(config)
    problems += _output(config)
    concept_problems = dict(_concept_folders(config))
    problems += concept_problems.values()
    readable = _without(config, concept_problems.keys())  # looked into all the same: everything is told at once
    try:
        training, validation = datasets_of(readable)
    except OSError as error:
        problems.append(
            Problem("concepts", f"A folder of pictures cannot be read: {error}.", advice="Check that it is there.")
        )
        return Report(tuple(problems), None)
    problems += _pictures(readable, training, validation)
    return Report(tuple(problems), None if concept_problems else _preview(config, training, validation))


def _without(config: Config, concepts: Collection[int]) -> Config:
    kept = (c.model_copy(update={"enabled": c.enabled and i not in concepts}) for i, c in enumerate(config.concepts))
    return config.model_copy(update={"concepts": tuple(kept)})


def datasets_of(config: Config) -> tuple[Dataset, Dataset]:
    """Return the training and the validation pictures of a config. Raises OSError for a folder that is not there."""
    rules = BucketRules(
        config.data.resolution_px, config.data.bucket_step_px, config.data.max_aspect, config.data.aspect_buckets
    )
    located = [(c, from_root(c.path)) for c in config.concepts if c.enabled]
    return build_dataset(located, "training", rules), build_dataset(located, "validation", rules)


def plans_of(config: Config, training: Dataset) -> EpochPlans:
    """Return the plan of every epoch of a config over its training pictures."""
    return EpochPlans(
        training,
        batch_size=config.training.batch_size,
        accumulation_steps=config.training.accumulation_steps,
        run_seed=config.general.seed,
    )


def _preview(config: Config, training: Dataset, validation: Dataset) -> Preview:
    plans = plans_of(config, training)
    return Preview(
        num_pictures=len(training.examples),
        num_validation_pictures=len(validation.examples),
        num_without_caption=sum(not e.picture.captions for e in training.examples),
        buckets=tuple((str(size), count) for size, count in training.bucket_counts.items()),
        skipped=tuple((str(s.path), s.reason) for s in (*training.skipped, *validation.skipped)),
        steps_first_epoch=plans.num_steps(0),
        total_steps=plans.total_steps(config.training.epochs),
        model=what_the_model_is(config),
    )


def _folders(config: Config) -> Iterator[Problem]:
    for path, name in (
        ("general.workspace_dir", config.general.workspace_dir),
        ("general.cache_dir", config.general.cache_dir),
    ):
        if not name.strip():
            yield Problem(path, "The folder has no name.", advice="Name one, as workspace/run.")
        elif reason := _why_not_writable(from_root(name)):
            yield Problem(path, f"Nothing can be written to {name}: {reason}.", advice="Choose another folder.")


def _output(config: Config) -> Iterator[Problem]:
    name = config.output.destination
    destination = from_root(name)
    if not name.strip():
        yield Problem("output.destination", "The result has no name.", advice="Name one, as models/lora.safetensors.")
        return
    is_folder = config.training.trains == "full" and config.output.model_format == "diffusers"
    what_is_wrong = _why_no_folder(destination, name) if is_folder else _why_no_file(destination, name)
    if what_is_wrong is not None:
        yield what_is_wrong
    elif reason := _why_not_writable(destination.parent) or _why_no_name(destination):
        yield Problem("output.destination", f"{name} cannot be written: {reason}.", advice="Choose another place.")
    elif kind_of(destination):
        yield Problem("output.destination", f"{name} exists and will be replaced when the run ends well.", "info")


def _why_no_file(destination: Path, name: str) -> Problem | None:
    if kind_of(destination) == "folder":
        advice = "Name a file in it, as in folder/lora.safetensors."
        return Problem("output.destination", f"{name} is a folder.", advice=advice)
    if destination.suffix != ".safetensors":
        message = f"{name} does not end in .safetensors, the form the result is written in."
        return Problem("output.destination", message, advice="Give it that ending.")
    return None


def _why_no_folder(destination: Path, name: str) -> Problem | None:
    """Only a former model is replaced: whatever else lies in a folder is somebody's own."""
    if kind_of(destination) == "file" or destination.suffix == ".safetensors":
        message = f"{name} names a file, and a model in diffusers form is a folder."
        return Problem("output.destination", message, advice="Name a folder, or choose the single file as the format.")
    if kind_of(destination) == "folder" and kind_of(destination / "model_index.json") != "file":
        message = f"{name} is a folder that holds no model; it would be replaced."
        return Problem("output.destination", message, advice="Name a new folder in it.")
    return None


def _concept_folders(config: Config) -> Iterator[tuple[int, Problem]]:
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


def _pictures(config: Config, training: Dataset, validation: Dataset) -> Iterator[Problem]:
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


def _why_not_writable(folder: Path) -> str:
    """Return why nothing can be written in a folder that may not exist yet, proven by a write; else nothing."""
    if reason := _why_no_name(folder):
        return reason
    existing = folder
    while kind_of(existing) == "" and existing != existing.parent:
        existing = existing.parent
    if kind_of(existing) != "folder":
        return f"{existing} is not a folder"
    probe = existing / f".darkroom-probe-{uuid.uuid4().hex[:8]}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _why_no_name(path: Path) -> str:
    """Return why no file or folder can have this path, or may not be looked at; else nothing."""
    try:
        if any(len(os.fsencode(name)) > _LONGEST_NAME for name in path.parts):
            return "a name in it is too long"
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
    return ""
