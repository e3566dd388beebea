"""The table of all faults: `python -m tests.builders.disk`, with `--every 5` for each fifth call.

Each call of each scenario fails with each fault, and is the last one before a kill or a power failure. The calls of the
run fail with `--faults` of the faults in turn (5: each with all of them, half an hour).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

from tests.builders.disk.checks import HEADER, Row, rows_of
from tests.builders.disk.run_scenario import RunScenario, points_of
from tests.builders.disk.scenarios import SCENARIOS
from tests.builders.images import draw_folder
from tests.builders.models import write_sd_folder


def _print(rows: Iterable[Row], all_rows: list[Row]) -> None:
    for row in rows:
        all_rows.append(row)
        print(row, *(f"    {problem}" for problem in row.lost), sep="\n", flush=True)


def main() -> int:
    """Print the table; 1 where anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.builders.disk", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="try each n-th call only")
    parser.add_argument("--faults", type=int, default=1, help="how many faults each call of the run gets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    os.fsync = lambda handle: None  # the calls are recorded; the disk itself need not be waited for
    rows: list[Row] = []
    print(HEADER)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for scenario in SCENARIOS:
            _print(rows_of(scenario, folder / "scenario", every=options.every), rows)
        model, images = write_sd_folder(folder / "model"), draw_folder(folder / "images", sizes=[(64, 64)] * 4)
        run = RunScenario(folder / "run", model, images)
        _print(run.rows_of_crashes(numbers=range(0, len(run.calls) + 1, options.every)), rows)
        _print(run.rows_of_errors(points_of(run.calls, faults_each=options.faults, every=options.every)), rows)
    lost = sum(len(row.lost) for row in rows)
    print(Row("all", "all", sum(row.points for row in rows), tuple(p for row in rows for p in row.lost)))
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
