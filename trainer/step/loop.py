"""The training loop. It calls the other components in order and does nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from modules.data.batch import Batch
from modules.optim.param_groups import TrainGroup
from modules.system.devices import seeded_global_rng
from modules.system.errors import DarkroomError
from modules.system.seeds import derive_seed
from trainer.data.loader import Loader
from trainer.events import PhaseChanged
from trainer.launch import QuietPoints
from trainer.methods.protocol import StepBatch, StepContext, StepLoss, TrainingMethod
from trainer.ranks import ALONE, Ranks
from trainer.run_folder.event_log import EventLog
from trainer.step.callback import Callback, StepView
from trainer.step.counters import Counters
from trainer.step.freezing import training_parts
from trainer.step.pauses import Pauses
from trainer.step.precision import Precision
from trainer.step.prediction_modes import references_left
from trainer.step.step_batches import step_batches
from trainer.step.stepper import Stepper

LoopOutcome = Literal["finished", "nothing_left", "stopped_early"]


@dataclass(eq=False)
class Training:
    """The components of the loop. `counters` is the progress of the run, always at a full step."""

    loader: Loader
    method: TrainingMethod
    context: StepContext
    precision: Precision
    stepper: Stepper
    groups: Sequence[TrainGroup]
    callbacks: Sequence[Callback]
    freeze: Callable[[Counters], None]
    should_stop: Callable[[], bool]
    pauses: Pauses
    log: EventLog
    clock: Callable[[], float]
    epochs: int
    max_consecutive_skipped_steps: int
    quiet_points: QuietPoints
    counters: Counters
    ranks: Ranks = ALONE
    is_in_step: bool = False
    """Whether this process computes a step, for which others may wait: not while the callbacks run."""


def run_loop(training: Training) -> LoopOutcome:
    """Train to the last epoch, or until no part is trained any more or early stopping ends the run.

    Raises StopRequested between micro-batches once the run is to stop; the unfinished step is then discarded.
    """
    while training.counters.epoch < training.epochs:
        if not training_parts(training.groups):
            return "nothing_left"
        if training.should_stop():
            return "stopped_early"
        train_epoch(training)
    return "finished"


def train_epoch(training: Training) -> None:
    """Train the rest of the current epoch."""
    epoch, stepper = training.counters.epoch, training.stepper
    training.is_in_step = True
    epoch_steps = training.loader.plans.num_steps(epoch)
    if epoch_steps == 0:
        training.is_in_step = False
        training.counters = training.counters.after_empty_epoch()
        return
    step, epoch_step = training.counters.step, training.counters.epoch_step
    loaded = training.loader.batches(epoch, first_epoch_step=epoch_step, step=step)
    end_step = step + epoch_steps - epoch_step
    training.log.emit(PhaseChanged("training"))
    started = training.clock()
    training.pauses.take_seconds()
    for batch in step_batches(training.method, loaded, training.context, first_step=step, end_step=end_step):
        training.pauses.check()
        step_loss = add_micro_batch(batch, training.method, stepper, training.context, training.precision)
        if not step_loss.is_last_micro_batch:
            continue
        finish_step(training, epoch_steps, started + training.pauses.take_seconds())
        training.quiet_points.collect_if_due()
        if not training_parts(training.groups) or training.should_stop():
            return
        training.is_in_step = True
        if training.counters.epoch == epoch:
            training.log.emit(PhaseChanged("training"))
        started = training.clock()
    training.is_in_step = False


def add_micro_batch(
    batch: StepBatch, method: TrainingMethod, stepper: Stepper, context: StepContext, precision: Precision
) -> StepLoss:
    """Add the gradient of a method's loss for a batch to a stepper, and return the loss."""
    # Dropout inside the model uses the global generator, so it is seeded for each micro-batch.
    # Processes that share one must not drop the same places.
    rows = (batch.first_row,) if isinstance(batch, Batch) and batch.first_row else ()
    seed = derive_seed(context.run_seed, "dropout", batch.step, batch.micro_batch, *rows)
    with seeded_global_rng(seed, context.device):
        with precision.autocast(), references_left():
            step_loss = method.loss(batch, context)
        stepper.begin(batch.step)
        stepper.backward(step_loss)
    return step_loss


def finish_step(training: Training, epoch_steps: int, started: float) -> None:
    """Update the weights, count the step, freeze parts that reached their stop, and call the callbacks."""
    before = training.counters
    outcome = training.stepper.finish(before.step)
    training.is_in_step = False
    seconds = training.clock() - started
    if any(group.stop_after.is_of_time for group in training.groups):
        # All processes count the seconds of the main one.
        (seconds,) = training.ranks.sums([seconds if training.ranks.rank.is_main else 0.0])
    trained_parts = training_parts(training.groups)
    training.counters = before.after_step(
        epoch_steps=epoch_steps,
        num_images=outcome.num_images,
        seconds=seconds,
        loss=outcome.loss,
        was_skipped=outcome.was_skipped,
    )
    if training.counters.num_skipped_in_a_row > training.max_consecutive_skipped_steps:
        raise DarkroomError(
            f"The loss or gradient was NaN or infinite in {training.counters.num_skipped_in_a_row} steps in a row. The "
            f"run was stopped at step {training.counters.step}.",
            advice="Lower the learning rate, or choose another precision. Skipped steps do not change the weights.",
        )
    training.freeze(training.counters)
    view = StepView(before, training.counters, outcome, seconds, epoch_steps, trained_parts)
    for callback in training.callbacks:
        callback.after_step(view)
