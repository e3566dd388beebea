"""`python -m benchmarks`: measure the program on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from modules.system.atomic import write_text
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_caller
from modules.system.process_setup import hide_library_warnings
from trainer.cli.program import Verb, run_verb
from trainer.jobs.config import read_config
from trainer.launch import import_engine

_SUMMARY = (
    "Measure the program on this machine. Further commands: kernels counts those of a step, gpu checks a GPU, "
    "dataset times starts with many images, upload sends them to another machine, preference trains the "
    "demo models with single methods."
)
_COMMANDS = {
    "kernels": "benchmarks.kernels.command:main",
    "gpu": "benchmarks.gpu.command:main",
    "dataset": "benchmarks.dataset_size:main",
    "upload": "benchmarks.upload:main",
    "preference": "benchmarks.preference_command:main",
}
MEASUREMENTS = (
    "memory",
    "start",
    "loop",
    "checkpointed-loop",
    "large-loop",
    "host-waits",
    "several",
    "loop-variants",
    "saving",
    "quantization",
    "full-size",
    "waiting",
    "caching",
    "preference",
    "window",
)


def _measure(options: argparse.Namespace) -> int:
    if options.profile is not None:
        return _profile(options)
    import_engine(in_window=False)
    from benchmarks.report import machine_facts, measure_all

    facts = machine_facts(options.device, options.threads)
    sys.stdout.write(", ".join(f"{k} {v}" for k, v in facts.items()) + "\n")
    rows = []
    for row in measure_all(options.device, num_threads=options.threads, wanted=frozenset(options.only)):
        rows.append(row)
        goal = f"  (goal: {row.goal})" if row.goal else ""
        sys.stdout.write(f"{row.name:40} {row.value}{goal}\n")
        sys.stdout.flush()
    if options.json:
        data = {"machine": facts, "rows": [asdict(r) for r in rows]}
        write_text(from_caller(options.json), json.dumps(data, indent=2) + "\n")
    return 0


def _profile(options: argparse.Namespace) -> int:
    if options.steps < 1:
        raise DarkroomError(f"--steps {options.steps} is too few.", advice="Profile at least one step.")
    config = read_config(options.config).config if options.config else None
    import_engine(in_window=False)
    from benchmarks.profile import profile_all

    out = from_caller(options.profile)
    for profile in profile_all(
        options.device, out, num_steps=options.steps, num_threads=options.threads, config=config
    ):
        sys.stdout.write(f"{profile}\n")
        sys.stdout.flush()
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="run only these measurements"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda ...")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument(
        "--profile",
        nargs="?",
        const="profile",
        metavar="FOLDER",
        help="instead of measuring, profile training steps: tables of the host's time by function, of operators and of "
        "waits, and a Chrome trace (default: the folder profile)",
    )
    parser.add_argument("--config", metavar="CONFIG", help="with --profile: the config to profile, or a preset's name")
    parser.add_argument("--steps", type=int, default=10, help="with --profile: how many steps (default: 10)")
    parser.add_argument("--json", metavar="FILE", help="also write the results as JSON")


def _main(arguments: Sequence[str]) -> int:
    hide_library_warnings()  # some commands import libraries before they read their options
    if arguments and arguments[0] in _COMMANDS:
        return int(load_factory(_COMMANDS[arguments[0]])(arguments[1:]))
    return run_verb("python -m benchmarks", Verb(_SUMMARY, _arguments, _measure), arguments)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
