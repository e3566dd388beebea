"""probe: the largest micro-batch that fits and a learning rate, measured on a few real steps."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from modules.rewards.user_code_file import approved_hashes
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller, from_root
from trainer.cli import Verb
from trainer.cli.jobs import add_job_arguments, run_job
from trainer.cli.options import add_allow_code, add_config_argument, allowed_code, read_config
from trainer.launch import import_engine

_MIN_STEPS = 12


def _probe(options: argparse.Namespace) -> int:
    config = read_config(options.config, options.changes, preset=options.preset).config
    if options.steps < _MIN_STEPS:
        raise DarkroomError(f"--steps {options.steps} is too few.", advice=f"A sweep takes at least {_MIN_STEPS}.")
    import_engine(beside_window=False)
    from trainer.probe.search import ProbeRequest, probe

    request = ProbeRequest(
        config,
        from_caller(options.out) if options.out else _new_folder(from_root(config.general.workspace_dir)),
        wants_batch=options.what in ("batch", "both"),
        wants_rate=options.what in ("rate", "both"),
        num_steps=options.steps,
        lowest_rate=options.lowest or 0.0,
        highest_rate=options.highest or 0.0,
        max_batch=options.max_batch,
        approved_code=frozenset(approved_hashes() | allowed_code(config, options)),
    )
    return run_job(options, lambda job: probe(request, job))


def _new_folder(workspace: Path) -> Path:
    return workspace / "probes" / f"{datetime.now():%Y%m%d-%H%M%S}"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trains a few steps with growing batches, and with a rising learning rate (a range test, Smith 2017), and "
        "writes plots and points.json. The config, its output and its runs stay as they are; its caches are filled."
    )
    add_config_argument(parser)
    parser.add_argument("--what", choices=("batch", "rate", "both"), default="both", help="what to measure")
    parser.add_argument("--steps", type=int, default=60, help="steps of the sweep of learning rates (default: 60)")
    parser.add_argument("--from", dest="lowest", type=float, metavar="RATE", help="the lowest learning rate")
    parser.add_argument("--to", dest="highest", type=float, metavar="RATE", help="the highest learning rate")
    parser.add_argument("--max-batch", type=int, default=128, help="the largest batch to try (default: 128)")
    parser.add_argument("--out", metavar="FOLDER", default="", help="where the results go (default: in the workspace)")
    add_allow_code(parser)
    add_job_arguments(parser)


PROBE = Verb("measure the largest batch that fits, and a learning rate", _arguments, _probe)
