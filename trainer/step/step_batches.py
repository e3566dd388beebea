"""A method's training batches, made from the loader's, and checked against the steps that the run counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from modules.data.batch import Batch
from trainer.methods.protocol import StepBatch, StepContext, TrainingMethod


def step_batches(
    method: TrainingMethod, loader: Iterable[Batch], context: StepContext, *, first_step: int, end_step: int
) -> Iterator[StepBatch]:
    """Yield a method's batches of the steps from `first_step` up to, but not including, `end_step`.

    A run that is resumed within a rollout begins with its accumulation group: the finished steps are skipped.
    Raises ValueError if the steps differ from the method's record, on which schedules and epochs depend.
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
