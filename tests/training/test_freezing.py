"""Parts whose training stops during a run: their weights stay, the others continue, and without any the run ends."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.data.batch import Batch
from modules.settings.edit import set_path
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.editing_models import EDITING_MODELS, parts_trained_in, with_references
from tests.builders.flow_models import FLOW_MODELS, trained_parts_of
from tests.builders.images import draw_folder
from tests.builders.matrix import full_cover, matrix
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.__main__ import main
from trainer.cli import runs
from trainer.events import BackupSaved, ModelSaved, RunStarted, StepFinished, WarningRaised
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.run.setup import Clocks
from trainer.step import freezing
from ui.loop.folding import fold
from ui.loop.run_state import RunState

TRAINED = {
    "tiny_sd": ("unet", "text_encoder"),
    "tiny_sdxl": ("unet", "text_encoder", "text_encoder_2"),
    **{name: trained_parts_of(name) for name in FLOW_MODELS},
}
MODELS = list(TRAINED)
TRAINED |= {name: parts_trained_in(name) for name in EDITING_MODELS}
MEMORIES: dict[str, dict[str, Any]] = {
    "off": {},
    "block": {"checkpointing": "block"},
    "whole": {"checkpointing": "whole"},
    "offloaded activations": {"checkpointing": "block", "offload_activations": True},
    "offloaded layers": {"checkpointing": "block", "offload_activations": True, "offload_fraction": 0.5},
}
STOPPING = ["text_encoder", "text_encoder_2", "unet", "transformer", "everything"]
SIZES = [(64, 64)] * 3
# Two steps make an epoch. The clock of these runs ticks once a step.
STOPS = {"epoch": 1, "step": 3, "second": 3}
STOPS_AT_STEP = {"epoch": 2, "step": 3, "second": 3}
EPOCHS, LAST_STEP = 3, 6


@dataclass(frozen=True)
class Case:
    """A run some of whose parts stop."""

    model: str
    trains: str
    memory: str
    stopping: str
    unit: str

    @property
    def trained(self) -> tuple[str, ...]:
        """The parts that learn at first."""
        return TRAINED[self.model]

    @property
    def remaining(self) -> tuple[str, ...]:
        """Those that learn to the end."""
        return tuple(p for p in self.trained if self.stopping not in (p, "everything"))

    @property
    def at_stop(self) -> int:
        """The last step of those that stop."""
        return STOPS_AT_STEP[self.unit]

    def config(self, model: Path, images: Path, folder: Path) -> Config:
        """Return the run's config; it backs up after every step."""
        stop = {"stop_after": {"n": STOPS[self.unit], "unit": self.unit}}
        config = small_config(
            folder,
            model=model,
            images=images,
            general={"temp_device": "cpu:1"},
            parts={p: MEMORIES[self.memory] | ({} if p in self.remaining else stop) for p in self.trained},
            training={"epochs": EPOCHS, "trains": self.trains, "ema": {"mode": "train_device"}},
            adapter=USUAL_LAYERS,
            backup={"every": {"n": 1, "unit": "step"}, "keep": 0},
        )
        return with_references(config)


@dataclass(frozen=True)
class Straight:
    """A run from its beginning to its end, and its config."""

    config: Config
    ran: Ran


class StraightRuns:
    """The newest uninterrupted run: rows that resume one another follow each other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._images = draw_folder(folder / "images", sizes=SIZES)
        self._newest: tuple[Case, Straight] | None = None

    def of(self, case: Case, model: Path) -> Straight:
        """Return a case's run."""
        if self._newest is None or self._newest[0] != case:
            shutil.rmtree(self._folder / "run", ignore_errors=True)
            config = case.config(model, self._images, self._folder / "run")
            self._newest = case, Straight(config, ticking_run(config))
        return self._newest[1]


def ticking_run(config: Config, resume_from: Path | None = None) -> Ran:
    """Carry out a run whose clock moves a second each time it is read, as it is twice in a step."""
    ticks = itertools.count()
    return run(config, resume_from=resume_from, clocks=Clocks(seconds=lambda: float(next(ticks))))


@pytest.fixture(scope="module")
def straight_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StraightRuns]:
    folder = tmp_path_factory.mktemp("freezing")
    yield StraightRuns(folder)
    shutil.rmtree(folder, ignore_errors=True)


def backup_of(ran: Ran, step: int) -> Path:
    [path] = [b.path for b in ran.of(BackupSaved) if b.step == step]
    return Path(path)


def tensors_of(ran: Ran, step: int, kind: str = "weights") -> dict[str, torch.Tensor]:
    return load_file(backup_of(ran, step) / f"{kind}.safetensors")


def parts_of(names: Any) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.daily(5)
@pytest.mark.parametrize(
    ("model", "trains", "memory", "stopping", "unit", "start"),
    [
        row
        for rows_of, models in ((matrix, MODELS), (full_cover, list(EDITING_MODELS)))
        for row in rows_of(
            models, ["adapter", "full"], list(MEMORIES), STOPPING, list(STOPS), ["fresh", "before", "after"],
            possible=lambda model, *row: (
                row[2] == "everything" or (row[2] in TRAINED[model] and len(TRAINED[model]) > 1)
            ),
        )
    ],
)  # fmt: skip
def test_parts_stop_and_the_others_continue(
    request: pytest.FixtureRequest,
    straight_runs: StraightRuns,
    model: str,
    trains: str,
    memory: str,
    stopping: str,
    unit: str,
    start: str,
) -> None:
    """OneTrainer#549 stopped the text encoder after 30 epochs and died at the next step."""
    case = Case(model, trains, memory, stopping, unit)
    straight = straight_runs.of(case, request.getfixturevalue(model))
    assert_it_ran_to_its_end(case, straight.ran)
    assert_what_is_frozen_stays(case, straight.ran)
    assert_it_is_reported(case, straight.ran)
    if start == "fresh":
        return
    # The run without trained parts has no step after its stop: it resumes from its last backup.
    step = 1 if start == "before" else case.at_stop + (1 if case.remaining else 0)
    resumed = ticking_run(straight.config, backup_of(straight.ran, step))
    assert_it_ran_to_its_end(case, resumed)
    assert_it_is_reported(case, resumed)
    for kind in ("weights", "ema", "optimizer"):
        assert_equal_tensors(
            load_file(Path(straight.ran.finished.backup_path) / f"{kind}.safetensors"),
            load_file(Path(resumed.finished.backup_path) / f"{kind}.safetensors"),
        )


def assert_it_ran_to_its_end(case: Case, ran: Ran) -> None:
    """It finished, or ended early because nothing was left, and in both cases left its result."""
    ending = ("finished", LAST_STEP) if case.remaining else ("nothing_left", case.at_stop)
    assert (ran.finished.outcome, ran.finished.step) == ending
    assert ("Training of every part has stopped" in ran.finished.message) == (not case.remaining)
    assert [m.path for m in ran.of(ModelSaved) if m.is_final] == [ran.finished.model_path]
    assert Path(ran.finished.model_path).is_file()


def assert_what_is_frozen_stays(case: Case, ran: Ran) -> None:
    """The weights of what stopped are those of its last step, the others changed; and its optimizer state is gone."""
    first, at_stop, last = (tensors_of(ran, s) for s in (1, case.at_stop, ran.finished.step))
    moved = {name for name in first if not first[name].equal(at_stop[name])}
    assert parts_of(moved) == set(case.trained)
    if case.remaining:
        assert {n for n in last if not last[n].equal(at_stop[n])} == {
            n for n in last if n.partition(".")[0] in case.remaining
        }
    assert parts_of(tensors_of(ran, case.at_stop - 1, "optimizer")) == set(case.trained)
    assert parts_of(tensors_of(ran, case.at_stop, "optimizer")) == set(case.remaining)


def assert_it_is_reported(case: Case, ran: Ran) -> None:
    """Every step and the window show the trained parts, and the log reports the stop of each part once."""
    state = RunState()
    for event in ran.events:
        state = fold(state, event, 0.0)
        if isinstance(event, StepFinished):
            learns = case.trained if event.step <= case.at_stop else case.remaining
            assert event.training_parts == state.training_parts == learns
            assert set(event.learning_rates) == set(learns)
    [started] = ran.of(RunStarted)
    assert started.trained_parts == (case.trained if started.first_step < case.at_stop else case.remaining)
    reported = [w.message for w in ran.of(WarningRaised) if "has stopped as set" in w.message]
    assert len(reported) == len(case.trained) - len(case.remaining)
    when = f"at step {case.at_stop}." if started.first_step < case.at_stop else "before this point."
    assert all(message.endswith(when) for message in reported)
    assert sum("has stopped as set" in line.text for line in state.log) >= len(reported)


def test_resumed_at_the_stop_ends_bit_equal(straight_runs: StraightRuns, tiny_sd: Path) -> None:
    case = Case("tiny_sd", "adapter", "block", "text_encoder", "epoch")
    straight = straight_runs.of(case, tiny_sd)
    resumed = ticking_run(straight.config, backup_of(straight.ran, case.at_stop))
    assert_equal_tensors(straight.ran.weights, resumed.weights)
    assert resumed.of(StepFinished)[0].training_parts == ("unet",)


@pytest.mark.full
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_a_part_that_stopped_has_no_dropout_any_more(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains: str
) -> None:
    """Nor has one that never learns; looking at the model in between changes nothing, and a resumed run is the same."""
    images = draw_folder(tmp_path / "images", sizes=SIZES)
    config = laid_over(
        Case("tiny_sd", trains, "off", "text_encoder", "step").config(tiny_sd, images, tmp_path),
        {
            "adapter": {"dropout": 0.5},
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "validation": {"every": {"n": 1, "unit": "step"}, "num_timesteps": 1},
        },
    )
    modes: list[dict[str, set[bool]]] = []
    is_repeated: list[bool] = []
    plain = Denoise.loss

    def loss(method: Denoise, batch: Batch, context: StepContext) -> StepLoss:
        modes.append({n: {m.training for m in p.module.modules()} for n, p in context.family.parts.items()})
        states = [context.encode(["a red disc"]).tensors() for _ in range(2)]
        is_repeated.append(all(torch.equal(states[0][name], states[1][name]) for name in states[0]))
        return plain(method, batch, context)

    monkeypatch.setattr(Denoise, "loss", loss)
    straight = ticking_run(config)
    at_stop = STOPS_AT_STEP["step"]
    assert straight.finished.step == LAST_STEP, straight.ending
    of_steps = slice(1, None)  # the first was the dry run's
    dropping = range(1, at_stop) if trains == "adapter" else range(0)  # at first an adapter adds nothing
    assert [True in m["text_encoder"] for m in modes[of_steps]] == [step < at_stop for step in range(LAST_STEP)]
    assert is_repeated[of_steps] == [step not in dropping for step in range(LAST_STEP)]
    assert all(True in m["unet"] and m["vae"] == {False} for m in modes)
    for step in (at_stop - 1, at_stop) if trains == "adapter" else ():
        resumed = ticking_run(config, backup_of(straight, step))
        assert_equal_tensors(straight.weights, resumed.weights)


def test_a_run_with_nothing_left_has_the_exit_code_of_one_that_went_well(
    tiny_sd: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "import_engine", lambda **options: None)  # which changes the process for good
    stop = {"stop_after": {"n": 1, "unit": "step"}}
    parts = {"unet": stop, "text_encoder": stop}
    save_file(small_config(tmp_path, model=tiny_sd, images=images, parts=parts), tmp_path / "config.json")
    assert main(["train", str(tmp_path / "config.json")]) == 0
    assert "Training of every part has stopped; the run ended after 1 step." in capsys.readouterr().err


def test_a_part_that_is_forgotten_to_be_frozen_is_caught(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the group counts as frozen, but its parameters are still trained."""
    monkeypatch.setattr(freezing, "freeze", lambda group, optimizer: setattr(group, "is_training", False))
    case = Case("tiny_sd", "adapter", "off", "text_encoder", "step")
    ran = ticking_run(case.config(tiny_sd, draw_folder(tmp_path / "images", sizes=SIZES), tmp_path))
    assert_it_ran_to_its_end(case, ran)
    with pytest.raises(AssertionError):
        assert_what_is_frozen_stays(case, ran)


def test_a_part_that_is_to_stop_earlier_than_the_backup_keeps_no_optimizer_state(
    tiny_sd: Path, images: Path, tmp_path: Path
) -> None:
    """How long a part learns may change on resume; what it had lay in the optimizer to the end."""
    config = small_config(tmp_path, model=tiny_sd, images=images, parts={"text_encoder": {"train": True}})
    first = run(config)
    tree = config.model_dump()
    tree["training"]["epochs"] += 1
    tree["parts"]["text_encoder"]["stop_after"] = {"n": 1, "unit": "epoch"}
    again = run(Config.model_validate(tree), resume_from=Path(first.finished.backup_path))
    assert {p for s in again.of(StepFinished) for p in s.training_parts} == {"unet"}
    names = load_file(Path(again.finished.backup_path) / "optimizer.safetensors")
    assert names
    assert not [name for name in names if name.startswith("text_encoder.")]
    weights = (load_file(Path(r.finished.backup_path) / "weights.safetensors") for r in (first, again))
    assert_equal_tensors(*({n: t for n, t in w.items() if n.startswith("text_encoder.")} for w in weights))


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(
            {
                "training": {"trains": "full", "low_precision_updates": "master"},
                "parts": {name: {"dtype": "bfloat16"} for name in ("unet", "text_encoder")},
            },
            marks=pytest.mark.full,
        ),
    ],
    ids=["schedule-free", "master weights"],
)
def test_a_part_that_stopped_is_saved_as_if_the_run_had_ended_then(
    tiny_sd: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Also by a run that is resumed afterwards, and by one that is resumed with an earlier stop than its backup."""
    images = draw_folder(tmp_path / "images", sizes=SIZES)
    case = Case("tiny_sd", "adapter", "off", "text_encoder", "step")

    def config(name: str, stop: dict[str, Any], epochs: int) -> Config:
        own = {"training": {"epochs": epochs, "ema": {"mode": "off"}, "learning_rate": 1e-3}}
        plain = laid_over(case.config(tiny_sd, images, tmp_path / name), {"output": {"dtype": "float32"}})
        config = laid_over(laid_over(plain, changes), {**own, "parts": {"text_encoder": {"stop_after": stop}}})
        return config if changes else set_path(config, "training.optimizer", "schedule_free_adamw")[0]

    def saved(ran: Ran) -> dict[str, torch.Tensor]:
        found = load_file(Path(ran.finished.model_path))
        kept = {n: t for n, t in found.items() if n.startswith(("lora_te", "cond_stage"))}
        assert kept
        return kept

    never, at_end = {"unit": "never"}, {"n": 2, "unit": "epoch"}
    ended = ticking_run(config("ended", never, 2))
    expected = saved(ended)
    straight = ticking_run(config("straight", at_end, 3))
    assert_equal_tensors(saved(straight), expected)
    assert_equal_tensors(saved(ticking_run(config("straight", at_end, 3), backup_of(straight, 5))), expected)
    assert_equal_tensors(saved(ticking_run(config("ended", at_end, 3), backup_of(ended, 4))), expected)
