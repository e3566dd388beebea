"""Processes of a run that differ are named before they wait for each other in vain, and so is what fails in one."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from modules.system.ranks import Rank
from trainer.cli import runs
from trainer.ranks import OneProcess
from trainer.run import processes


@dataclass
class WithAnother(OneProcess):
    """A process beside another one, which gives `other` wherever values are gathered."""

    other: Any
    rank: Rank = Rank(0, 2)  # noqa: RUF009 - frozen

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other]


def test_other_settings_are_named() -> None:
    config = Config()
    changed, _ = set_path(config, "training.epochs", 7)
    processes.require_equal_settings(WithAnother((config, torch.__version__)), config)
    with pytest.raises(
        DarkroomError, match=r"Process 2 of 2 has other settings than the first one: training\.epochs\."
    ):
        processes.require_equal_settings(WithAnother((changed, torch.__version__)), config)
    with pytest.raises(DarkroomError, match=r"has torch 1\.0, the first one"):
        processes.require_equal_settings(WithAnother((config, "1.0")), config)


def test_other_images_are_an_error() -> None:
    loader: Any = SimpleNamespace(dataset=SimpleNamespace(examples=(1, 2)), plans=SimpleNamespace(fingerprint="same"))
    processes.require_equal_images(WithAnother((2, "same", "same")), loader, loader)
    with pytest.raises(DarkroomError, match=r"finds other images .*\(3 images to train on, the first one 2\)"):
        processes.require_equal_images(WithAnother((3, "other", "same")), loader, loader)


def test_a_stop_goes_to_the_processes_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    child = "import time; print('ready', flush=True); time.sleep(60)"
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {child!r}]).wait())"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        runs._pass_on_stop(launcher)
        assert launcher.stdout.readline() == "-15\n", "the launcher itself goes on, and waits for its processes"
