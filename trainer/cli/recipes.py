"""train --recipe: repeats a run from its recipe, and lists the differences before it and in its result."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.data.datasets import Datasets
from modules.formats.published_files import is_repository
from modules.rewards.user_code_file import approved_hashes
from modules.settings.edit import get_path, replace_value
from modules.system.errors import DarkroomError
from modules.system.paths import as_config_path, from_caller
from modules.system.problem import Problem, count
from modules.system.ranks import current_rank
from modules.system.versions import versions_here
from trainer.cli.jobs import job_on_terminal
from trainer.data.concept_digests import digests_of_concepts
from trainer.data.datasets import cache_folder
from trainer.events import Event, RunStarted
from trainer.jobs.config import apply_changes
from trainer.launch import RunRequest
from trainer.preflight import check
from trainer.preflight.read_files import digests_of_files, files_read_by
from trainer.run_folder.differences import (
    PLACES,
    Difference,
    differences,
    file_differences,
    image_differences,
    missing_images,
    names_of,
    setting_differences,
    version_differences,
)
from trainer.run_folder.recipe import Recipe, known_recipe, read_recipe
from trainer.run_folder.run_dir import begun_at

DIFFERS = 3
"""The exit code of a repeated run whose result is not bit-equal."""
_NAME = re.compile(r"[^\w.-]+")
_GIVE_MODEL = "Give the place of the model with --set, such as --set {}=PATH."
_GIVE_IMAGES = "Give the folder with --set, such as --set concepts.{}.path=FOLDER."
Run = Callable[[RunRequest, Callable[[Event], None]], int]


@dataclass(eq=False)
class Repeat:
    """The repetition of a recipe: the recipe, and its config on this machine."""

    recipe: Recipe
    config: Config
    problems: list[Problem] = field(default_factory=list)


def read_repeat(file: str, changes: Iterable[str]) -> Repeat:
    """Return how the recipe in a file, or in a run's folder, is repeated on this machine.

    Nothing in it decides where something is written: the run goes into the workspace that the recipe lies in, or the
    default one, its result into the default folder, and `changes` of the command line apply last. Raises DarkroomError
    for a recipe that cannot be repeated.
    """
    place = from_caller(file)
    recipe = read_recipe(place)
    if recipe.origin:
        raise DarkroomError(
            f"{place} is the recipe of a fork: it starts from the backup of another run ({recipe.origin}).",
            advice="Repeat it with fork, from that backup.",
        )
    loaded = decode(dict(recipe.config))
    if fatal := [p for p in loaded.problems if p.severity == "error" and not p.path]:
        raise DarkroomError(f"The settings in {place} cannot be read: {fatal[0].message}")
    config = _with_own_places(loaded.config, place)
    if not config.general.num_threads:
        config = replace_value(config, "general.num_threads", recipe.machine.num_threads)
    return Repeat(recipe, apply_changes(config, tuple(changes)), loaded.problems)


def repeat(todo: Repeat, run: Run, *, allowed: frozenset[str], prints: Callable[[str], object]) -> int:
    """Check a recipe, repeat its run and report whether the result is bit-equal; return the exit code.

    `prints` takes the lines of the report. Raises DarkroomError if models or images are missing.
    """
    recipe, config = todo.recipe, todo.config
    is_main = current_rank().is_main
    datasets = _check(todo, allowed, sys.stderr.write if is_main else str)
    run_dirs = list[Path]()

    def watch(event: Event) -> None:
        if isinstance(event, RunStarted):
            run_dirs.append(Path(event.run_dir))

    request = RunRequest(config, in_window=False, allowed_code=allowed, datasets=datasets)
    code = run(request, watch)
    if code or not run_dirs or not is_main:
        return code
    repeated = known_recipe(run_dirs[-1])
    if repeated is None or repeated.result is None:
        raise DarkroomError(f"The run in {run_dirs[-1]} has no recipe with a result to compare.")
    if recipe.result is None:
        prints("The recipe has no result, because its run has not ended by itself: there is nothing to compare.\n")
        return code
    if recipe.result.payload == repeated.result.payload:
        tensors = count(repeated.result.num_tensors, "tensor")
        prints(
            f"The result is bit-equal to the recipe's: {tensors}, SHA-256 {repeated.result.payload}.\n"
            f"It is {repeated.result.path}.\n"
        )
        return code
    for line in _explain(recipe, repeated):
        prints(f"{line}\n")
    return DIFFERS if current_rank().is_alone else code  # the launcher takes anything but 0 for a failure


def _with_own_places(config: Config, recipe_file: Path) -> Config:
    """Return the config with the places of this machine instead of those that the recipe names."""
    result = Path(config.output.destination.replace("\\", "/"))
    run_dir = recipe_file if recipe_file.is_dir() else recipe_file.parent
    for path in PLACES:
        config = replace_value(config, path, get_path(Config(), path))
    folder = Path(config.output.destination).parent
    name = _NAME.sub("-", result.name).lstrip(".-") or Path(config.output.destination).name
    config = replace_value(config, "output.destination", (folder / name[:100]).as_posix())
    if run_dir.parent.name == "runs" and begun_at(run_dir) is not None:
        config = replace_value(config, "general.workspace_dir", as_config_path(run_dir.parent.parent))
    return config


def _check(todo: Repeat, allowed: frozenset[str], write: Callable[[str], object]) -> Datasets:
    """Return the images of the repetition; write what differs from the recipe so far.

    Raises DarkroomError for errors of the config, and if models or images are missing.
    """
    recipe, config = todo.recipe, todo.config
    for difference in version_differences(recipe, versions_here()):
        write(f"warning: {_sentence(difference)}\n")
    require_models(recipe, config)
    with job_on_terminal() as job:
        report = check(config, approved_code=approved_hashes() | allowed, progress=job.progress)
    if report.errors or report.datasets is None:
        is_path = any(p.path.endswith(".path") for p in report.errors)
        advice = " ".join(dict.fromkeys(p.advice for p in report.errors if p.advice))
        ways = _GIVE_IMAGES.format(_number_in(report.errors)) if is_path else ""
        raise DarkroomError(" ".join(str(p.message) for p in report.errors), advice=f"{advice} {ways}".strip())
    datasets = report.datasets
    concepts = digests_of_concepts((datasets.training, datasets.validation), cache_folder(config))
    missing = missing_images(recipe.concepts, concepts)
    if missing:
        parts = (
            f"{count(len(n), 'image')} of {c} ({names_of(n)})" if n else f"images of {c}" for c, n in missing.items()
        )
        raise DarkroomError(
            f"Nothing was started: images of the recipe are missing: {'; '.join(parts)}.",
            advice="Put them back. " + _GIVE_IMAGES.format(0) + " The numbers count the concepts, from 0.",
        )
    files = digests_of_files(config, files_read_by(config), reads=True)
    now = Recipe(encode(config), {}, recipe.machine, files, concepts)
    of_images = image_differences(recipe.concepts, concepts)
    for difference in (*file_differences(recipe, now), *of_images, *setting_differences(recipe, now)):
        write(f"warning: {_sentence(difference)}\n")
    write(f"The run is repeated in {config.general.workspace_dir}, its result goes to {config.output.destination}.\n")
    return datasets


def require_models(recipe: Recipe, config: Config) -> None:
    """Raise DarkroomError if a model of the recipe is not there; a repository can be downloaded.

    A file of a setting that this config does not have is one of the differences.
    """
    here = {f.setting for f in files_read_by(config)}
    gone = sorted({f.setting for f in recipe.files} - here)
    for setting in gone:
        try:
            name = get_path(config, setting)
        except KeyError:
            continue
        if not isinstance(name, str) or (is_repository(name) and not config.model.offline):
            continue
        raise DarkroomError(
            f"Nothing was started: {name} ({setting}) of the recipe is not on this machine.",
            advice=_GIVE_MODEL.format(setting),
        )


def _explain(recipe: Recipe, repeated: Recipe) -> Iterable[str]:
    """Yield the explanation of a result that is not equal: the tensors that differ, and all other differences."""
    assert recipe.result is not None
    assert repeated.result is not None
    yield f"The result {repeated.result.path} is not bit-equal to the recipe's."
    from trainer.run.compare_results import compare_results

    yield compare_results(recipe.result, Path(repeated.result.path))
    changes = differences(recipe, repeated)
    yield from (_sentence(difference) for difference in changes)
    if recipe.resumed_at:
        steps = ", ".join(f"{step:,}" for step in recipe.resumed_at)
        yield f"The run of the recipe was resumed, at step {steps}; settings may have changed on the way."
    if not changes:
        yield "Nothing else that a recipe records differs."
    if repeated.machine.device != "cpu" and not repeated.config.get("general", {}).get("deterministic"):
        yield "On a GPU only runs in deterministic mode (general.deterministic) repeat each bit."


def _sentence(difference: Difference) -> str:
    return f"{difference.text}."  # it may begin with the name of a file or a package


def _number_in(problems: Iterable[Problem]) -> str:
    path = next((p.path for p in problems if p.path.endswith(".path")), "concepts.0.path")
    return path.split(".")[1]
