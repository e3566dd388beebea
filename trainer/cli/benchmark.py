"""benchmark: measure the program on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from modules.system.atomic import write_text
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.launch import import_engine

MEASUREMENTS = (
    "memory",
    "start",
    "loop",
    "large-loop",
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


def _benchmark(options: argparse.Namespace) -> int:
    import_engine(beside_window=False)
    from trainer.benchmark.report import machine_facts, measure_all

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


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="run only these measurements"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda ...")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="also write the results as JSON")


BENCHMARK = Verb("measure the program on this machine", _arguments, _benchmark)
