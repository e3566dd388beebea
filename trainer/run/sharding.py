"""Sharding the parts of a model among the processes of a run, and gathering their weights for a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from modules.families.parts.forwards import BLOCK_TYPES
from modules.memory.sharding import ShardedModule, gathered_values
from modules.system.devices import Device
from trainer.run.model import LoadedModel
from trainer.step.evaluation import Evaluation
from trainer.step.meeting import Meeting

_TASK = "weights"


def shard(model: LoadedModel, parts: Sequence[str], *, device: Device, num_processes: int) -> LoadedModel:
    """Shard the weights of parts, and return the model with this process's rows on the training device.

    The training units of these parts then hold them. They stay on the device; all processes must call it.
    """
    sharded = {}
    for name in parts:
        part = model.family.parts[name]
        model.placement.pin(name)
        sharded[name] = ShardedModule(
            part.module, block_types=BLOCK_TYPES[part.spec.role], device=device, num_processes=num_processes
        )
        for group in (g for g in model.groups if g.part == name):
            group.parameters = {n: sharded[name].own[n.removeprefix(f"{name}.")] for n in group.parameters}
            group.is_sharded = True
    return replace(model, sharded=sharded)


class WholeValues:
    """Yields the exact weights to save, of sharded parts all weights, gathered by the main process."""

    def __init__(self, evaluation: Evaluation, sharded: Mapping[str, ShardedModule], meeting: Meeting) -> None:
        self._evaluation = evaluation
        self._sharded = sharded
        self._meeting = meeting
        self._found: dict[str, torch.Tensor] = {}
        meeting.offer(_TASK, self._gather)

    @contextmanager
    def values(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield them by full parameter name, in the main process; the others take part at their meeting."""
        if not self._sharded:
            with self._evaluation.values() as values:
                yield values
            return
        self._meeting.share(_TASK)
        try:
            yield self._found
        finally:
            self._found = {}

    def _gather(self, _given: None) -> None:
        with self._evaluation.values() as values:
            self._found = gathered_values(self._sharded, values, keeps=self._meeting.rank.is_main)
