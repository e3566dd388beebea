"""Runs of two processes inside a test: this one is the main process, a child that stays for many runs is the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modules.config.codec import load_file, save_file
from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from tests.builders.ports import kept_port
from tests.builders.runs import Ran, run
from trainer.commands import Command
from trainer.events import Event
from trainer.launch import RequestKind


def environment_of(index: int, port: int) -> dict[str, str]:
    """Return what torchrun sets for one of two processes."""
    return {
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class OtherProcess:
    """The second process of runs."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.builders.ranks"],
            cwd=PROGRAM_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def join(
        self, config_file: Path, resume_from: Path | None, port: int, fault: str = "", kind: RequestKind | None = None
    ) -> None:
        """Let it take part in a run. With `fault` it fails at the event or phase of that name."""
        order = {
            "config": str(config_file),
            "resume": str(resume_from or ""),
            "environment": environment_of(1, port),
            "fault": fault,
            "kind": kind,
        }
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(order) + "\n")
        self.child.stdin.flush()

    def ending(self) -> dict[str, Any]:
        """Return the last event of its part in the run."""
        assert self.child.stdout is not None
        ended: dict[str, Any] = json.loads(self.child.stdout.readline())
        return ended

    def close(self) -> None:
        """End the process."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        self.child.wait(timeout=120)
        self.child.stdout.close()


def run_on_two(
    other: OtherProcess,
    config: Config,
    *,
    resume_from: Path | None = None,
    on_event: Callable[[Event, Callable[[Command], None]], None] | None = None,
    fault: str = "",
    kind: RequestKind | None = None,
) -> tuple[Ran, dict[str, Any]]:
    """Carry out a run on two processes; return the events of the main one and the last event of the other."""
    folder = Path(config.general.workspace_dir)
    folder.mkdir(parents=True, exist_ok=True)
    config_file = folder / "config of both.json"
    save_file(config, config_file)
    with kept_port() as port, _environment(environment_of(0, port)):
        other.join(config_file, resume_from, port, fault, kind)
        ran = run(config, resume_from=resume_from, on_event=on_event, kind=kind)
    return ran, other.ending()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _main() -> None:
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        order = json.loads(line)
        config = load_file(Path(order["config"])).config

        def on_event(event: Event, send: Callable[[Command], None], fault: str = order["fault"]) -> None:
            if fault and fault in (type(event).__name__, getattr(event, "phase", None)):
                raise ValueError("a planted fault")

        with _environment(order["environment"]):
            resume_from = Path(order["resume"]) if order["resume"] else None
            ran = run(config, resume_from=resume_from, on_event=on_event, kind=order["kind"])
        last = ran.events[-1]
        facts = {name: getattr(last, name) for name in ("outcome", "step", "message") if hasattr(last, name)}
        sys.stdout.write(json.dumps({"event": type(last).__name__, **facts}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
