"""The job that compares the checkpoints of runs: the same prompts and seeds by each of them, with their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge, Le

from modules.rewards.registry import REWARDS
from modules.rewards.similarity import DINO_SIMILARITY, SIMILARITIES
from modules.settings.field import Section, Setting, one_of
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root
from modules.system.problem import count
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.sample_grid import numbers
from trainer.jobs.spec import Argument, JobSpec
from trainer.launch import import_engine
from trainer.run_folder.checkpoints import Comparison, score_names

MAX_STRENGTHS = 9


def _similarity_labels() -> dict[str, str]:
    labels = {name: spec.label for name, spec in SIMILARITIES.items()}
    return {"all": "All on this computer", **labels, "none": "None"}


class CheckpointSettings(Section):
    """The runs, and what their checkpoints sample."""

    runs: Annotated[
        tuple[str, ...],
        Setting("Runs", "The folders of one or more runs, which all sample the same prompts.", path_kind="folder"),
        Argument(metavar="RUN", is_positional=True, is_required=True, takes_several=True),
    ] = ()
    prompts: Annotated[
        tuple[str, ...],
        Setting("Prompts", "A prompt, instead of the sample prompts of the first run; can be repeated."),
        Argument("--prompt", "TEXT"),
    ] = ()
    num_seeds: Annotated[
        int, Ge(1), Le(100), Setting("Seeds", "Images of each prompt, each with the next seed."), Argument("--seeds")
    ] = 1
    strengths: Annotated[
        str,
        Setting("Strengths", "The strengths of an adapter, as in 0.6, 0.8, 1; a whole model has none."),
        Argument(metavar="VALUES"),
    ] = "1"
    backups: Annotated[bool, Setting("Backups", "Also sample the backups of steps without a save.")] = True
    scores: Annotated[
        bool,
        Setting(
            "Scores",
            "Score the images by the reward models that are on this computer, and by their similarity to the training "
            "images. Nothing is downloaded.",
        ),
    ] = True
    similarity: Annotated[
        str,
        *one_of(_similarity_labels, lambda: {name: spec.help for name, spec in SIMILARITIES.items()}),
        Setting("Similarity", "How the images are compared with the training images."),
        Argument(metavar="NAME"),
    ] = "all"
    dino_model: Annotated[
        str,
        Setting(
            "DINO model",
            "A DINOv2 model in transformers' layout: its folder, or its repository if it has been downloaded.",
            path_kind="folder",
            empty_means=DINO_SIMILARITY.published.repo,
        ),
    ] = ""


def strengths_in(text: str) -> tuple[float, ...]:
    """Return the strengths in a text, each once, in order. Raises DarkroomError for no, too many or bad strengths."""
    strengths = tuple(sorted(set(numbers(text, "Strengths"))))
    if not 1 <= len(strengths) <= MAX_STRENGTHS:
        raise DarkroomError(
            f"Strengths: {len(strengths)} are given.", advice=f"Write 1 to {MAX_STRENGTHS}, as in 0.6, 0.8, 1."
        )
    return strengths


def similarities_of(settings: CheckpointSettings) -> tuple[str, ...]:
    """Return the names of the similarities to measure."""
    if settings.similarity == "all":
        return tuple(SIMILARITIES)
    return tuple(name for name in SIMILARITIES if name == settings.similarity)


def _check(settings: CheckpointSettings) -> None:
    strengths_in(settings.strengths)


CHECKPOINTS = JobSpec(
    "checkpoints",
    "Compare checkpoints",
    "Sample all checkpoints of runs with the same prompts and seeds, and score the images.",
    CheckpointSettings,
    "trainer.jobs.checkpoints:compare_checkpoints",
    check=_check,
    stopped="Stopped. The images so far are kept.",
    button="Compare",
)


def compare_checkpoints(settings: CheckpointSettings, job: Job) -> JobFinished:
    """Sample and score the checkpoints of runs into their folders. Raises DarkroomError for a run without any."""
    import_engine(in_window=False)
    compare = load_factory("trainer.jobs.checkpoint_engine:compare_runs")
    run_dirs = list(dict.fromkeys(from_root(run) for run in settings.runs))
    comparisons: list[Comparison] = compare(settings, run_dirs, job)
    paths = tuple(str(c.run_dir / "checkpoints") for c in comparisons)
    notes = tuple(dict.fromkeys(note for c in comparisons for note in c.notes))
    number = sum(len(c.checkpoints) for c in comparisons)
    message = f"Compared {count(number, 'checkpoint')} of {count(len(comparisons), 'run')}."
    text = "\n".join([*notes, *(line for c in comparisons for line in table_of(c)), *paths]) + "\n"
    return JobFinished(message, paths, notes, text=text)


def score_label(name: str) -> str:
    """Return the label of a score."""
    labels = {spec.score: spec.label for spec in SIMILARITIES.values()}
    return labels.get(name) or (REWARDS[name].label if name in REWARDS else name)


def table_of(comparison: Comparison) -> list[str]:
    """Return the figures of a comparison as lines of text: a line for each checkpoint and strength."""
    names = score_names([comparison])
    heads = ("Model", "Strength", "Validation", *map(score_label, names), "Kept as")
    rows = [heads]
    for checkpoint in comparison.checkpoints:
        for strength in comparison.strengths:
            means = comparison.means(checkpoint.name, strength)
            loss = "" if checkpoint.loss is None else f"{checkpoint.loss:.4f}{checkpoint.loss_place}"
            scores = (f"{means[name]:.4g}" if name in means else "" for name in names)
            rows.append((checkpoint.label, f"{strength:g}", loss, *scores, ", ".join(checkpoint.kinds)))
    return [comparison.run_dir.name, *_align_columns(rows)]


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
