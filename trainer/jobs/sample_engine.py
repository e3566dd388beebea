"""Sampling requests: the model stays loaded between them; and the process that samples for the window."""

from __future__ import annotations

import json
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from modules.adapters.stack import AdapterStack
from modules.adapters.tools.opening import WeightedFile
from modules.config.codec import encode, load_file
from modules.config.sampled_model import model_name_of_samples, without_additions, without_training_adapter
from modules.config.schema import Config
from modules.config.sections.embeddings import EmbeddingSettings
from modules.config.sections.evaluation import SamplePrompt
from modules.config.usage import fit_of_references
from modules.families.kinds.identify import identify
from modules.families.protocol import ModelFamily
from modules.memory.placement import Placement
from modules.optim.param_groups import exact_parameters
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import count
from modules.system.redaction import redact
from trainer import commands
from trainer.callbacks.image_sampler import ImageSampler, SampledModel
from trainer.event_lines import to_line
from trainer.job import Job
from trainer.job_events import ImageSampled, JobEvent, JobFailed, JobFinished, JobStopped
from trainer.jobs.sample import SampleRequest, sample_in
from trainer.jobs.sample_grid import SamplePlan, plan_of
from trainer.jobs.sample_images import compose_grid, image_name, settings_of, write_image
from trainer.jobs.sample_sources import Cell, Weights, with_model
from trainer.launch import import_engine
from trainer.preflight.model import kind_of_model, without_lacking_parts
from trainer.preflight.sample_tiles import SampleTiles
from trainer.run.checkpoint import restore_fixed
from trainer.run.failure import remedy_of
from trainer.run.machine import Machine, machine_of
from trainer.run.model import load_model
from trainer.run.untrained import load_untrained
from trainer.run_folder.run_dir import existing_start_copy
from trainer.run_folder.shards import has_averages, read_whole
from trainer.step.failures import explain

IDLE_SECONDS = 900.0
_MAX_WAITING = 50
_OUT_OF_MEMORY = "Use a smaller image, a smaller dtype of the model, or offload to the CPU on the Training page."
_Placed = tuple[ModelFamily, Placement, SampledModel | None]
_FIELDS = ("model", "parts", "quantization", "embeddings", "general", "training")


@dataclass(frozen=True, eq=False)
class _LoadedModel:
    """A loaded model, with a key of the config that it was loaded from."""

    key: str
    family: ModelFamily
    sampler: ImageSampler
    stack: AdapterStack


class SamplingEngine:
    """Samples requests one after another; a model is loaded when a request has another one than the last."""

    def __init__(self) -> None:
        self._loaded: _LoadedModel | None = None
        self.num_loads = 0

    def sample(self, request: SampleRequest, job: Job) -> JobFinished:
        """Sample the images of a request, write and report each, and return the list of files.

        Raises DarkroomError for a request that cannot be sampled, and StopRequested between denoising steps.
        """
        plan = plan_of(request)
        folder = from_root(request.choices.folder)
        start = _first_free(folder)
        done_steps = 0
        images: dict[int, dict[tuple[int, int], Image.Image]] = {}
        paths: list[str] = []
        for index, cell in enumerate(plan.cells):
            sampler = self.sampler_of(request, cell.weights, job)

            def next_step() -> None:
                nonlocal done_steps
                job.progress("sampling", done_steps, plan.num_steps)
                done_steps += 1

            [image] = sampler.sample([cell.prompt], on_step=next_step)
            settings = settings_of(cell, model_name_of_samples(request.config))
            path = folder / image_name(cell, start + index)
            write_image(image, path, settings)
            paths.append(str(path))
            images.setdefault(cell.number, {})[cell.column, cell.row] = image
            job.emit(_sample_event(path, index, plan, cell, request))
        job.progress("sampling", plan.num_steps, plan.num_steps)
        if plan.is_grid:
            paths += self._write_grids(folder, start + len(plan.cells), plan, images, request, job)
        return JobFinished(f"Sampled {count(len(plan.cells), 'image')}.", tuple(paths), _notes(plan), request.number)

    def sampler_of(self, request: SampleRequest, weights: Weights, job: Job) -> ImageSampler:
        """Return the sampler of a model with an image's weights; it is loaded, or its adapters are changed.

        Raises DarkroomError for a model or an adapter that cannot be read.
        """
        config = _config_of(request, weights)
        fields = {k: v for k, v in encode(config).items() if k in _FIELDS}
        key = json.dumps([weights.backup, config.sampling.model, fields], sort_keys=True)
        if self._loaded is None or self._loaded.key != key:
            self.close()
            job.progress("loading the model", 0, 1)
            self._loaded = _load(config, weights.backup, key)
            self.num_loads += 1
            job.progress("loading the model", 1, 1)
        self._loaded.stack.put([WeightedFile(from_root(a.path), a.strength) for a in weights.adapters])
        return self._loaded.sampler

    def close(self) -> None:
        """Free the model's memory."""
        self._loaded = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _write_grids(
        self,
        folder: Path,
        start: int,
        plan: SamplePlan,
        images: dict[int, dict[tuple[int, int], Image.Image]],
        request: SampleRequest,
        job: Job,
    ) -> list[str]:
        """Write and report the labelled image of each grid: one for every seed."""
        paths = []
        for number in sorted(images):
            cell = next(c for c in plan.cells if c.number == number)
            path = folder / f"{start + number + 1:04d} grid seed {cell.prompt.seed}.png"
            sheet = compose_grid(images[number], plan.columns, plan.rows, title=request.prompt.prompt)
            plain = replace(
                cell, prompt=request.prompt, weights=Weights("", request.choices.adapters, request.choices.backup)
            )
            settings = settings_of(plain, model_name_of_samples(request.config))
            axes = {"x": list(plan.columns), "y": list(plan.rows)}
            write_image(sheet, path, {**settings, "grid": axes})
            paths.append(str(path))
            event = ImageSampled(
                str(path),
                len(plan.cells) + number,
                len(plan.cells),
                cell.prompt.prompt,
                cell.prompt.seed,
                "Grid",
                is_grid=True,
                request=request.number,
            )
            job.emit(event)
        return paths


def _config_of(request: SampleRequest, weights: Weights) -> Config:
    """Return the config of an image's model: from the request, from a backup, or with another base model.

    A config with a sampling model is sampled with it, as in its run, and never with a training adapter.
    """
    if weights.backup:
        stored = load_file(from_root(weights.backup) / "config.json").config
        # Its weights may depend on the seed.
        general = request.config.general.model_copy(update={"seed": stored.general.seed})
        return without_training_adapter(stored.model_copy(update={"general": general}))
    config = request.config
    if weights.model:
        config = without_additions(config.model_copy(update={"model": with_model(config, weights.model).model}))
    config = without_training_adapter(config)
    words = tuple(
        EmbeddingSettings(placeholder=Path(file).stem, file=file, train=False, token_count=None)
        for file in request.choices.embeddings
    )
    training = config.training.model_copy(update={"trains": "adapter"})  # so that text is read and nothing is trained
    embeddings = config.embeddings.model_copy(update={"words": words})
    return config.model_copy(update={"embeddings": embeddings, "training": training})


def _load(config: Config, backup: str, key: str) -> _LoadedModel:
    config = without_lacking_parts(config, kind_of_model(config))
    machine = machine_of(config.general, config.training.precision)
    load = partial(_of_backup, from_root(backup)) if backup else load_untrained
    family, placement, sampled = load(config, machine)
    for part in family.parts.values():
        part.module.eval().requires_grad_(False)
    stack = AdapterStack({name: part.module for name, part in family.parts.items()}, family.lora_naming)
    tiles = SampleTiles(config, machine.free_now)
    device, precision = machine.train_device, machine.precision
    fit = fit_of_references(config)
    sampler = ImageSampler(family, placement, device, precision, sampled, tiles_of=tiles.of, fit=fit)
    return _LoadedModel(key, family, sampler, stack)


def _of_backup(backup: Path, config: Config, machine: Machine) -> _Placed:
    """Return the model of a run as a backup has it: with the averages (EMA), if there are any."""
    prompts = (SamplePrompt(guidance=config.family.sample_guidance),)  # a run without guided samples reads no guide
    config = config.model_copy(update={"sampling": config.sampling.model_copy(update={"prompts": prompts})})
    model = load_model(config, machine, start_copy=existing_start_copy(backup.parent.parent))
    weights = read_whole(backup, "ema" if has_averages(backup) else "weights")
    parameters = exact_parameters(model.groups)
    if not weights.keys() <= parameters.keys():
        raise DarkroomError(
            f"The weights in the backup {backup} do not match its config.", advice="Choose another one."
        )
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)
    restore_fixed(backup, model.groups)
    return model.family, model.placement, model.sampled


def _first_free(folder: Path) -> int:
    """Return the number of the next image in a folder."""
    names = (path.name[:4] for path in folder.glob("*.png")) if folder.is_dir() else ()
    return max((int(name) for name in names if name.isdigit()), default=0)


def _sample_event(path: Path, index: int, plan: SamplePlan, cell: Cell, request: SampleRequest) -> ImageSampled:
    caption = ", ".join(label for label in cell.labels if label) or f"Seed {cell.prompt.seed}"
    return ImageSampled(
        str(path),
        index,
        len(plan.cells),
        cell.prompt.prompt,
        cell.prompt.seed,
        caption,
        request=request.number,
    )


def _notes(plan: SamplePlan) -> tuple[str, ...]:
    missing = sorted({name for cell in plan.cells for name in cell.missing})
    files = dict.fromkeys(from_root(a.path) for cell in plan.cells for a in cell.weights.adapters)
    kinds = ((file, identify(file)) for file in files)
    doubts = [f"{file.name}: {kind.sentence}" for file, kind in kinds if "alpha" in kind.facts]
    return (*(f"There is no wildcard file {name}.txt." for name in missing), *doubts)


class Inbox:
    """Lines from the window, read on a thread: requests wait in order, and a stop ends all that came before it."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[SampleRequest, commands.CommandDesk] | None] = queue.SimpleQueue()
        self._desks: list[commands.CommandDesk] = []

    def read(self, lines: Iterable[str]) -> None:
        """Read lines until there are no more: the window has ended, and so does the worker."""
        for line in lines:
            request = sample_in(line)
            if request is not None:
                desk = commands.CommandDesk()
                self._desks = [*self._desks[-_MAX_WAITING:], desk]
                self._requests.put((request, desk))
            elif isinstance(commands.from_line(line), commands.Stop):
                self._stop()
        self._stop()
        self._requests.put(None)

    def next(self, idle_seconds: float) -> tuple[SampleRequest, commands.CommandDesk] | None:
        """Wait for a request and return it with its desk; None when there are no more, or none for a while."""
        try:
            return self._requests.get(timeout=idle_seconds)
        except queue.Empty:
            return None

    def _stop(self) -> None:
        for desk in self._desks:
            desk.put(commands.Stop())


def serve_window() -> None:
    """Sample the requests that the window sends on standard input, until it ends or sends none for a while."""
    import_engine(in_window=False)
    inbox = Inbox()
    threading.Thread(target=inbox.read, args=(sys.stdin,), name="darkroom-requests", daemon=True).start()

    def emit(event: JobEvent) -> None:
        sys.stdout.write(to_line(event) + "\n")
        sys.stdout.flush()

    serve(inbox, emit)


def serve(inbox: Inbox, emit: Callable[[JobEvent], None], *, idle_seconds: float = IDLE_SECONDS) -> int:
    """Sample requests until there are no more, or none for `idle_seconds`; return how many there were.

    A failure ends a request, not the worker.
    """
    engine = SamplingEngine()
    num_requests = 0
    while (received := inbox.next(idle_seconds)) is not None:
        request, desk = received
        num_requests += 1
        emit(_answer(engine, request, Job(emit, desk)))
    engine.close()
    return num_requests


def _answer(engine: SamplingEngine, request: SampleRequest, job: Job) -> JobEvent:
    try:
        return engine.sample(request, job)
    except commands.StopRequested:
        return JobStopped("Stopped.", request.number)
    except DarkroomError as error:
        return JobFailed(redact(error.message), redact(error.advice), "", request.number, remedy_of(error))
    except torch.OutOfMemoryError:
        engine.close()
        return JobFailed("The device has too little memory for this image.", _OUT_OF_MEMORY, request=request.number)
    except Exception as error:  # noqa: BLE001 - the outer edge of a request; reported to the window
        details = redact(traceback.format_exc())
        message, advice = explain(error)
        return JobFailed(redact(message), advice, details, request.number, remedy_of(error))
