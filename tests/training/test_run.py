"""What a run does besides learning: stopping anywhere, pausing, validating without a trace, NaN, ends, leftovers."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from modules.config.schema import Config
from modules.families.sd.model import StableDiffusion
from modules.memory.placement import Placement
from tests.builders.configs import config_fixture, laid_over, small_config
from tests.builders.images import draw_folder, draw_image
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer import launch
from trainer.commands import BackupNow, Command, Pause, Resume, SampleNow, SaveNow, Stop, ValidateNow
from trainer.event_lines import from_line
from trainer.events import (
    BackupSaved,
    CacheProgress,
    Event,
    ModelSaved,
    PhaseChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleProgress,
    SampleReady,
    StepFinished,
    ValidationFinished,
    WarningRaised,
)
from trainer.machine_events import MemoryMeasured
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.preflight import check
from trainer.step.loop import Training

Send = Callable[[Command], None]
SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 3, "guidance": 2.0}


config = config_fixture("tiny_sd")


@pytest.fixture
def any_config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """The config for each family in turn."""
    return small_config(tmp_path, model=any_model, images=images)


def watched(config: Config, images: Path) -> Config:
    """The config with validation and samples on."""
    return laid_over(
        config,
        {
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation", "name": "seen"}],
            "validation": {"every": {"n": 1, "unit": "step"}, "num_timesteps": 3},
            "sampling": {"every": {"n": 1, "unit": "epoch"}, "at_start": True, "at_end": True, "prompts": [SAMPLE]},
        },
    )


@pytest.mark.full
def test_the_steps_are_those_that_were_announced(config: Config) -> None:
    for batch_size, accumulation in ((1, 1), (2, 2), (4, 3), (16, 1)):
        training = {"batch_size": batch_size, "accumulation_steps": accumulation}
        changed = laid_over(config, {"training": training, "concepts": [{**concept(config), "repeats": 1.5}]})
        preview = check(changed).preview
        assert preview is not None
        ran = run(changed)
        steps = ran.of(StepFinished)
        assert preview.total_steps == ran.of(RunStarted)[0].total_steps == len(steps) == steps[-1].step
        assert [s.step for s in steps] == list(range(1, len(steps) + 1))
        assert steps[-1].epoch == 2
        assert (steps[-1].epoch_step, steps[-1].seconds_left) == (steps[-1].epoch_steps, 0.0)


def test_a_dataset_without_images_is_not_announced(config: Config) -> None:
    """Each run without validation images used to scan "0 images" of them."""
    ran = run(laid_over(config, {"training": {"epochs": 1}}))
    num_images = ran.of(RunStarted)[0].num_images
    assert [e.detail for e in ran.of(PhaseChanged) if e.phase == "scanning"] == [f"{num_images} images"]


def concept(config: Config) -> dict[str, Any]:
    return config.concepts[0].model_dump()


@pytest.mark.daily(1)
def test_validation_and_samples_leave_training_bit_identical(any_config: Config, images: Path, tmp_path: Path) -> None:
    config = any_config
    hard = {"adapter": {"dropout": 0.3}, "training": {"ema": {"mode": "train_device", "decay": 0.9}}}
    plain = run(laid_over(config, hard))
    seen = run(watched(laid_over(config, {**hard, "general": {"workspace_dir": str(tmp_path / "w2")}}), images))
    assert len(seen.of(ValidationFinished)) == 1 + len(seen.of(StepFinished))
    assert len(seen.of(SampleReady)) == 3  # at the start and after both epochs; the end is the second epoch's
    assert_equal_tensors(plain.weights, seen.weights)


@pytest.mark.daily(1)
def test_validation_repeats_bit_for_bit_and_reports_by_timestep_and_concept(any_config: Config, images: Path) -> None:
    still = laid_over(watched(any_config, images), {"training": {"learning_rate": 1e-30}})
    results = run(still).of(ValidationFinished)
    assert len({r.loss for r in results}) == 1
    first = results[0]
    assert list(first.by_timestep) == ["166", "500", "833"]
    assert set(first.by_concept) == {"seen"}
    assert first.loss == pytest.approx(sum(first.by_timestep.values()) / 3)
    assert first.loss == first.by_concept["seen"]


@pytest.mark.full
def test_validation_measures_the_averaged_weights(config: Config, images: Path, tmp_path: Path) -> None:
    """With an average that hardly moves, the validation loss hardly moves, while the weights do."""
    frozen_average = {"training": {"learning_rate": 0.05, "ema": {"mode": "train_device", "decay": 0.1}}}
    with_average = run(laid_over(watched(config, images), frozen_average)).of(ValidationFinished)
    without = laid_over(watched(config, images), {"general": {"workspace_dir": str(tmp_path / "w2")}})
    plain = run(laid_over(without, {"training": {"learning_rate": 0.05}})).of(ValidationFinished)
    assert with_average[0].loss == plain[0].loss
    assert with_average[-1].loss != plain[-1].loss


def stop_at(moment: Callable[[Event], bool]) -> Callable[[Event, Send], None]:
    def on_event(event: Event, send: Send) -> None:
        if moment(event):
            send(Stop())

    return on_event


def test_a_stop_while_caching_leaves_a_usable_cache(config: Config, tmp_path: Path) -> None:
    stopped = run(config, on_event=stop_at(lambda e: isinstance(e, CacheProgress) and e.done == 2))
    assert stopped.finished.outcome == "stopped"
    assert not stopped.of(StepFinished)
    entries = list((tmp_path / "cache" / "latents").rglob("*.safetensors"))
    assert len(entries) == 3  # the third was encoded while the second was written
    stamps = {e: e.stat().st_mtime_ns for e in entries}
    again = run(config)
    assert [e.total for e in again.of(CacheProgress)] == [2, 2]  # the rest of five
    assert {e: e.stat().st_mtime_ns for e in entries} == stamps


def test_a_stop_while_sampling_takes_effect_before_the_next_denoising_step(config: Config, images: Path) -> None:
    first = run(watched(config, images), on_event=stop_at(lambda e: isinstance(e, SampleProgress) and e.done == 1))
    assert first.finished.outcome == "stopped"
    assert [e.done for e in first.of(SampleProgress)] == [0, 1]
    assert not first.of(SampleReady)


@pytest.mark.full
def test_a_stop_while_sampling_after_a_step_keeps_that_step(config: Config, images: Path) -> None:
    changed = laid_over(watched(config, images), {"sampling": {"at_start": False}})
    ran = run(changed, on_event=stop_at(lambda e: isinstance(e, SampleProgress)))
    assert ran.finished.outcome == "stopped"
    assert ran.finished.step == ran.of(StepFinished)[-1].step == 3
    resumed = run(changed, resume_from=Path(ran.finished.backup_path))
    straight = run(laid_over(changed, {"general": {"workspace_dir": changed.general.workspace_dir + "2"}}))
    assert_equal_tensors(straight.weights, resumed.weights)


def test_commands_are_carried_out_after_the_step(config: Config, images: Path) -> None:
    quiet = laid_over(
        watched(config, images),
        {
            "validation": {"every": {"unit": "never"}},
            "sampling": {"every": {"unit": "never"}, "at_start": False, "at_end": False},
        },
    )

    def ask(event: Event, send: Send) -> None:
        if isinstance(event, StepFinished) and event.step == 2:
            for command in (SampleNow(), ValidateNow(), BackupNow(), SaveNow()):
                send(command)

    ran = run(quiet, on_event=ask)
    assert [e.step for e in ran.of(SampleReady)] == [2]
    assert [e.step for e in ran.of(ValidationFinished)] == [2]
    assert [e.step for e in ran.of(BackupSaved)] == [2, ran.finished.step]
    best, save, result = ran.of(ModelSaved)
    assert (best.best_by, best.is_final) == ("validation", False)  # kept by default
    assert (save.step, save.is_final, result.is_final) == (2, False, True)
    assert result.loaded_by == ("diffusers",)  # of the others none is known to take models of this size
    assert "not tested in ComfyUI, A1111 and Forge: made for a model of a different size" in result.loading_words
    assert result.loading == {"ComfyUI": "?", "A1111": "?", "Forge": "?", "diffusers": "yes"}
    assert Path(save.path).parent.name == "save"


def test_a_last_step_that_is_due_is_backed_up_once(config: Config) -> None:
    ran = run(laid_over(config, {"backup": {"every": {"n": 1, "unit": "epoch"}, "at_end": True}}))
    saved = ran.of(BackupSaved)
    assert [s.step for s in saved] == [ran.finished.step // 2, ran.finished.step]
    assert ran.finished.backup_path == saved[-1].path


def test_a_pause_waits_and_continues(config: Config) -> None:
    resumed = threading.Event()

    def pause(event: Event, send: Send) -> None:
        if isinstance(event, StepFinished) and event.step == 2:
            send(Pause())
        if isinstance(event, PhaseChanged) and event.phase == "paused":

            def unpause() -> None:
                resumed.set()
                send(Resume())

            threading.Thread(target=unpause).start()

    ran = run(config, on_event=pause)
    assert resumed.is_set()
    assert ran.finished.outcome == "finished"
    phases = [e.phase for e in ran.of(PhaseChanged)]
    assert phases[phases.index("paused") + 1] == "training"


def test_a_stop_ends_a_pause(config: Config) -> None:
    def pause(event: Event, send: Send) -> None:
        if isinstance(event, StepFinished):
            send(Pause())
        if isinstance(event, PhaseChanged) and event.phase == "paused":
            threading.Thread(target=send, args=(Stop(),)).start()

    assert run(config, on_event=pause).finished.outcome == "stopped"


def plant_nan(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    plain = Denoise.loss

    def loss(self: Denoise, batch: Any, context: StepContext) -> StepLoss:
        result = plain(self, batch, context)
        if batch.step in steps:
            return StepLoss(
                result.loss * float("nan"), result.num_samples, result.group_samples, result.is_last_micro_batch
            )
        return result

    monkeypatch.setattr(Denoise, "loss", loss)


def test_a_step_of_no_numbers_is_skipped_and_counted(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_nan(monkeypatch, {1})
    ran = run(config)
    second = ran.of(StepFinished)[1]
    assert (second.loss, second.num_skipped) == (None, 1)
    assert ran.of(StepFinished)[-1].num_skipped == 1
    assert all(t.isfinite().all() for t in load_file(ran.finished.model_path).values())


def test_many_in_a_row_stop_the_run_and_keep_the_good_model(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Path(run(config).finished.model_path)
    content = good.read_bytes()
    plant_nan(monkeypatch, {2, 3, 4, 5})
    changed = laid_over(
        config,
        {"training": {"max_consecutive_skipped_steps": 2, "epochs": 5}, "backup": {"every": {"n": 1, "unit": "step"}}},
    )
    ran = run(changed)
    assert isinstance(ran.ending, RunFailed)
    assert "3 steps in a row" in ran.ending.message
    assert good.read_bytes() == content
    backup = Path(ran.ending.backup_path)
    assert all(t.isfinite().all() for t in load_file(backup / "weights.safetensors").values())


def test_a_result_that_cannot_be_written_lands_in_the_runs_folder(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.export.adapter import AdapterExporter

    plain = AdapterExporter.save

    def save(self: AdapterExporter, path: Path, values: Any, moment: Any, **options: Any) -> None:
        if path == Path(config.output.destination) and moment.step:  # when it was tried, there still was room
            raise OSError(28, "No space left on device")
        plain(self, path, values, moment, **options)

    monkeypatch.setattr(AdapterExporter, "save", save)
    ran = run(config)
    run_dir = Path(ran.of(RunStarted)[0].run_dir)
    assert ran.finished.model_path == str(run_dir / "save" / "lora.safetensors")
    assert Path(ran.finished.model_path).is_file()
    assert any("could not be written" in w.message for w in ran.of(WarningRaised))


@pytest.mark.full
def test_a_fault_ends_as_a_sentence_with_details_in_the_runs_folder(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Denoise.loss

    def broken(self: Denoise, batch: Any, context: StepContext) -> StepLoss:
        if batch.step == 2:
            raise ZeroDivisionError("planted error")
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", broken)
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    assert "planted error" in ending.message
    assert "ZeroDivisionError: planted error" in Path(ending.details_path).read_text()
    # The two full steps before it are not lost.
    monkeypatch.undo()
    resumed = run(config, resume_from=Path(ending.backup_path))
    assert resumed.of(StepFinished)[0].step == 3
    straight = run(laid_over(config, {"general": {"workspace_dir": config.general.workspace_dir + "2"}}))
    assert_equal_tensors(straight.weights, resumed.weights)


def test_an_image_that_cannot_be_decoded_is_named_and_left_out(tiny_sd: Path, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4)
    draw_image(64, 64, 9).save(folder / "cut.jpg", quality=95)  # its header is whole, so the scan takes it
    whole = (folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    ran = run(small_config(tmp_path, model=tiny_sd, images=folder))
    assert ran.finished.outcome == "finished"
    assert ran.of(RunStarted)[0].num_images == 4
    assert any("cut.jpg" in w.message for w in ran.of(WarningRaised))


@pytest.mark.daily(1)
@pytest.mark.parametrize("cache", ["latents", "text"])
def test_a_damaged_cache_entry_is_built_again(any_config: Config, tmp_path: Path, cache: str) -> None:
    untrained = {"text_encoder": {"train": False}, "text_encoder_2": {"train": False}}
    config = laid_over(any_config, {"parts": untrained})
    first = run(config)
    entry = sorted((tmp_path / "cache" / cache).rglob("*.safetensors"))[0]
    content = bytearray(entry.read_bytes())
    content[-1] ^= 1
    entry.write_bytes(content)
    second = run(laid_over(config, {"general": {"workspace_dir": str(tmp_path / "w2")}}))
    assert any("encoded again" in w.message for w in second.of(WarningRaised))
    assert_equal_tensors(first.weights, second.weights)
    assert entry.read_bytes() != bytes(content)


def test_every_event_is_a_line_of_the_runs_file(config: Config) -> None:
    ran = run(config)
    run_dir = Path(ran.of(RunStarted)[0].run_dir)
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    assert all(json.loads(line)["time"] for line in lines)
    assert [from_line(line) for line in lines] == [
        e for e in ran.events if not isinstance(e, CacheProgress | SampleProgress | MemoryMeasured)
    ]


def test_two_runs_never_share_a_folder(config: Config) -> None:
    folders = {run(config).of(RunStarted)[0].run_dir for _ in range(2)}
    assert len(folders) == 2


def test_nothing_of_a_run_stays_alive_and_nothing_of_it_leaks(
    config: Config, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[object]] = []

    def remember(kind: type) -> None:
        plain = kind.__init__

        def init(self: object, *arguments: Any, **options: Any) -> None:
            plain(self, *arguments, **options)
            alive.append(weakref.ref(self))

        monkeypatch.setattr(kind, "__init__", init)

    for kind in (StableDiffusion, Placement, Training):
        remember(kind)
    modules: list[weakref.ref[nn.Module]] = []
    plain_parts = Placement.enter

    def enter(self: Placement, phase: str) -> None:
        modules.extend(weakref.ref(m) for m in self._modules.values())
        plain_parts(self, phase)

    monkeypatch.setattr(Placement, "enter", enter)
    torch.set_num_threads(2)  # and the run has one
    settings = (2, torch.get_float32_matmul_precision(), gc.isenabled())
    changed = laid_over(
        watched(config, images),
        {
            "general": {"deterministic": True, "debug_checks": True},
            "training": {"precision": "tfloat32", "epochs": 1},
        },
    )
    ran = run(changed)
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision(), gc.isenabled()) == settings
    torch.set_num_threads(1)
    assert ran.finished.outcome == "finished"
    assert ran.of(RunStarted)[0].num_threads == 1
    assert not torch.are_deterministic_algorithms_enabled()
    gc.collect()
    assert len(alive) >= 3
    assert modules
    assert [r() for r in (*alive, *modules) if r() is not None] == []


def test_launch_runs_on_a_thread_and_puts_the_interpreter_back(config: Config) -> None:
    was_collecting, threads = gc.isenabled(), set(threading.enumerate())
    handle = launch.launch(launch.RunRequest(config))
    handle.thread.join(timeout=120)
    events = [handle.events.get_nowait() for _ in range(handle.events.qsize())]
    assert isinstance(events[-1], RunFinished)
    assert gc.isenabled() is was_collecting
    assert set(threading.enumerate()) <= threads, "one of an earlier test may end meanwhile"


def test_nothing_to_train_is_refused_before_anything_is_loaded(config: Config) -> None:
    nothing = {"unet": {"train": False}, "text_encoder": {"train": False}}
    ran = run(laid_over(config, {"parts": nothing}))
    assert isinstance(ran.ending, RunFailed)
    assert "No part of the model is trained" in ran.ending.message
    assert not ran.of(PhaseChanged)


def test_layers_that_no_gradient_can_reach_are_refused(config: Config) -> None:
    changed = {"model": {"family": {"clip_skip": 3}}, "parts": {"unet": {"train": False}}}
    ran = run(laid_over(config, changed))
    assert isinstance(ran.ending, RunFailed)
    assert "none of its layers can be trained" in ran.ending.message


def ran_losses(ran: Ran) -> list[float | None]:
    return [s.loss for s in ran.of(StepFinished)]


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("model", "precision"),
    [("tiny_sd", "bfloat16"), ("tiny_sd", "float16"), ("tiny_sd", "tfloat32"), ("tiny_sdxl", "bfloat16"),
     pytest.param("tiny_sdxl", "float16", marks=pytest.mark.full)],
)  # fmt: skip
def test_every_precision_trains(
    request: pytest.FixtureRequest, model: str, precision: str, images: Path, tmp_path: Path
) -> None:
    config = small_config(tmp_path, model=request.getfixturevalue(model), images=images)
    exact = ran_losses(run(config))
    changed = {"training": {"precision": precision}, "general": {"workspace_dir": str(tmp_path / "w2")}}
    losses = ran_losses(run(laid_over(config, changed)))
    assert losses == pytest.approx(exact, rel=0.05)
    assert (losses == exact) == (precision == "tfloat32")  # TF32 is a GPU's; here it changes nothing


def test_an_epoch_that_shows_nothing_is_passed_over(tiny_sd: Path, tmp_path: Path) -> None:
    """Half a repeat of two images is one a time; when one of them turns out broken, every second epoch is empty."""
    images = draw_folder(tmp_path / "two", sizes=[(64, 64)])
    draw_image(64, 64, 9).save(images / "cut.jpg", quality=95)
    whole = (images / "cut.jpg").read_bytes()
    (images / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    concepts = [{"path": str(images), "repeats": 0.5}]
    config = small_config(tmp_path, model=tiny_sd, images=images, concepts=concepts, training={"epochs": 4})
    ran = run(config)
    assert (ran.finished.outcome, ran.finished.step) == ("finished", 2)
    assert ran.of(RunStarted)[0].total_steps == 2
