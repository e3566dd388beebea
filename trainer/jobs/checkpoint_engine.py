"""Sampling the checkpoints of runs: the base model is loaded once, and only adapters are changed between images.

Each image is written, and listed in the index of its run, at once: a comparison that was stopped continues where it
was, and images that are there already are not sampled again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from modules.config.codec import encode
from modules.config.sampled_model import model_name_of_samples
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.system.errors import DarkroomError
from modules.system.problem import count
from trainer.callbacks.sampling import expanded
from trainer.job import Job
from trainer.job_events import ImageSampled
from trainer.jobs.checkpoint_files import adapter_file_of, checkpoints_of, identity_of
from trainer.jobs.checkpoint_scores import score_comparisons
from trainer.jobs.checkpoints import CheckpointSettings, strengths_in
from trainer.jobs.sample import SampleChoices, SampleRequest
from trainer.jobs.sample_engine import SamplingEngine
from trainer.jobs.sample_images import settings_of, write_image
from trainer.jobs.sample_sources import Cell as Sample
from trainer.jobs.sample_sources import Weights, config_of_run
from trainer.jobs.spec import AdapterChoice
from trainer.run.export_backup import export_backups
from trainer.run_folder.backup import find_backup
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

_KEY_BYTES = 12
_OF_MODEL = ("model", "parts", "quantization")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An image of a comparison: its cell, and what it is sampled with."""

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

    Raises DarkroomError for a run without checkpoints or prompts, and StopRequested between denoising steps.
    """
    configs = [config_of_run(run_dir) for run_dir in run_dirs]
    prompts = _prompts(configs[0], settings)
    strengths = strengths_in(settings.strengths)
    comparisons = []
    for run_dir in run_dirs:
        checkpoints = _with_files(checkpoints_of(run_dir, has_backups=settings.backups), job)
        if not checkpoints:
            raise DarkroomError(
                f"The run {run_dir.name} has no saves and no backups.",
                advice="Set how often to save on the page Backup & save before a run.",
            )
        columns = tuple(Column(p.prompt, p.seed) for p in prompts)
        before = read_comparison(run_dir)
        scores = before.scores if before is not None else {}
        comparisons.append(Comparison(run_dir, tuple(checkpoints), columns, strengths, scores=scores))
    comparisons = _sample(comparisons, configs, prompts, job)
    return score_comparisons(comparisons, configs, job) if settings.scores else comparisons


def _prompts(config: Config, settings: CheckpointSettings) -> list[SamplePrompt]:
    """Return the prompts with their seeds and without wildcards. Raises DarkroomError if there are none."""
    own = [prompt for prompt in config.sampling.prompts if prompt.enabled]
    first = (own or [SamplePrompt()])[0]
    chosen = [first.model_copy(update={"prompt": text}) for text in settings.prompts] or own
    if not chosen:
        raise DarkroomError("The run has no sample prompts.", advice="Write a prompt, or use --prompt.")
    seeded = (
        prompt.model_copy(update={"seed": (prompt.seed + number) % 2**63})
        for prompt in chosen
        for number in range(settings.num_seeds)
    )
    return [expanded(config.sampling, prompt) for prompt in seeded]


def _with_files(checkpoints: Sequence[Checkpoint], job: Job) -> list[Checkpoint]:
    """Return checkpoints of which backups of adapters are files; those that are not yet there are written."""
    of_adapters = [c for c in checkpoints if c.is_adapter and not c.path]
    places = {c.name: adapter_file_of(Path(c.backup)) for c in of_adapters}
    missing = [(find_backup(Path(c.backup)), places[c.name]) for c in of_adapters if not places[c.name].exists()]
    if missing:
        what = f"{count(len(missing), 'backup')}"
        export_backups(
            missing,
            now=datetime.now().astimezone(),
            report=lambda doing: job.progress(f"{what}: {doing}", 0, 1),
        )
    return [replace(c, path=str(places[c.name])) if c.name in places else c for c in checkpoints]


def _sample(
    comparisons: Sequence[Comparison], configs: Sequence[Config], prompts: Sequence[SamplePrompt], job: Job
) -> list[Comparison]:
    """Return comparisons with all of their images, of which the missing ones are sampled."""
    wanted = [list(_wanted(comparison, prompts)) for comparison in comparisons]
    done = [replace(c, cells=tuple(_present(c, w))) for c, w in zip(comparisons, wanted, strict=True)]
    missing = [
        (number, item)
        for number, items in enumerate(wanted)
        for item in items
        if not _path_of(comparisons[number], item).exists()
    ]
    num_steps, num_done = sum(item.prompt.steps for _, item in missing), 0

    def next_step() -> None:
        nonlocal num_done
        job.progress("sampling", num_done, num_steps)
        num_done += 1

    for comparison in done:
        write_comparison(comparison)
    engine = SamplingEngine()
    try:
        for index, (number, item) in enumerate(missing):
            config = _shared_config(configs, number)
            path = _path_of(done[number], item)
            if not path.exists():  # a whole model has the same image at every strength
                request = _request(config, item)
                [image] = engine.sampler_of(request, item.weights, job).sample([item.prompt], on_step=next_step)
                sample = Sample(item.prompt, item.weights)
                write_image(image, path, settings_of(sample, model_name_of_samples(config)))
            done[number] = done[number].with_cell(item.cell)
            write_comparison(done[number])
            job.emit(
                ImageSampled(
                    str(path), index, len(missing), item.prompt.prompt, item.prompt.seed, item.checkpoint.label
                )
            )
        if missing:
            job.progress("sampling", num_steps, num_steps)
    finally:
        engine.close()
    return done


def _request(config: Config, item: _Wanted) -> SampleRequest:
    """Return the request of an image, with the embeddings that were trained with an adapter."""
    files = sorted(embeddings_folder(item.checkpoint.source).glob("*.safetensors")) if item.checkpoint.path else ()
    return SampleRequest(config, SampleChoices(embeddings=tuple(map(str, files))))


def _wanted(comparison: Comparison, prompts: Sequence[SamplePrompt]) -> Iterator[_Wanted]:
    """Yield the images of a comparison, those with the same weights together."""
    for checkpoint in comparison.checkpoints:
        identity = identity_of(checkpoint)
        for strength in comparison.strengths:
            for column, prompt in enumerate(prompts):
                facts = [identity, strength if checkpoint.is_adapter else 1.0, prompt.model_dump(mode="json")]
                key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=_KEY_BYTES).hexdigest()
                yield _Wanted(Cell(checkpoint.name, column, strength, f"{key}.png"), checkpoint, prompt)


def _present(comparison: Comparison, wanted: Sequence[_Wanted]) -> Iterator[Cell]:
    return (item.cell for item in wanted if _path_of(comparison, item).exists())


def _path_of(comparison: Comparison, item: _Wanted) -> Path:
    return images_dir(comparison.run_dir) / item.cell.image


def _shared_config(configs: Sequence[Config], number: int) -> Config:
    """Return the config to sample a run with: that of the first run with the same model, which is then loaded once."""

    def facts(config: Config) -> object:
        tree = encode(config)
        return [tree.get(name) for name in _OF_MODEL], config.training.precision, config.sampling.model

    own = facts(configs[number])
    return next(config for config in configs if facts(config) == own)
