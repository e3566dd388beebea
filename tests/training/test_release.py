"""When a run is over, however it ended, nothing of it is alive: no part, no tensor, no open or mapped file."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from modules.adapters.lora_layers import LoraAdapter
from modules.config.schema import Config
from modules.data.cache.store import CacheStore
from modules.families.sd.model import StableDiffusion
from modules.families.sdxl.model import StableDiffusionXL
from modules.memory.placement import Placement
from modules.optim.ema import Ema
from tests.builders.configs import laid_over, small_config
from tests.builders.matrix import matrix
from tests.builders.module_copies import ModuleCopies
from tests.builders.runs import Ran, run
from trainer.commands import Command, Stop
from trainer.events import CacheProgress, Event, RunFailed, RunFinished, SampleProgress, StepFinished
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.run import training_run
from trainer.run.finish import PreparedRun
from trainer.step.loop import Training
from trainer.step.stepper import Stepper

SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 2.0}
OWNERS = (StableDiffusion, StableDiffusionXL, Placement, Stepper, Training, Ema, LoraAdapter, CacheStore, PreparedRun)

# Which event a stop follows; the others end by themselves.
STOPS: dict[str, Callable[[Event], bool]] = {
    "stopped in mid-epoch": lambda e: isinstance(e, StepFinished) and e.step == 1,
    "stopped while sampling": lambda e: isinstance(e, SampleProgress) and e.done == 1,
    "stopped while caching": lambda e: isinstance(e, CacheProgress) and e.done == 2,
}
ENDINGS = [*STOPS, "failed", "failed while it began", "finished"]


def config_of(model: Path, images: Path, folder: Path, **changes: Any) -> Config:
    config = small_config(
        folder,
        model=model,
        images=images,
        parts={
            "text_encoder": {"train": False},
            "text_encoder_2": {"train": False},
            "unet": {"checkpointing": "block"},
        },
        training={"ema": {"mode": "train_device"}, "epochs": 1},
        sampling={"every": {"n": 2, "unit": "step"}, "prompts": [SAMPLE]},
    )
    return laid_over(config, changes)


def run_to(ending: str, config: Config, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Carry out a run that ends in one of the ways."""

    def on_event(event: Event, send: Callable[[Command], None]) -> None:
        if ending in STOPS and STOPS[ending](event):
            send(Stop())

    plain = Denoise.loss

    def broken(self: Denoise, batch: Any, context: StepContext) -> StepLoss:
        step_loss = plain(self, batch, context)
        if ending == "failed while it began" or batch.step == 1:
            raise ZeroDivisionError("planted error")
        return step_loss

    with monkeypatch.context() as patched:
        if ending.startswith("failed"):
            patched.setattr(Denoise, "loss", broken)
        return run(config, on_event=on_event)


def assert_it_ended_so(ending: str, ran: Ran) -> None:
    if ending.startswith("failed"):
        assert isinstance(ran.ending, RunFailed)
        assert bool(ran.of(StepFinished)) == (ending == "failed")
    else:
        assert isinstance(ran.ending, RunFinished)
        assert ran.finished.outcome == ("stopped" if ending in STOPS else "finished")


@dataclass
class Remains:
    """What there was before a run, and what the run made."""

    before: list[torch.Tensor] = field(default_factory=lambda: list(tensors_alive()))
    threads: set[threading.Thread] = field(default_factory=lambda: set(threading.enumerate()))
    made: list[weakref.ref[object]] = field(default_factory=list)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Remember every part, optimizer and owner of tensors that is made from now on."""
        for kind in (*OWNERS, torch.optim.Optimizer):
            self._remember(kind, monkeypatch)
        plain = Placement.__init__

        def init(placement: Placement, modules: Any, **options: Any) -> None:
            self.made.extend(weakref.ref(m) for part in modules.values() for m in part.modules())
            plain(placement, modules, **options)

        monkeypatch.setattr(Placement, "__init__", init)

    def _remember(self, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = kind.__init__

        def init(made: object, *arguments: Any, **options: Any) -> None:
            self.made.append(weakref.ref(made))
            plain(made, *arguments, **options)

        monkeypatch.setattr(kind, "__init__", init)

    def kinds(self) -> set[str]:
        """Return what is still alive of what was made, by the names of its classes."""
        return {type(thing).__name__ for ref in self.made if (thing := ref()) is not None}

    def tensors(self) -> list[tuple[int, ...]]:
        """Return the shapes of the tensors that were not there before, but for those that the tests keep for copies."""
        copies = (thing for thing in gc.get_objects() if type(thing) is ModuleCopies)
        known = {id(t) for t in self.before} | {id(t) for made in copies for t in made.tensors}
        return [tuple(t.shape) for t in tensors_alive() if id(t) not in known]

    def new_threads(self) -> set[str]:
        """Return the names of the threads that were not there before."""
        return {t.name for t in threading.enumerate() if t not in self.threads}


def tensors_alive() -> Iterator[torch.Tensor]:
    # By type(): isinstance asks some objects for their class, which makes them do things.
    return (thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))


def files_held(*folders: Path) -> set[str]:
    """Return the files under these folders that this process has open or mapped."""
    process = psutil.Process()  # macOS has no memory maps
    held = [f.path for f in process.open_files()] + [m.path for m in getattr(process, "memory_maps", list)()]
    return {path for path in held if any(Path(path).is_relative_to(folder) for folder in folders)}


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("model", "trains", "ending"), matrix(["tiny_sd", "tiny_sdxl"], ["adapter", "full"], ENDINGS)
)  # fmt: skip
def test_nothing_of_a_run_is_left(
    request: pytest.FixtureRequest,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    trains: str,
    ending: str,
) -> None:
    """Without a collection by the test: the run itself collects, also where the window has switched that off."""
    base = request.getfixturevalue(model)
    config = config_of(base, images, tmp_path, training={"trains": trains})
    with monkeypatch.context() as patched:
        remains, held = Remains(), files_held(tmp_path, base)  # another test's model may be mapped still
        remains.watch(patched)
        gc.disable()
        try:
            ran = run_to(ending, config, monkeypatch)
        finally:
            gc.enable()
        assert_it_ended_so(ending, ran)
        assert len(remains.made) > 100
        assert remains.kinds() == set()
        assert remains.tensors() == []
        assert remains.new_threads() == set()
        assert files_held(tmp_path, base) - held == set()


def test_what_is_kept_would_be_found(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a reference keeps the training of a run."""
    kept: list[PreparedRun] = []
    plain = training_run.dry_run
    monkeypatch.setattr(training_run, "dry_run", lambda prepared: (kept.append(prepared), plain(prepared)))
    remains = Remains()
    remains.watch(monkeypatch)
    run_to("stopped in mid-epoch", config_of(tiny_sd, images, tmp_path), monkeypatch)
    assert {"Stepper", "Ema", "AdamW", "LoraAdapter", "StableDiffusion", "CacheStore"} <= remains.kinds()
    assert len(remains.tensors()) > 100
    held = tmp_path / "held"
    with held.open("wb"):
        assert files_held(tmp_path) == {str(held)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_a_gpu_holds_as_much_as_before(
    any_model: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains: str
) -> None:
    def own(folder: str) -> Config:  # with caches of its own: a run that finds its caches filled reports no progress
        there = {"training": {"trains": trains}, "general": {"train_device": "cuda"}}
        return config_of(any_model, images, tmp_path / folder, **there)

    run(own("first"))  # what libraries allocate once and for all, such as the workspace of cuBLAS
    at_start = torch.cuda.memory_allocated()
    for ending in ENDINGS:
        assert_it_ended_so(ending, run_to(ending, own(ending), monkeypatch))
        assert torch.cuda.memory_allocated() == at_start, ending
