"""Samples without a run: the request, the worker that keeps the model loaded, and the images so far."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.usage import with_family
from modules.settings.edit import set_path
from modules.system.atomic import write_text
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.child.job import ChildJob, JobEnded, start_job
from trainer.child.process import Spawn, spawn_trainer
from trainer.job_events import ImageSampled, JobEvent, JobFailed, JobFinished, JobStopped
from trainer.jobs.sample import SampleChoices, SampleRequest, sample_in, sample_line
from trainer.jobs.sample_grid import plan_of
from trainer.jobs.sample_images import read_settings
from trainer.jobs.sample_sources import with_model
from trainer.jobs.spec import validate_settings
from ui.forms.model import FormModel
from ui.loop.background import Background, Job, OrderedWrites, cancel
from ui.loop.jobs import JobState, apply_event, log_failure
from ui.loop.signal import Signal

_WORKER = ("sample", "--serve")
_MAX_IMAGES = 500
_MAX_SEEDS = 2**32


@dataclass(frozen=True, slots=True)
class SampledFile:
    """A sampled image, and whether it is a grid."""

    path: Path
    caption: str
    prompt: str
    is_grid: bool = False


class SampleSession:
    """The page's own config (`form`), its choices, its worker and its images; `changed` after each change."""

    def __init__(
        self, config: Config, background: Background, *, state_file: Path, spawn: Spawn = spawn_trainer
    ) -> None:
        self.choices = SampleChoices(wildcards="wildcards")
        self._bad_choice: DarkroomError | None = None
        self.form = FormModel(_with_prompt(config))
        self.state = JobState()
        self.images: tuple[SampledFile, ...] = ()  # the newest first
        self.changed: Signal[[]] = Signal()
        self._background = background
        self._state_file = state_file
        self._writes = OrderedWrites()
        self._spawn = spawn
        self._process: ChildJob | None = None
        self._num_requests = 0
        self._job: Job | None = None
        self.was_restored = False  # from an earlier session
        self._restore()
        self.form.watch("model.base_model", self._identify)

    @property
    def has_worker(self) -> bool:
        """Whether a worker is there, which keeps the last model loaded."""
        return self._process is not None

    def choose(self, **updates: Any) -> None:
        """Change some of the choices; one that is not valid is reported at the start."""
        values = {name: getattr(self.choices, name) for name in SampleChoices.model_fields} | updates
        try:
            self.choices, self._bad_choice = validate_settings(SampleChoices, values), None
        except DarkroomError as error:
            self._bad_choice = error

    def use_config(self, config: Config, *, with_prompt: bool = False) -> None:
        """Use the model and the devices of a config, and with `with_prompt` its first prompt."""
        prompts = self.form.config.sampling.prompts
        self.form.replace(_with_prompt(config, None if with_prompt else prompts[0]))
        self.choose(run="", backup="")

    def start(self) -> str:
        """Sample what is chosen; return why it cannot be, or nothing. The model's files are read in the background."""
        if self.state.is_active:
            return ""
        try:
            request = self._request()
        except DarkroomError as error:
            return str(error)
        self.state = JobState("running", "Samples")
        self.changed()
        self._background.run(lambda: _check_request(request), self._send, self._report_failure)
        return ""

    def stop(self) -> None:
        """Stop between two denoising steps."""
        if self.state.stage == "running":
            if self._process is not None:
                self._process.stop()
            self.state = replace(self.state, stage="stopping")
            self.changed()

    def unload(self) -> None:
        """End the worker, which frees the memory of the model."""
        if self._process is not None:
            self._process.close()

    def close(self) -> None:
        """Keep what is chosen for the next window, and end the worker."""
        with suppress(DarkroomError, OSError):  # an incomplete choice is not kept
            self._keep(sample_line(self._request()))()
        self.unload()

    def drain(self, _deadline: float) -> bool:
        """Apply the worker's new events, for the pump."""
        events = list(self._process.waiting()) if self._process is not None else []
        for event in events:
            self._take(event)
            if isinstance(event, JobEnded):
                self._process = None
        if events:
            self.changed()
        return bool(events)

    def use_settings_of(self, path: Path) -> bool:
        """Use the prompt and the fields of an image; return whether it has any."""
        settings = read_settings(path)
        fields = {k: v for k, v in settings.items() if k in SamplePrompt.model_fields}
        if not fields:
            return False
        config = self.form.config
        for name, value in fields.items():
            config, _problems = set_path(config, f"sampling.prompts.0.{name}", value)
        self.form.replace(config)
        return True

    def _request(self) -> SampleRequest:
        drafts = self.form.problems()
        if drafts:
            raise DarkroomError(drafts[0].message)
        if self._bad_choice is not None:
            raise self._bad_choice
        if self.form.value("sampling.prompts.0.random_seed"):
            self.form.edit("sampling.prompts.0.seed", secrets.randbelow(_MAX_SEEDS))
        config = self.form.config
        self._num_requests += 1
        folder = str(from_root(config.general.workspace_dir) / "samples")
        return SampleRequest(config, self.choices.model_copy(update={"folder": folder}), self._num_requests)

    def _identify(self) -> None:
        """Find the family and the variant of the base model in the background: they decide which fields there are."""
        name = self.form.value("model.base_model")
        cancel(self._job)
        config = self.form.config
        self._job = self._background.run(
            lambda: with_model(config, name), self._use_identified_model, lambda _error: None
        )

    def _use_identified_model(self, identified: Config) -> None:
        config = self.form.config
        if identified.model.base_model == config.model.base_model and identified.model != config.model:
            self.form.replace(with_family(config, identified.model.family.name, identified.model.variant))

    def _send(self, request: SampleRequest) -> None:
        if self.state.stage != "running":
            self.state = replace(self.state, stage="stopped", message="Stopped.")
            self.changed()
            return
        if self._process is None:
            self._process = start_job(_WORKER, spawn=self._spawn)
        line = sample_line(request)
        self._process.send_line(line)
        self._background.run(self._keep(line), lambda _done: None, lambda _error: None)

    def _keep(self, line: str) -> Callable[[], bool]:
        """Return the function that keeps a request for the next window."""
        return self._writes.following(partial(write_text, self._state_file, line))

    def _report_failure(self, error: Exception) -> None:
        failed = JobFailed(str(error))
        if isinstance(error, DarkroomError):
            failed = JobFailed(error.message, error.advice, remedy=error.remedy)
        self.state = apply_event(self.state, failed)
        self.changed()

    def _take(self, event: JobEvent | JobEnded) -> None:
        number = getattr(event, "request", self._num_requests)
        if isinstance(event, ImageSampled):
            image = SampledFile(Path(event.path), event.caption, event.prompt, event.is_grid)
            self.images = (image, *self.images[: _MAX_IMAGES - 1])
        elif not isinstance(event, JobFinished | JobFailed | JobStopped) or number == self._num_requests:
            self.state = apply_event(self.state, event)
            if isinstance(event, JobFailed | JobEnded):
                log_failure(self.state)

    def _restore(self) -> None:
        """Restore the last request of an earlier session, if there is one."""
        try:
            request = sample_in(_with_choices(self._state_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return
        if request is None:
            return
        self.was_restored = True
        self.form = FormModel(_with_prompt(self.form.config, request.prompt))
        self.choices = request.choices.model_copy(update={"run": "", "backup": ""})


def _with_choices(line: str) -> str:
    """Return the line of a request with its choices as one section: earlier versions wrote them one by one."""
    data = json.loads(line)
    if not isinstance(data, dict) or "choices" in data:
        return line
    choices = {name: data[name] for name in ("embeddings", "num_images", "wildcards")}
    choices["adapters"] = [{"path": path, "strength": strength} for path, strength in data["adapters"]]
    choices |= {name: "=".join(data[name]) for name in ("x", "y") if name in data}
    return json.dumps({**data, "choices": choices})


def _with_prompt(config: Config, prompt: SamplePrompt | None = None) -> Config:
    """Return a config with one prompt: the given one, or the first of the config."""
    first = prompt or next(iter(config.sampling.prompts), None) or SamplePrompt()
    sampling = config.sampling.model_copy(update={"prompts": (first,)})
    return config.model_copy(update={"sampling": sampling})


def _check_request(request: SampleRequest) -> SampleRequest:
    """Return a request with the family of its base model's files. Raises DarkroomError for a bad model or grid."""
    plan_of(request)
    if request.choices.backup:
        return request
    return replace(request, config=with_model(request.config, request.config.model.base_model))
