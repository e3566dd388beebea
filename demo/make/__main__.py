"""`python -m demo.make`: train a tiny demo model from scratch."""

from __future__ import annotations

import argparse
import sys
import threading
import time

from modules.system.paths import from_caller
from trainer.cli.console import Meter
from trainer.cli.program import Verb, run_verb
from trainer.cli.signals import at_signal
from trainer.launch import import_engine


def _make(options: argparse.Namespace) -> int:
    import_engine(in_window=False)
    from demo.make.kinds import KINDS
    from demo.make.model import make_demo_model
    from demo.make.progress import DemoModelStopped

    stopping = threading.Event()
    meter, started = Meter(), time.monotonic()

    def report(stage: str, done: int, total: int, loss: float) -> None:
        meter.progress(stage, done, total, f"loss {loss:.4f}" if loss else "")

    folder = from_caller(options.out)
    try:
        with at_signal(stopping.set):
            quality = make_demo_model(
                folder,
                report=report,
                should_stop=stopping.is_set,
                seed=options.seed,
                num_threads=options.threads or None,
                kind=KINDS[options.kind],
            )
    except DemoModelStopped:
        meter.line("Stopped. Nothing was written.")
        return 130
    minutes = (time.monotonic() - started) / 60
    meter.line(f"{folder} was trained in {minutes:.1f} minutes.")
    sys.stdout.write(f"{quality}\n")
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kind", choices=("sd", "flow"), default="sd", help="Stable Diffusion, or a flow model (default: sd)"
    )
    parser.add_argument("--out", metavar="FOLDER", default="demo-model", help="the output folder (default: demo-model)")
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed gives another model of similar quality (default: 0)"
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: 0, measured)")


if __name__ == "__main__":
    sys.exit(run_verb("python -m demo.make", Verb("Train a demo model from scratch.", _arguments, _make)))
