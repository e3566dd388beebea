"""sample: generate images with a config's base model or any other one, with LoRAs and embeddings, also as a grid."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence

from modules.adapters.registry import adapter_labels
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.jobs import add_job_arguments, run_job
from trainer.cli.lora_options import split_strength
from trainer.cli.options import add_set_argument, changed, read_config
from trainer.event_lines import to_line
from trainer.idle_sampling.axes import AXES
from trainer.idle_sampling.base import with_model
from trainer.idle_sampling.request import AdapterChoice, AxisChoice, SampleRequest
from trainer.job_events import JobEvent, JobFinished
from trainer.launch import import_engine
from trainer.tools.job import Job

_FIELDS = ("prompt", "negative_prompt", "seed", "steps", "guidance", "sampler", "width_px", "height_px")


def _sample(options: argparse.Namespace) -> int:
    if options.serve:
        return _serve()
    requests = _requests(options)
    import_engine(beside_window=False)
    from trainer.idle_sampling.engine import SamplingEngine

    engine = SamplingEngine()

    def work(job: Job) -> JobFinished:
        done = [engine.sample(request, job) for request in requests]
        paths = tuple(path for finished in done for path in finished.paths)
        notes = tuple(dict.fromkeys(note for finished in done for note in finished.notes))
        return JobFinished(done[0].message if len(done) == 1 else f"Sampled {len(done)} prompts.", paths, notes)

    return run_job(options, work)


def _serve() -> int:
    """Sample the requests that the window sends, until it ends."""
    import_engine(beside_window=False)
    from trainer.idle_sampling.worker import Inbox, serve

    inbox = Inbox()
    threading.Thread(target=inbox.read, args=(sys.stdin,), name="darkroom-requests", daemon=True).start()

    def emit(event: JobEvent) -> None:
        sys.stdout.write(to_line(event) + "\n")
        sys.stdout.flush()

    serve(inbox, emit)
    return 0


def _requests(options: argparse.Namespace) -> Sequence[SampleRequest]:
    config = _config(options)
    prompts = [p for p in config.sampling.prompts if p.enabled]
    if options.prompt is not None or (not prompts and options.config is None):
        prompts = [(prompts or [SamplePrompt()])[0]]
    if not prompts:
        raise DarkroomError(
            "The config has no sample prompts.", advice="Add some on the Sampling page, or use --prompt."
        )
    x, y = _axis(options.x), _axis(options.y)
    adapters = tuple(AdapterChoice(str(from_caller(path)), s) for path, s in map(split_strength, options.lora))
    requests = []
    for prompt in prompts:
        sampling = config.sampling.model_copy(update={"prompts": (prompt,)})
        own = _with_fields(config.model_copy(update={"sampling": sampling}), options)
        requests.append(
            SampleRequest(
                own,
                str(from_caller(options.out)),
                adapters,
                tuple(str(from_caller(path)) for path in options.embedding),
                options.images,
                x,
                y,
                wildcards=str(from_caller(options.wildcards)) if options.wildcards else "",
                backup=str(from_caller(options.backup)) if options.backup else "",
                run=str(from_caller(options.run_dir)) if options.run_dir else "",
            )
        )
    return requests


def _config(options: argparse.Namespace) -> Config:
    """Return the config that is named, that of a run, or the defaults, with the model that is named."""
    if options.config is not None:
        config = read_config(options.config, options.changes, preset=options.preset).config
    elif options.run_dir or options.backup:
        from trainer.idle_sampling.saves import config_of_run

        config = changed(config_of_run(from_caller(options.run_dir or options.backup)), options.changes)
    elif options.model:
        config = changed(Config(), options.changes)
    else:
        raise DarkroomError("No model is given.", advice="Name a config, or use --model, --run or --backup.")
    if not options.model:
        return config
    path = from_caller(options.model)
    return with_model(config, str(path) if path.exists() else options.model)


def _with_fields(config: Config, options: argparse.Namespace) -> Config:
    """Return a config whose prompt has the fields that are given."""
    for name in _FIELDS:
        value = getattr(options, name)
        if value is not None:
            config, problems = set_path(config, f"sampling.prompts.0.{name}", value)
            if problems:
                raise DarkroomError(f"--{name.replace('_', '-')} {value}: {problems[0].message}")
    return config


def _axis(text: str | None) -> AxisChoice | None:
    if text is None:
        return None
    name, equals, values = text.partition("=")
    if not equals:
        raise DarkroomError(f"The axis {text!r} has no values.", advice="Write it as --x strength=0,0.5,1.")
    return AxisChoice(name.strip(), values)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a config file, or a preset such as '#demo'")
    parser.add_argument("--preset", metavar="NAME", help="for settings the config leaves out: those of this preset")
    add_set_argument(parser)
    parser.add_argument("--model", metavar="MODEL", help="another base model: a file, a diffusers folder, a Hub name")
    lora = f"an adapter file ({adapter_labels()}) with its strength behind a colon; can be repeated"
    parser.add_argument("--lora", metavar="FILE[:STRENGTH]", action="append", default=[], help=lora)
    embedding = "an embedding; the name of its file is its placeholder in prompts; can be repeated"
    parser.add_argument("--embedding", metavar="FILE", action="append", default=[], help=embedding)
    parser.add_argument(
        "--run", dest="run_dir", metavar="RUN", help="a run's folder, for its config and for the axis save"
    )
    parser.add_argument("--backup", metavar="BACKUP", help="a backup of a run: sample the model as it was there")
    parser.add_argument("--prompt", help="the prompt, instead of those of the config; may have wildcards")
    parser.add_argument("--negative-prompt")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--guidance", type=float, help="the guidance scale (CFG)")
    parser.add_argument("--sampler")
    parser.add_argument("--width-px", type=int)
    parser.add_argument("--height-px", type=int)
    parser.add_argument("--images", type=_positive, default=1, help="how many images, each with the next seed")
    axes = ", ".join(AXES)
    parser.add_argument(
        "--x", metavar="AXIS=VALUES", help=f"the columns of a grid, as in strength=0,0.5,1; axes: {axes}"
    )
    parser.add_argument("--y", metavar="AXIS=VALUES", help="the rows of a grid, as in steps=10-50 (+10)")
    parser.add_argument("--wildcards", metavar="FOLDER", help="the folder with the files of __name__ wildcards")
    parser.add_argument("--out", metavar="FOLDER", default="samples", help="the output folder (default: samples)")
    parser.add_argument("--serve", action="store_true", help="for programs: read requests from standard input")
    add_job_arguments(parser)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


SAMPLE = Verb("generate images: the samples of a config, or any prompt with any model", _arguments, _sample)
