"""From the loader's batches to those that a method learns from, held to the steps that the run counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from modules.data.batch import Batch
from trainer.methods.protocol import StepBatch, StepContext, TrainingMethod


def step_batches(
    method: TrainingMethod, loader: Iterable[Batch], context: StepContext, *, first_step: int, end_step: int
) -> Iterator[StepBatch]:
    """Yield a method's batches of the steps from `first_step` to before `end_step`.

    A run that is resumed within a rollout begins with its accumulation group: the steps that were done are left out.
    Raises ValueError where the method makes other steps than its record says, since schedules and epochs count on them.
    """
    newest = first_step - 1
    for batch in method.batches(loader, context):
        if batch.step < first_step:
            continue
        if batch.step not in (newest, newest + 1) or batch.step >= end_step:
            raise ValueError(f"After step {newest} the method yields step {batch.step}; the epoch ends at {end_step}.")
        newest = batch.step
        yield batch
    if newest != end_step - 1:
        raise ValueError(f"The method ended the epoch after step {newest}; step {end_step - 1} is the last.")
