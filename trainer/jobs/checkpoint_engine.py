"""Sampling the checkpoints of runs: the base model is loaded once, and only adapters are changed between images.

Each image is written, and listed in the index of its run, at once: a comparison that was stopped continues where it
was, and images that are there already are not sampled again. A damaged checkpoint is left out, with a note.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from modules.config.codec import encode
from modules.config.sampled_model import model_name_of_samples
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.system.errors import DarkroomError
from modules.system.problem import count
from trainer.callbacks.sampling import expand_wildcards
from trainer.job import Job
from trainer.job_events import ImageSampled
from trainer.jobs.checkpoint_files import adapter_file_of, checkpoints_of, identity_of
from trainer.jobs.checkpoint_scores import score_comparisons
from trainer.jobs.checkpoints import CheckpointSettings, similarities_of, strengths_in
from trainer.jobs.sample import SampleChoices, SampleRequest
from trainer.jobs.sample_engine import SamplingEngine
from trainer.jobs.sample_images import settings_of, write_image
from trainer.jobs.sample_sources import Cell as Sample
from trainer.jobs.sample_sources import Weights, config_of_run
from trainer.jobs.spec import AdapterChoice
from trainer.run.export_backup import export_backups
from trainer.run_folder.backup import find_backup, verify
from trainer.run_folder.checkpoints import (
    Cell,
    Checkpoint,
    Column,
    Comparison,
    images_dir,
    read_comparison,
    write_comparison,
)
from trainer.run_folder.result import embeddings_folder
from trainer.timing import in_local_zone

_KEY_BYTES = 12
_OF_MODEL = ("model", "parts", "quantization")


@dataclass(frozen=True, slots=True)
class _ImageToSample:
    """An image of a comparison: its cell, checkpoint and prompt."""

    cell: Cell
    checkpoint: Checkpoint
    prompt: SamplePrompt

    @property
    def weights(self) -> Weights:
        """The weights of the image."""
        if self.checkpoint.backup and not self.checkpoint.path:
            return Weights(backup=self.checkpoint.backup)
        if self.checkpoint.is_adapter:
            return Weights(adapters=(AdapterChoice(self.checkpoint.path, self.cell.strength),))
        return Weights(model=self.checkpoint.path)


def compare_runs(settings: CheckpointSettings, run_dirs: Sequence[Path], job: Job) -> list[Comparison]:
    """Sample and score the checkpoints of runs; return the comparison in the folder of each.

    Raises DarkroomError for a run without checkpoints or prompts, or if none can be sampled, and StopRequested between
    denoising steps.
    """
    configs = [config_of_run(run_dir) for run_dir in run_dirs]
    prompts = _prompts(configs[0], settings)
    strengths = strengths_in(settings.strengths)
    comparisons = []
    for run_dir in run_dirs:
        listed = checkpoints_of(run_dir, has_backups=settings.backups)
        if not listed:
            raise DarkroomError(
                f"The run {run_dir.name} has no saves and no backups.",
                advice="Set how often to save on the page Output & backups before a run.",
            )
        checkpoints, notes = _with_files(listed, job)
        columns = tuple(Column(p.prompt, p.seed) for p in prompts)
        before = read_comparison(run_dir)
        scores = before.scores if before is not None else {}
        comparisons.append(Comparison(run_dir, checkpoints, columns, strengths, scores=scores, notes=notes))
    comparisons = _sample(comparisons, configs, prompts, job)
    if not settings.scores:
        return comparisons
    names = similarities_of(settings)
    return score_comparisons(comparisons, configs, job, similarities=names, dino_model=settings.dino_model)


def _prompts(config: Config, settings: CheckpointSettings) -> list[SamplePrompt]:
    """Return the prompts with their seeds and without wildcards. Raises DarkroomError if there are none."""
    prompts = [prompt for prompt in config.sampling.prompts if prompt.enabled]
    first = (prompts or [SamplePrompt()])[0]
    chosen = [first.model_copy(update={"prompt": text}) for text in settings.prompts] or prompts
    if not chosen:
        raise DarkroomError("The run has no sample prompts.", advice="Write a prompt, or use --prompt.")
    seeded = (
        prompt.model_copy(update={"seed": (prompt.seed + number) % 2**63})
        for prompt in chosen
        for number in range(settings.num_seeds)
    )
    return [expand_wildcards(config.sampling, prompt) for prompt in seeded]


def _with_files(checkpoints: Sequence[Checkpoint], job: Job) -> tuple[tuple[Checkpoint, ...], tuple[str, ...]]:
    """Return checkpoints with a file for each adapter in a backup, and notes about damaged backups, which are left out.

    Files that are not there yet are written.
    """
    with_files, missing, notes = [], [], []
    for checkpoint in checkpoints:
        if not checkpoint.is_adapter or checkpoint.path:
            with_files.append(checkpoint)
            continue
        try:
            backup = find_backup(Path(checkpoint.backup))
            place = adapter_file_of(backup.path)
            if not place.exists():
                verify(backup)
                missing.append((backup, place))
            with_files.append(replace(checkpoint, path=str(place)))
        except (DarkroomError, OSError) as error:
            notes.append(_left_out(checkpoint, error))
    if missing:
        what = f"{count(len(missing), 'backup')}"
        export_backups(
            missing,
            now=in_local_zone(datetime.now()),
            report=lambda doing: job.progress(f"{what}: {doing}", 0, 1),
        )
    return tuple(with_files), tuple(notes)


def _left_out(checkpoint: Checkpoint, error: Exception) -> str:
    return f"{checkpoint.label} is left out: {error}"


def _sample(
    comparisons: Sequence[Comparison], configs: Sequence[Config], prompts: Sequence[SamplePrompt], job: Job
) -> list[Comparison]:
    """Return comparisons with all of their images; missing ones are sampled.

    A checkpoint that cannot be read has none, but a note. Raises DarkroomError if that leaves no image at all.
    """
    done: list[Comparison] = []
    missing: list[tuple[int, _ImageToSample]] = []
    for number, comparison in enumerate(comparisons):
        wanted, notes = _images_to_sample(comparison, prompts)
        present = [item.cell for item in wanted if _path_of(comparison, item).exists()]
        done.append(replace(comparison, cells=tuple(present)).with_notes(notes))
        missing += [(number, item) for item in wanted if not _path_of(comparison, item).exists()]
        write_comparison(done[number])
    sampling = _Sampling(job, sum(item.prompt.steps for _, item in missing))
    failed: set[tuple[int, Checkpoint]] = set()
    try:
        for index, (number, item) in enumerate(missing):
            if (number, item.checkpoint) in failed:
                continue
            path = _path_of(done[number], item)
            try:
                sampling.write(item, _shared_config(configs, number), path)
            except DarkroomError as error:
                failed.add((number, item.checkpoint))
                done[number] = done[number].with_notes([_left_out(item.checkpoint, error)])
            else:
                done[number] = done[number].with_cell(item.cell)
                label, prompt = item.checkpoint.label, item.prompt
                job.emit(ImageSampled(str(path), index, len(missing), prompt.prompt, prompt.seed, label))
            write_comparison(done[number])
    finally:
        sampling.close()
    if not any(comparison.cells for comparison in done):
        raise DarkroomError(" ".join(note for comparison in done for note in comparison.notes))
    return done


class _Sampling:
    """Writes the images of comparisons one after another, and reports the progress of all of their steps."""

    def __init__(self, job: Job, num_steps: int) -> None:
        self._job, self._num_steps, self._num_done = job, num_steps, 0
        self._engine = SamplingEngine()

    def write(self, item: _ImageToSample, config: Config, path: Path) -> None:
        """Sample an image unless it is there: a whole model has the same at every strength. Raises DarkroomError."""
        if path.exists():
            return
        sampler = self._engine.sampler_of(_request(config, item), item.weights, self._job)
        [image] = sampler.sample([item.prompt], on_step=self._next_step)
        write_image(image, path, settings_of(Sample(item.prompt, item.weights), model_name_of_samples(config)))

    def close(self) -> None:
        """Free the model's memory."""
        self._engine.close()

    def _next_step(self) -> None:
        self._job.progress("sampling", self._num_done, self._num_steps)
        self._num_done += 1


def _request(config: Config, item: _ImageToSample) -> SampleRequest:
    """Return the request of an image, with the embeddings that were trained with an adapter."""
    files = sorted(embeddings_folder(item.checkpoint.source).glob("*.safetensors")) if item.checkpoint.path else ()
    return SampleRequest(config, SampleChoices(embeddings=tuple(map(str, files))))


def _images_to_sample(
    comparison: Comparison, prompts: Sequence[SamplePrompt]
) -> tuple[list[_ImageToSample], list[str]]:
    """Return the images of a comparison, those with the same weights together, and notes about unreadable files."""
    wanted, notes = [], []
    for checkpoint in comparison.checkpoints:
        try:
            identity = identity_of(checkpoint)
        except OSError as error:
            notes.append(_left_out(checkpoint, error))
            continue
        for strength in comparison.strengths:
            for column, prompt in enumerate(prompts):
                facts = [identity, strength if checkpoint.is_adapter else 1.0, prompt.model_dump(mode="json")]
                key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=_KEY_BYTES).hexdigest()
                wanted.append(_ImageToSample(Cell(checkpoint.name, column, strength, f"{key}.png"), checkpoint, prompt))
    return wanted, notes


def _path_of(comparison: Comparison, item: _ImageToSample) -> Path:
    return images_dir(comparison.run_dir) / item.cell.image


def _shared_config(configs: Sequence[Config], number: int) -> Config:
    """Return the config to sample a run with: the config of the first run with the same model, which is loaded once."""

    def facts(config: Config) -> object:
        tree = encode(config)
        return [tree.get(name) for name in _OF_MODEL], config.training.precision, config.sampling.model

    of_run = facts(configs[number])
    return next(config for config in configs if facts(config) == of_run)
