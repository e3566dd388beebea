"""Saving the model of a step: from its save, from its backup, or, if there is neither, the current model of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.system.paths import PROGRAM_ROOT, as_config_path
from trainer.child.process import Spawn, spawn_trainer
from trainer.commands import SaveNow
from trainer.events import ModelSaved
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import validate_settings
from trainer.run_folder.backup import list_backups
from trainer.run_folder.result import copy_model
from ui.forms.context import Context
from ui.loop.interaction import Answer
from ui.loop.jobs import JobRunner
from ui.loop.run_state import RunState
from ui.widgets.notices import Notice

NO_MODEL = "No model of this step"
_KINDS = (("Model", "*.safetensors"),)


@dataclass(frozen=True, slots=True)
class StepModel:
    """The model after a step: its save, else its backup; both None if it can only be saved now."""

    step: int
    save: Path | None = None
    backup: Path | None = None


def model_of_step(step: int, saves: Sequence[ModelSaved], backups: Iterable[tuple[int, Path]]) -> StepModel:
    """Return the newest save or backup of a step; `saves` may have been replaced or deleted since, which is checked."""
    newest = {Path(save.path): save.step for save in saves}  # a best model replaces the one before
    saved_paths = [path for path, of_step in newest.items() if of_step == step and path.exists()]
    backup = next((path for of_step, path in backups if of_step == step), None)
    return StepModel(step, saved_paths[-1] if saved_paths else None, backup)


def save_step_model(context: Context, state: RunState, step: int) -> None:
    """Save the model of a step of a run where the user chooses; ask before the current model is saved in its place."""
    if state.started is None:
        return
    run_dir, saves = Path(state.started.run_dir), state.saves

    def look() -> StepModel:
        return model_of_step(step, saves, [(b.step, b.path) for b in list_backups(run_dir)])

    context.pump.background.run(look, partial(_save, context))


def _save(context: Context, model: StepModel) -> None:
    if model.save is not None:
        _copy(context, model.save, model.step)
    elif model.backup is not None:
        _export(context, model.backup, model.step)
    else:
        _save_now(context, model.step)


def _copy(context: Context, source: Path, step: int) -> None:
    destination = _ask(context, step, source.suffix, f"Save the model of step {step:,}, from its save")
    if destination is not None:
        done = partial(_report_saved, context, destination, step)
        failed = partial(context.show_error, "The model could not be saved")
        context.pump.background.run(partial(copy_model, source, destination), done, failed)


def _export(context: Context, backup: Path, step: int) -> None:
    destination = _ask(context, step, ".safetensors", f"Save the model of step {step:,}, from its backup")
    if destination is not None:
        export_backup(context, backup, destination, done=partial(_report_saved, context, destination, step, None))


def export_backup(
    context: Context, backup: Path, destination: Path, *, done: Callable[[], object], spawn: Spawn = spawn_trainer
) -> None:
    """Export a backup as a model, in a process of its own on the CPU; a notice shows how far it is, with Stop."""
    title = f"Exporting {backup.name}"
    key, runner = f"export {destination}", JobRunner(spawn=spawn)

    def draw() -> None:
        state = runner.state
        if state.is_active:
            text = f"{title}. {state.status}"
            context.notices.show(Notice(key, text, on_dismiss=runner.stop, dismiss_label="Stop"))
            return
        context.pump.remove_source(runner.drain)
        context.notices.remove(key)
        if state.failure is not None:
            context.interaction.show_failure(state.failure)
        elif state.stage == "finished":
            done()
        else:
            context.notify(f"{title}: {state.status}")

    context.pump.add_source(runner.drain)
    runner.changed.subscribe(draw)
    export = JOBS["export"]
    values = {"run_path": str(backup), "out": str(destination), "overwrite": True}
    runner.start(export, validate_settings(export.settings, values), title=title)


def _save_now(context: Context, step: int) -> None:
    """Offer to save the current model, if the run is active: there is nothing of the step itself."""
    current = context.session.state.step
    if not context.session.is_active or current is None:
        message = (
            f"There is no save and no backup of step {step:,}. Set how often to save or to back up on the page "
            "Output & backups before a run."
        )
        context.interaction.choose(NO_MODEL, message, (Answer("ok", "OK", is_default=True),))
        return
    message = (
        f"There is no save and no backup of step {step:,}. The run is at step {current.step:,}: its current model can "
        "be saved into the run's folder after this step."
    )
    answers = (Answer("cancel", "Cancel"), Answer("now", f"Save step {current.step + 1:,}", is_default=True))
    if context.interaction.choose(NO_MODEL, message, answers) == "now":
        context.session.send(SaveNow())


def _ask(context: Context, step: int, suffix: str, title: str) -> Path | None:
    config = context.session.config
    result = Path(config.output.destination) if config is not None else Path("model.safetensors")
    start = (PROGRAM_ROOT / result).with_name(f"{result.stem}-step-{step}{suffix}")
    return context.interaction.ask_save_file(title, start, _KINDS if suffix else ())


def _report_saved(context: Context, destination: Path, step: int, _result: None) -> None:
    context.notify(f"Saved the model of step {step:,} as {as_config_path(destination)}.")
