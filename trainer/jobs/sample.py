"""The job that generates images with any model, with LoRAs and embeddings, also as a grid; and its requests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from modules.adapters.registry import adapter_labels
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.sampling.registry import sampler_labels
from modules.settings.edit import set_path
from modules.settings.field import Section, Setting, one_of
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_caller, from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import Changes, apply_changes, read_config
from trainer.jobs.sample_grid import AXES
from trainer.jobs.sample_sources import config_of_run, with_model
from trainer.jobs.spec import LORA_FILE, AdapterChoice, Argument, JobSpec, validate_settings
from trainer.launch import import_engine

_FIELDS = ("prompt", "negative_prompt", "seed", "steps", "guidance", "sampler", "width_px", "height_px")


class SampleChoices(Section):
    """Choices besides the model and the prompt of a config: adapters, embeddings, and the axes of a grid.

    Image n of `num_images` has the prompt's seed plus n. `backup` is the backup of a run whose weights replace the
    config's; the axis of saves takes them from `run`. An axis is its name and its values, as in "steps=10-50 (+10)".
    """

    folder: Annotated[
        str, Setting("Write to", "The output folder.", path_kind="folder"), Argument("--out", "FOLDER")
    ] = "samples"
    adapters: Annotated[
        tuple[AdapterChoice, ...],
        Setting("LoRAs", f"An adapter file ({adapter_labels()}) with its strength behind a colon; can be repeated."),
        Argument("--lora", LORA_FILE),
    ] = ()
    embeddings: Annotated[
        tuple[str, ...],
        Setting(
            "Embeddings",
            "An embedding; the name of its file is its placeholder in prompts; can be repeated.",
            path_kind="file",
        ),
        Argument("--embedding", "FILE"),
    ] = ()
    num_images: Annotated[
        int,
        *Interval(ge=1, le=1000),
        Setting("Images", "How many, each with the next seed; of a grid as many grids."),
        Argument("--images"),
    ] = 1
    x: Annotated[
        str,
        Setting(
            "Columns (X)",
            f"The columns of a grid, as in strength=0,0.5,1; axes: {', '.join(AXES)}.",
        ),
        Argument(metavar="AXIS=VALUES"),
    ] = ""
    y: Annotated[
        str,
        Setting("Rows (Y)", "The rows of a grid, as in steps=10-50 (+10)."),
        Argument(metavar="AXIS=VALUES"),
    ] = ""
    wildcards: Annotated[
        str,
        Setting(
            "Wildcards",
            "In prompts, {red|blue} is one of its choices, and __colour__ a line of colour.txt in this folder.",
            path_kind="folder",
            empty_means="no folder",
        ),
    ] = ""
    backup: Annotated[
        str,
        Setting("Backup", "A backup of a run: sample the model as it was there.", path_kind="folder"),
        Argument(metavar="BACKUP"),
    ] = ""
    run: Annotated[
        str,
        Setting("Run", "A run's folder, for its config and for the axis save.", path_kind="folder"),
        Argument(metavar="RUN"),
    ] = ""


class SampleSettings(SampleChoices):
    """The settings of the verb: where the config comes from, and changes of its prompt."""

    config: Annotated[
        str,
        Setting("Config", "A config file, or a preset such as '#demo'."),
        Argument(metavar="CONFIG", is_positional=True),
    ] = ""
    preset: Annotated[
        str,
        Setting("Preset", "Use this preset instead of the defaults for settings the config leaves out."),
        Argument(metavar="NAME"),
    ] = ""
    changes: Changes = ()
    model: Annotated[
        str,
        Setting("Model", "Another base model: a file, a diffusers folder, a Hub name."),
        Argument(metavar="MODEL"),
    ] = ""
    prompt: Annotated[
        str | None, Setting("Prompt", "The prompt, instead of the config's prompts; may have wildcards.")
    ] = None
    negative_prompt: Annotated[str | None, Setting("Negative prompt", "The negative prompt.")] = None
    seed: Annotated[int | None, Setting("Seed", "The seed of the first image.")] = None
    steps: Annotated[int | None, Setting("Steps", "Denoising steps.")] = None
    guidance: Annotated[float | None, Setting("Guidance", "The guidance scale (CFG).")] = None
    sampler: Annotated[
        str, *one_of(lambda: {"": "Of the config", **sampler_labels()}), Setting("Sampler", "The sampler.")
    ] = ""
    width_px: Annotated[int | None, Setting("Width", "The width of the images.", "px")] = None
    height_px: Annotated[int | None, Setting("Height", "The height of the images.", "px")] = None


SAMPLE = JobSpec(
    "sample",
    "Generate",
    "Generate images: the samples of a config, or any prompt with any model.",
    SampleSettings,
    "trainer.jobs.sample:sample",
    server="trainer.jobs.sample_engine:serve_window",
)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A config's base model and the first of its prompts, with choices; `number` counts requests."""

    config: Config
    choices: SampleChoices = field(default_factory=SampleChoices)
    number: int = 0

    @property
    def prompt(self) -> SamplePrompt:
        """The prompt to sample. Raises DarkroomError without one."""
        prompts = self.config.sampling.prompts
        if not prompts:
            raise DarkroomError("There is no prompt.", advice="Write a prompt.")
        return prompts[0]


def sample(settings: SampleSettings, job: Job) -> JobFinished:
    """Sample one prompt after another. Raises DarkroomError for a request that cannot be sampled."""
    requests = _requests(settings)
    import_engine(in_window=False)
    engine = load_factory("trainer.jobs.sample_engine:SamplingEngine")()
    results: list[JobFinished] = [engine.sample(request, job) for request in requests]
    paths = tuple(path for result in results for path in result.paths)
    notes = tuple(dict.fromkeys(note for result in results for note in result.notes))
    message = results[0].message if len(results) == 1 else f"Sampled {len(results)} prompts."
    return JobFinished(message, paths, notes)


def sample_line(request: SampleRequest) -> str:
    """Return a request as one line of JSON, for the process that keeps a model loaded."""
    data = {
        "request": request.number,
        "config": encode(request.config),
        "choices": request.choices.model_dump(mode="json"),
    }
    return json.dumps(data)


def sample_in(line: str) -> SampleRequest | None:
    """Return the request of a line, or None for any other line."""
    try:
        data = json.loads(line)
        if not isinstance(data, dict) or not isinstance(data.get("choices"), dict):
            return None
        choices = validate_settings(SampleChoices, data["choices"])
        return SampleRequest(decode(data["config"]).config, choices, int(data["request"]))
    except (ValueError, KeyError, TypeError, RecursionError, DarkroomError):
        return None


def _requests(settings: SampleSettings) -> list[SampleRequest]:
    config = _config(settings)
    prompts = [p for p in config.sampling.prompts if p.enabled]
    if settings.prompt is not None or (not prompts and not settings.config):
        prompts = [(prompts or [SamplePrompt()])[0]]
    if not prompts:
        raise DarkroomError(
            "The config has no sample prompts.", advice="Add some under Sampling & validation, or use --prompt."
        )
    choices = validate_settings(SampleChoices, {name: getattr(settings, name) for name in SampleChoices.model_fields})
    requests = []
    for prompt in prompts:
        sampling = config.sampling.model_copy(update={"prompts": (prompt,)})
        requests.append(
            SampleRequest(_with_fields(config.model_copy(update={"sampling": sampling}), settings), choices)
        )
    return requests


def _config(settings: SampleSettings) -> Config:
    """Return the named config, the config of the run, or the defaults, with the named model."""
    if settings.config:
        config = read_config(settings.config, settings.changes, preset=settings.preset).config
    elif settings.run or settings.backup:
        config = apply_changes(config_of_run(from_root(settings.run or settings.backup)), settings.changes)
    elif settings.model:
        config = apply_changes(Config(), settings.changes)
    else:
        raise DarkroomError("No model is given.", advice="Name a config, or use --model, --run or --backup.")
    if not settings.model:
        return config
    path = from_caller(settings.model)
    return with_model(config, str(path) if path.exists() else settings.model)


def _with_fields(config: Config, settings: SampleSettings) -> Config:
    """Return a config whose prompt has the given fields."""
    for name in _FIELDS:
        value = getattr(settings, name)
        if value is not None and not (name == "sampler" and not value):
            config, problems = set_path(config, f"sampling.prompts.0.{name}", value)
            if problems:
                raise DarkroomError(f"--{name.replace('_', '-')} {value}: {problems[0].message}")
    return config
