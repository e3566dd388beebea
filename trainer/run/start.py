"""The start of a run with a loaded model: the weights that it starts from, its original model, its first events.

The original model, which a reference and a prior predict with, is what the run starts from. It is decided here, once
all weights that the run starts from are in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from modules.adapters.protocol import Adapter
from modules.config.schema import Config
from modules.config.usage import method_of, original_has_adapter, uses_prior
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.headers import UnreadableFileError
from modules.formats.metadata import unfold_metadata
from modules.formats.safetensors_io import read_safetensors, write_safetensors
from modules.memory.frozen_copy import FrozenCopy
from modules.system.file_errors import describe_file_error
from trainer.callbacks.best import Best
from trainer.callbacks.saving import BestBy
from trainer.events import RunStarted, WarningRaised
from trainer.ranks import Ranks
from trainer.run.callbacks import RunCallbacks
from trainer.run.checkpoint import restore_fixed, start_from_weights, weights_to_use
from trainer.run.data import Loaders
from trainer.run.model import LoadedModel
from trainer.run.placement import placed_copy
from trainer.run.setup import RunSetup
from trainer.run_folder.backup import BackupInfo, best_in
from trainer.run_folder.fork import origin_of
from trainer.run_folder.run_dir import weights_copy_in
from trainer.step.freezing import training_parts
from trainer.step.loop import Training
from trainer.step.stepper import Stepper


def take_start_weights(setup: RunSetup, model: LoadedModel, stepper: Stepper) -> bool:
    """Copy the weights of another run that a run starts from into its model; return whether there are any.

    A run that needs its original model keeps a copy of them in its folder: once it is resumed it needs them again, and
    the other run may be gone by then. Raises DarkroomError if they do not fit, and OSError.
    """
    copy = weights_copy_in(setup.run_dir)
    if setup.start_weights is not None:
        weights = take_weights(setup.start_weights, model, stepper)
        if uses_prior(setup.config) and setup.machine.ranks.rank.is_main:
            write_safetensors(copy, weights, {})
        return True
    if setup.backup is None or not copy.is_file():
        return False
    start_from_weights(read_safetensors(copy)[0], copy, groups=model.groups, stepper=stepper)
    restore_fixed(setup.backup.path, model.groups)
    return True


def take_weights(backup: BackupInfo, model: LoadedModel, stepper: Stepper) -> dict[str, torch.Tensor]:
    """Copy the weights that the run of a backup validated, sampled and saved into a model; return them by full name.

    Raises DarkroomError if they do not fit, and OSError.
    """
    weights = weights_to_use(backup.path, model.groups, model.sharded)
    start_from_weights(weights, backup.path, groups=model.groups, stepper=stepper)
    restore_fixed(backup.path, model.groups)
    return weights


@dataclass(frozen=True, eq=False)
class Original:
    """The original model's differences from the trained one: the adapters that it lacks, and copies of weights.

    With `is_prepared` False nothing was copied, since the run stated that no step needs it.
    """

    without: Sequence[Adapter] = ()
    copies: Sequence[FrozenCopy] = ()
    is_prepared: bool = True

    def differences(self) -> tuple[Sequence[Adapter], Sequence[FrozenCopy]]:
        """Return both, for a prediction. Raises ValueError if the method's record does not state the need of one."""
        if not self.is_prepared:
            raise ValueError("the method predicts with the original model, but its record sets no `needs_reference`")
        return self.without, self.copies


def original_of(config: Config, model: LoadedModel, *, has_start_weights: bool) -> Original:
    """Return the original model of a run; the model must have the weights that the run starts from.

    Every trained unit is a copy of what it starts as: parts, adapters and embeddings. Only new adapters are switched
    off instead, which is the same, and the adapters that the original model is without (`original_has_adapter`).
    `has_start_weights`: the run starts from weights of another run's backup, so its adapters are not new.
    """
    if not uses_prior(config):
        return Original(is_prepared=False)
    is_without = config.training.trains == "adapter"
    is_without = is_without and not original_has_adapter(config, has_start_weights=has_start_weights)
    without = model.adapters if is_without else ()
    of_adapters = {name for adapter in without for name in adapter.parameters()}
    groups = [g for g in model.groups if not of_adapters.issuperset(g.parameters)]
    copies = (placed_copy(model.family, groups, model.placement, name="original"),) if groups else ()
    return Original(without, copies)


def restore_best(setup: RunSetup, callbacks: RunCallbacks, backup: BackupInfo) -> None:
    """Put the best models of a backup into the run's save folder, once the searches for them are restored."""
    kinds: dict[BestBy, Best] = {"validation": callbacks.validation.search.best}
    if callbacks.rewards is not None:
        kinds["reward"] = callbacks.rewards.search.best
    for by, best in kinds.items():
        if best.step is None:
            continue
        source = best_in(backup.path, by) or _kept_by_older_version(
            setup.run_dir, callbacks.saving.best_ending(by), best.step
        )
        if source is None:
            continue
        try:
            callbacks.saving.restore_best(by, source)
        except OSError as error:
            message = f"The best model of step {best.step} could not be restored. {describe_file_error(error)[0]}"
            setup.log.emit(WarningRaised(message))


def _kept_by_older_version(run_dir: Path, ending: str, step: int) -> Path | None:
    """Return the best model of a run, or of the run it was forked from, if it was saved at `step`.

    Backups of older versions do not have it. Its name begins with the name of the result, which differs in a fork.
    """
    origin = origin_of(run_dir)
    has_history = origin is not None and not origin.is_weights_only and step <= origin.step
    places = (run_dir, origin.run_dir) if origin is not None and has_history else (run_dir,)
    models = (path for place in places for path in sorted((place / "save").glob(f"*{ending}")))
    return next((path for path in models if _step_of(path) == step), None)


def _step_of(model: Path) -> int | None:
    """Return after which step a model was saved, from its metadata; None if it is not there or lacks it."""
    for file in sorted(model.rglob("*.safetensors")) if model.is_dir() else [model]:
        with suppress(OSError, UnreadableFileError, KeyError, ValueError):
            metadata = read_checkpoint_header(file).metadata
            return int({**unfold_metadata(metadata), **metadata}["ss_steps"])
    return None


def announce(setup: RunSetup, training: Training, model: LoadedModel, loaders: Loaders, total_steps: int) -> None:
    """Report the start of a run."""
    config = setup.config
    num_prompts = sum(not e.image.has_image for e in loaders.training.dataset.examples)
    setup.log.emit(
        RunStarted(
            run_dir=str(setup.run_dir),
            family=config.model.family.name,
            method=method_of(config).name,
            trains=config.training.trains,
            epochs=config.training.epochs,
            total_steps=total_steps,
            first_step=training.counters.step,
            num_images=len(loaders.training.dataset.examples) - num_prompts,
            num_validation_images=len(loaders.validation.dataset.examples),
            num_trainable_parameters=_num_trainable(model, setup.machine.ranks),
            trained_parts=tuple(model.unit_names.get(unit, unit) for unit in training_parts(model.groups)),
            device=str(setup.machine.train_device),
            num_threads=setup.num_threads,
            num_prompts=num_prompts,
            num_pairs=sum(e.image.rejected is not None for e in loaders.training.dataset.examples),
        )
    )


def _num_trainable(model: LoadedModel, ranks: Ranks) -> int:
    """Return the number of trained weights; sharded parts are counted over all processes."""
    counts = {g.name: sum(p.numel() for p in g.parameters.values()) for g in model.groups}
    sharded = sum(counts[g.name] for g in model.groups if g.is_sharded)
    [of_all] = ranks.sums([sharded])
    return sum(counts.values()) - sharded + round(of_all)
