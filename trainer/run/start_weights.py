"""The weights of another run that a run starts from: a fork with weights only."""

from __future__ import annotations

from modules.config.method_facts import uses_prior
from modules.formats.safetensors_io import read_safetensors, write_safetensors
from trainer.run.checkpoint import restore_fixed, start_from_weights, weights_to_use
from trainer.run.model import LoadedModel
from trainer.run.setup import RunSetup
from trainer.run_folder.start_copy import weights_copy_in
from trainer.step.stepper import Stepper


def take_start_weights(setup: RunSetup, model: LoadedModel, stepper: Stepper) -> bool:
    """Give the model the weights of another run that its run starts from; return whether there are any.

    A run that needs its original model keeps a copy of them in its folder: once it is resumed it needs them again, and
    the other run may be gone by then. Raises DarkroomError if they do not fit, and OSError.
    """
    copy = weights_copy_in(setup.run_dir)
    if setup.start_weights is not None:
        folder = setup.start_weights.path
        weights = weights_to_use(folder, model.groups, model.sharded)
        start_from_weights(weights, folder, groups=model.groups, stepper=stepper)
        restore_fixed(folder, model.groups)
        if uses_prior(setup.config) and setup.machine.ranks.rank.is_main:
            write_safetensors(copy, weights, {})
        return True
    if setup.backup is None or not copy.is_file():
        return False
    start_from_weights(read_safetensors(copy)[0], copy, groups=model.groups, stepper=stepper)
    restore_fixed(setup.backup.path, model.groups)
    return True
