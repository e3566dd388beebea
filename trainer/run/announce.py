"""The event that a run starts with: what is trained on what, and for how long."""

from __future__ import annotations

from modules.config.method_facts import method_of
from trainer.events import RunStarted
from trainer.ranks import Ranks
from trainer.run.data import Loaders
from trainer.run.model import LoadedModel
from trainer.run.setup import RunSetup
from trainer.step.freezing import training_parts
from trainer.step.loop import Training


def announce(setup: RunSetup, training: Training, model: LoadedModel, loaders: Loaders, total_steps: int) -> None:
    """Report the start of a run."""
    config = setup.config
    num_prompts = sum(not e.image.has_image for e in loaders.training.dataset.examples)
    setup.log.emit(
        RunStarted(
            run_dir=str(setup.run_dir),
            family=config.model.family,
            method=method_of(config).name,
            trains=config.training.trains,
            epochs=config.training.epochs,
            total_steps=total_steps,
            first_step=training.counters.step,
            num_images=len(loaders.training.dataset.examples) - num_prompts,
            num_validation_images=len(loaders.validation.dataset.examples),
            num_trainable_parameters=_num_trainable(model, setup.machine.ranks),
            trained_parts=training_parts(model.groups),
            device=str(setup.machine.train_device),
            num_threads=setup.num_threads,
            num_prompts=num_prompts,
            num_pairs=sum(e.image.rejected is not None for e in loaders.training.dataset.examples),
        )
    )


def _num_trainable(model: LoadedModel, ranks: Ranks) -> int:
    """Return the number of trained weights; of sharded parts those of all processes."""
    counts = {g.name: sum(p.numel() for p in g.parameters.values()) for g in model.groups}
    sharded = sum(counts[g.name] for g in model.groups if g.is_sharded)
    [of_all] = ranks.sums([sharded])
    return sum(counts.values()) - sharded + round(of_all)
