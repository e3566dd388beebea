"""The training loop. It calls the other components in order and does nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from trainer.step.callback import Callback, Reporter, StepView
from trainer.step.counters import Counters
from trainer.step.freezing import training_parts
from trainer.step.graphs import StepGraphs, recorded_loss
from trainer.step.outcome import PendingOutcome
from trainer.step.pauses import Pauses
from trainer.step.precision import Precision
from trainer.step.prediction_modes import check_references_left
from trainer.step.step_batches import step_batches
from trainer.step.stepper import Stepper

LoopOutcome = Literal["finished", "nothing_left", "stopped_early"]


@dataclass(frozen=True, slots=True)
class _UnreadStep:
    """A step whose outcome is not read yet, with the facts known so far (see `StepView`)."""

    before: Counters
    outcome: PendingOutcome
    seconds: float
    epoch_steps: int
    training_parts: tuple[str, ...]


@dataclass(eq=False)
class Training:
    """The components of the loop.

    `position` are the counters of the run, always at a full step; the loss of the newest step may be missing in them.
    `reporters` get the outcome of each step, `callbacks` are called between steps if one of them is due, and
    `between_steps` after each step, without its outcome.
    """

    loader: Loader
    method: TrainingMethod
    context: StepContext
    precision: Precision
    stepper: Stepper
    groups: Sequence[TrainGroup]
    reporters: Sequence[Reporter]
    callbacks: Sequence[Callback]
    between_steps: Callable[[Counters], None]
    freeze: Callable[[Counters], None]
    should_stop: Callable[[], bool]
    pauses: Pauses
    log: EventLog
    clock: Callable[[], float]
    epochs: int
    max_consecutive_skipped_steps: int
    quiet_points: QuietPoints
    position: Counters
    ranks: Ranks = ALONE
    graphs: StepGraphs | None = None
    is_in_step: bool = False
    """Whether this process computes a step, for which others may wait: not while the callbacks run."""
    unread: _UnreadStep | None = None

    @property
    def counters(self) -> Counters:
        """The progress of the run with the outcome of its newest step, for which the host waits."""
        read_newest(self)
        return self.position


def run_loop(training: Training) -> LoopOutcome:
    """Train to the last epoch, or until no part is trained any more or early stopping ends the run.

    Raises StopRequested between micro-batches once the run is to stop; the unfinished step is then discarded.
    """
    outcome: LoopOutcome = "finished"
    while training.position.epoch < training.epochs:
        if not training_parts(training.groups):
            outcome = "nothing_left"
            break
        if training.should_stop():
            outcome = "stopped_early"
            break
        train_epoch(training)
    read_newest(training)
    return outcome


def train_epoch(training: Training) -> None:
    """Train the rest of the current epoch."""
    epoch, stepper = training.position.epoch, training.stepper
    training.is_in_step = True
    epoch_steps = training.loader.plans.num_steps(epoch)
    if epoch_steps == 0:
        training.is_in_step = False
        training.position = training.position.after_empty_epoch()
        return
    step, epoch_step = training.position.step, training.position.epoch_step
    loaded = training.loader.batches(epoch, first_epoch_step=epoch_step, step=step)
    end_step = step + epoch_steps - epoch_step
    training.log.emit(PhaseChanged("training"))
    started = training.clock()
    training.pauses.take_seconds()
    for batch in step_batches(training.method, loaded, training.context, first_step=step, end_step=end_step):
        training.pauses.check()
        step_loss = add_micro_batch(
            batch, training.method, stepper, training.context, training.precision, training.graphs
        )
        if not step_loss.is_last_micro_batch:
            continue
        finish_step(training, epoch_steps, started + training.pauses.take_seconds())
        training.quiet_points.collect_if_due()
        if not training_parts(training.groups) or training.should_stop():
            return
        training.is_in_step = True
        if training.position.epoch == epoch:
            training.log.emit(PhaseChanged("training"))
        started = training.clock()
    training.is_in_step = False


def add_micro_batch(
    batch: StepBatch,
    method: TrainingMethod,
    stepper: Stepper,
    context: StepContext,
    precision: Precision,
    graphs: StepGraphs | None = None,
) -> StepLoss:
    """Add the gradient of a method's loss for a batch to a stepper, and return the loss, detached.

    With `graphs` the forward and backward pass are recorded and replayed, where the batch can be.
    """
    # Dropout inside the model uses the global generator, so it is seeded for each micro-batch.
    # Processes that share one must not drop the same places.
    rows = (batch.first_row,) if isinstance(batch, Batch) and batch.first_row else ()
    seed = derive_seed(context.run_seed, "dropout", batch.step, batch.micro_batch, *rows)
    with seeded_global_rng(seed, context.device):
        if graphs is not None and (recorded := recorded_loss(graphs, batch, method, context, precision)) is not None:
            stepper.add(recorded)
            return recorded
        with precision.of_steps(), check_references_left():
            step_loss = method.loss(batch, context)
        stepper.begin(batch.step)
        stepper.backward(step_loss)
    # Nothing may keep its graph: the next batch may be recorded, and torch refuses to where accumulating a gradient
    # began on another stream (`torch.autograd.graph.set_override_stale_capture_stream`).
    return replace(step_loss, loss=step_loss.loss.detach())


def finish_step(training: Training, epoch_steps: int, started: float) -> None:
    """Update the weights, count the step, freeze parts that reached their stop, and call the callbacks that are due.

    The outcome of the step before is read first: by now the device has this step to compute. That of this step is only
    read here if it is known already, or if something needs it before the next one.
    """
    read_newest(training)
    before, trained_parts = training.position, training_parts(training.groups)
    outcome = training.stepper.update(before.step)
    if is_known := outcome.is_ready:
        outcome.read()
    seconds = training.clock() - started
    is_awaited = is_known or _is_awaited(training, before, _after(before, outcome, seconds, epoch_steps))
    if is_awaited and not is_known:
        outcome.read()
        seconds = training.clock() - started
    training.is_in_step = False
    if any(group.stop_after.is_of_time for group in training.groups):
        # All processes count the seconds of the main one.
        (seconds,) = training.ranks.sums([seconds if training.ranks.rank.is_main else 0.0])
    training.position = _after(before, outcome, seconds, epoch_steps)
    training.unread = _UnreadStep(before, outcome, seconds, epoch_steps, trained_parts)
    if is_awaited and (view := read_newest(training)) is not None:
        training.freeze(training.position)
        for callback in training.callbacks:
            callback.after_step(view)
    training.between_steps(training.position)


def _after(before: Counters, outcome: PendingOutcome, seconds: float, epoch_steps: int) -> Counters:
    return before.after_step(epoch_steps=epoch_steps, num_images=outcome.num_images, seconds=seconds)


def _is_awaited(training: Training, before: Counters, now: Counters) -> bool:
    """Return whether the outcome of a step is needed before the next one begins; several processes meet after each."""
    return (
        not training.ranks.rank.is_alone
        or any(callback.is_due(before, now) for callback in training.callbacks)
        or any(g.is_training and g.stop_after.is_over(now.moment) for g in training.groups)
    )


def read_newest(training: Training) -> StepView | None:
    """Read the outcome of the newest step, count it, and report it; None if that has been done.

    Raises DarkroomError if too many steps in a row were skipped.
    """
    unread, training.unread = training.unread, None
    if unread is None:
        return None
    outcome = unread.outcome.read()
    now = training.position = training.position.with_outcome(loss=outcome.loss, was_skipped=outcome.was_skipped)
    if now.num_skipped_in_a_row > training.max_consecutive_skipped_steps:
        raise DarkroomError(
            f"The loss or gradient was NaN or infinite in {now.num_skipped_in_a_row} steps in a row. The run was "
            f"stopped at step {now.step}.",
            advice="Lower the learning rate, or choose another precision. Skipped steps do not change the weights.",
        )
    view = StepView(unread.before, now, outcome, unread.seconds, unread.epoch_steps, unread.training_parts)
    for reporter in training.reporters:
        reporter.after_step(view)
    return view
