"""Several processes of a run: the check that they train the same on the same images, and the parts that they shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from modules.config.compare import differing_paths
from modules.config.schema import Config
from modules.families.parts.forwards import block_types
from modules.memory.sharding import ShardedModule, gathered_values
from modules.system.devices import Device
from modules.system.errors import DarkroomError
from modules.system.problem import list_first
from trainer.data.loader import Loader
from trainer.ranks import Ranks
from trainer.run.model import LoadedModel
from trainer.step.evaluation import Evaluation
from trainer.step.meeting import Meeting

_MAX_NAMED = 5
_TASK = "weights"


def require_equal_settings(ranks: Ranks, config: Config) -> None:
    """Raise DarkroomError in all processes if one has another config or another version of torch than the main one."""
    if ranks.rank.is_alone:
        return
    facts_of_all = ranks.gather((config, torch.__version__))
    of_main, version = facts_of_all[0]
    for number, (other, other_version) in enumerate(facts_of_all[1:], start=2):
        if other_version != version:
            raise DarkroomError(
                f"Process {number} of {len(facts_of_all)} has torch {other_version}, the first one {version}.",
                advice="Install the same version of this program and of torch on all machines.",
            )
        if paths := differing_paths(of_main, other):
            raise DarkroomError(
                f"Process {number} of {len(facts_of_all)} has other settings than the first one: "
                f"{list_first(paths, _MAX_NAMED)}.",
                advice="Start all processes with the same config; on several machines, copy the file.",
            )


def require_equal_images(ranks: Ranks, training: Loader, validation: Loader) -> None:
    """Raise DarkroomError in all processes if one finds other images, sizes or captions than the main one."""
    if ranks.rank.is_alone:
        return
    facts_of_all = ranks.gather(
        (len(training.dataset.examples), training.plans.fingerprint, validation.plans.fingerprint)
    )
    for number, facts in enumerate(facts_of_all[1:], start=2):
        if facts != facts_of_all[0]:
            raise DarkroomError(
                f"Process {number} of {len(facts_of_all)} finds other images or captions than the first one "
                f"({facts[0]} images to train on, the first one {facts_of_all[0][0]}).",
                advice="All machines need the same files at the same paths. Copy the folders of the concepts again, or "
                "use a folder that all of them share.",
            )


def shard(model: LoadedModel, parts: Sequence[str], *, device: Device, num_processes: int) -> LoadedModel:
    """Shard the weights of parts, and return the model with this process's rows on the training device.

    The training units of these parts then hold them. They stay on the device; all processes must call it.
    """
    sharded = {}
    for name in parts:
        part = model.family.parts[name]
        model.placement.pin(name)
        sharded[name] = ShardedModule(
            part.module, block_types=block_types(part.spec.model), device=device, num_processes=num_processes
        )
        for group in (g for g in model.groups if g.part == name):
            group.parameters = {n: sharded[name].rows[n.removeprefix(f"{name}.")] for n in group.parameters}
            group.is_sharded = True
    return replace(model, sharded=sharded)


class WholeValues:
    """Yields the exact weights to save; the main process gathers the weights of sharded parts."""

    def __init__(self, evaluation: Evaluation, sharded: Mapping[str, ShardedModule], meeting: Meeting) -> None:
        self._evaluation = evaluation
        self._sharded = sharded
        self._meeting = meeting
        self._whole: dict[str, torch.Tensor] = {}
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
            yield self._whole
        finally:
            self._whole = {}

    def _gather(self, _given: None) -> None:
        with self._evaluation.values() as values:
            self._whole = gathered_values(self._sharded, values, keeps=self._meeting.rank.is_main)
