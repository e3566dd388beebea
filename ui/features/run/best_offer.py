"""Offering the model with the best validation as the result of a run that has ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modules.config.schema import Config
from modules.system.paths import as_config_path, from_root
from trainer.run_folder.result import results_of, use_as_result
from trainer.wording import format_loss
from ui.loop.run_state import RunState


@dataclass(frozen=True, slots=True)
class BestOffer:
    """The best model: its step, loss and file; the place of the result, and the step of the model there, if any.

    `last_model` is what a run without a result has saved at its end, if anything; `has_other` is whether there is a
    model at the place of the result, which is not of this run.
    """

    step: int
    loss: float | None
    source: Path
    destination: Path
    result_step: int | None
    run_dir: Path
    last_model: str = ""
    has_other: bool = False

    @property
    def text(self) -> str:
        """The offer as a text."""
        best = f"Best validation was step {self.step:,} ({format_loss(self.loss)})"
        if self.result_step is not None:
            return f"{best}; the result is from step {self.result_step:,}."
        last = f" Its last model is {as_config_path(Path(self.last_model))}." if self.last_model else ""
        other = f" {as_config_path(self.destination)} is from another run and would be kept." if self.has_other else ""
        return f"{best}. This run has no result yet.{last}{other}"


@dataclass(frozen=True, slots=True)
class UsedModel:
    """The best model has become the result; `earlier_model` is the new place of the result before, if any."""

    offer: BestOffer
    earlier_model: Path | None

    @property
    def text(self) -> str:
        """The change that was made, as text."""
        before = f" The model before is kept as {as_config_path(self.earlier_model)}." if self.earlier_model else ""
        return f"Step {self.offer.step:,} is now {as_config_path(self.offer.destination)}.{before}"


def best_offer(state: RunState, config: Config) -> BestOffer | None:
    """Return the offer after a run of a config; None if it has not ended, nothing is better, or nothing was kept.

    Whether the file is still there is checked when it is used.
    """
    validation, finished = state.validation, state.finished
    best = next((s for s in reversed(state.saves) if s.best_by == "validation" and not s.is_final), None)
    if finished is None or validation is None or best is None or state.started is None:
        return None
    final = next((s for s in reversed(state.saves) if s.is_final), None)
    if best.step != validation.best_step or best.step == (final.step if final else finished.step):
        return None
    destination = Path(final.path) if final else from_root(config.output.destination)
    return BestOffer(
        best.step,
        validation.best_loss,
        Path(best.path),
        destination,
        final.step if final else None,
        Path(state.started.run_dir),
        finished.model_path if final is None else "",
        has_other=final is None and destination.exists(),
    )


def is_chosen_already(offer: BestOffer) -> bool:
    """Return whether an earlier model has been chosen as the result of the run, here or among its checkpoints."""
    newest = next((result for result in reversed(results_of(offer.run_dir)) if not result.is_abandoned), None)
    return newest is not None and newest.model_step is not None


def use(offer: BestOffer) -> UsedModel:
    """Make the best model the result; for a background thread. Raises OSError; the result is then unchanged."""
    kept = use_as_result(offer.source, offer.destination, run_dir=offer.run_dir, is_kept=True, step=offer.step)
    return UsedModel(offer, kept)


def undo(used: UsedModel) -> BestOffer:
    """Put the model back that was the result before. Raises OSError."""
    if used.earlier_model is not None:
        use_as_result(used.earlier_model, used.offer.destination, run_dir=used.offer.run_dir, is_kept=False)
    return used.offer
