"""Where no file may be replaced, a result whose name was taken during the run stays in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.configs import small_config
from tests.builders.runs import run
from trainer.commands import Command
from trainer.events import Event, RunStarted, StepFinished, WarningRaised


@pytest.mark.parametrize("never", [True, False])
def test_a_file_that_appears_on_the_way(tiny_sd: Path, images: Path, tmp_path: Path, never: bool) -> None:
    config = small_config(
        tmp_path, model=tiny_sd, images=images, output={"never_replace": never}, training={"epochs": 1}
    )
    destination = Path(config.output.destination)

    def appear(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished):
            destination.parent.mkdir(exist_ok=True)
            destination.write_bytes(b"precious")

    ran = run(config, on_event=appear)
    run_dir = Path(ran.of(RunStarted)[0].run_dir)
    kept = run_dir / "save" / destination.name
    assert ran.finished.model_path == str(kept if never else destination.with_name("lora-2.safetensors"))
    assert Path(ran.finished.model_path).stat().st_size > 1000
    assert destination.read_bytes() == b"precious"
    assert any("must not be replaced" in w.message for w in ran.of(WarningRaised)) is never
