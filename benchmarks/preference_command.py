"""`python -m benchmarks preference`: what methods teach the demo models, and the choice of their learning rates.

`--choose` trains with every learning rate of a case, and measures with prompts and seeds that no reported figure uses.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.demo_runs import demo_preset
from benchmarks.preference import HELD_OUT, REWARD, Measurement, RunResult, Start, start_runs, train_case, uses_pairs
from benchmarks.preference_cases import DEMOS, Case, Demo
from benchmarks.preference_data import Split, choosing_split, reported_split
from benchmarks.rows import Row
from modules.objectives.registry import METHODS
from modules.system.devices import Device, resolve_device
from trainer.cli.program import Verb, run_verb
from trainer.launch import import_engine

KEPT_SHAPES = 0.85
"""The share of the right shapes before training that a run has to keep for its learning rate to be chosen."""

_SUMMARY = "Train a demo model with methods that learn from rewards or preferences, and measure what it has learned."


def reported_rows(
    demo: Demo, folder: Path, device: Device, *, num_threads: int, wanted: Collection[str] = METHODS, seed: int = 42
) -> Iterator[Row]:
    """Train the cases of a demo model, and yield the measurements with held-out prompts and seeds."""
    cases = [case for case in demo.cases if case.name in wanted]
    start = _start(demo, cases, folder, device, reported_split(seed), num_threads=num_threads)
    yield start_row(demo, start)
    for case in cases:
        yield trained_row(case, start, train_case(folder, case, start, num_threads=num_threads))


def choosing_rows(
    demo: Demo, folder: Path, device: Device, *, num_threads: int, wanted: Collection[str] = METHODS
) -> Iterator[Row]:
    """Train the cases with each of their learning rates on half of the prompts, as many steps as in a reported run;
    yield what is measured with the other half, and the learning rate that is chosen.
    """
    cases = [case for case in demo.cases if case.name in wanted and case.rates]
    start = _start(demo, cases, folder, device, choosing_split(), num_threads=num_threads)
    yield start_row(demo, start)
    for case in cases:
        measurements = {}
        for rate in case.rates:
            tried = replace(case, learning_rate=rate, epochs=2 * case.epochs)
            learned = train_case(folder, tried, start, num_threads=num_threads)
            measurements[rate] = learned.after
            row = trained_row(tried, start, learned)
            yield replace(row, name=f"{row.name}, {rate:g}", goal="")
        yield Row(f"{case_name(case)}: learning rate", f"{best_rate(measurements, start.before):g}")


def _start(demo: Demo, cases: Sequence[Case], folder: Path, device: Device, split: Split, *, num_threads: int) -> Start:
    return start_runs(
        demo_preset(device, demo.preset),
        folder,
        split,
        guidance=demo.guidance,
        num_threads=num_threads,
        needs_pairs=any(map(uses_pairs, cases)),
    )


def best_rate(measurements: dict[float, Measurement], before: Measurement) -> float:
    """Return the learning rate with the highest reward among those that keep most shapes right, else the lowest."""
    kept = {rate: m for rate, m in measurements.items() if m.right_shapes >= KEPT_SHAPES * before.right_shapes}
    return max(kept, key=lambda rate: kept[rate].reward, default=min(measurements))


def start_row(demo: Demo, start: Start) -> Row:
    """Return the measurements before training as a row of the table."""
    before = start.before
    value = (
        f"{REWARD} {before.reward:.3f}; held out: {HELD_OUT} {before.held_out:.3f}, right shapes "
        f"{before.right_shapes:.0%}; {start.pair_calls} calls of the denoiser for the pairs"
    )
    return Row(f"{demo.preset} before training", value, numbers=asdict(before) | {"pair_calls": start.pair_calls})


def trained_row(case: Case, start: Start, learned: RunResult) -> Row:
    """Return the measurements after a case, and its costs, as a row of the table."""
    before, after = start.before, learned.after
    value = (
        f"{REWARD} {after.reward:.3f} ({after.reward - before.reward:+.3f}); held out: "
        f"{HELD_OUT} {after.held_out:.3f} ({after.held_out - before.held_out:+.3f}), right shapes "
        f"{after.right_shapes:.0%}; {learned.steps} steps, {learned.seconds:.0f} s, {learned.calls} calls, "
        f"{learned.latents} latents"
    )
    return Row(case_name(case), value, f"at least {case.goal:.2f}", asdict(learned))


def case_name(case: Case) -> str:
    """Return the name of a case in the table."""
    what = {"adapter": "LoRA", "full": "fine-tune"}[case.trains]
    return ", ".join(filter(None, (METHODS[case.name].label, case.variant, what)))


def _measure(options: argparse.Namespace) -> int:
    import_engine(in_window=False)
    demo, device = DEMOS[options.model], resolve_device(options.device)
    with tempfile.TemporaryDirectory(prefix="darkroom-preference-") as name:
        threads, wanted = options.threads, options.methods
        if options.choose:
            _write(choosing_rows(demo, Path(name), device, num_threads=threads, wanted=wanted))
        else:
            _write(reported_rows(demo, Path(name), device, num_threads=threads, wanted=wanted, seed=options.seed))
    return 0


def _write(rows: Iterable[Row]) -> None:
    for row in rows:
        sys.stdout.write(f"{row.name:45} {row.value}\n")
        sys.stdout.flush()


def _arguments(parser: argparse.ArgumentParser) -> None:
    names = [name for name in METHODS if name != "denoise"]
    parser.add_argument("--model", choices=list(DEMOS), default="demo", help="the DDPM or the flow model")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, help="only these methods")
    parser.add_argument("--choose", action="store_true", help="try the learning rates, with other prompts and seeds")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="the seed of the reported runs (default: 42)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda ...")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    return run_verb("python -m benchmarks preference", Verb(_SUMMARY, _arguments, _measure), arguments)
