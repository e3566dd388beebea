"""A minimal training loop for comparison: everything in memory, no checks, no saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from modules.adapters.protocol import Adapter
from modules.config.schema import Config
from modules.data.batch import Batch
from modules.families.model_class import ModelClass
from modules.families.protocol import ModelFamily
from modules.optim.build import build_optimizer
from modules.system.devices import Device
from trainer.run.model import LoadedModel
from trainer.step.precision import Precision

TypesOf = Callable[[ModelClass], tuple[type[torch.nn.Module], ...]]
"""Which of a part's modules are checkpointed, by its class."""


@dataclass(eq=False)
class BareLoop:
    """Noise, prediction, loss, backward, clip, step, EMA: with the engine's model, adapter, batches and optimizer.

    `averages` are the EMA weights, if there are any, and `decay` is the config's, without its warm-up.
    """

    family: ModelFamily
    adapters: Sequence[Adapter]
    batches: Sequence[Batch]
    optimizer: torch.optim.Optimizer
    parameters: list[torch.nn.Parameter]
    precision: Precision
    clip_grad_norm: float | None
    averages: list[torch.Tensor] | None = None
    decay: float = 0.0

    @classmethod
    def of(cls, config: Config, model: LoadedModel, batches: Sequence[Batch], precision: Precision) -> BareLoop:
        """Return the loop over batches that are already on the device."""
        parameters = [p for g in model.groups for p in g.parameters.values()]
        optimizer = build_optimizer(model.groups, config.training.optimizer)
        loop = cls(
            model.family, model.adapters, batches, optimizer, parameters, precision, config.training.clip_grad_norm
        )
        if config.training.ema.mode != "off":
            loop.averages = [p.detach().float().clone() for p in parameters]
            loop.decay = config.training.ema.decay
        return loop

    def run(self, device: Device) -> None:
        """Train on each batch once."""
        process = self.family.process
        for batch in self.batches:
            noise = torch.randn(batch.latents_BCHW.shape, device=device.torch)
            timesteps = torch.randint(0, process.num_timesteps, (batch.num_samples,), device=device.torch)
            with self.precision.autocast():
                conditioning = batch.conditioning_for(self.family)
                noisy = process.add_noise(batch.latents_BCHW, noise, timesteps)
                output = self.family.predict(noisy, timesteps, conditioning)
                target = process.target(batch.latents_BCHW, noise, timesteps)
                loss = torch.nn.functional.mse_loss(output.float(), target)
            loss.backward()
            if self.clip_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.averages is not None:
                get_ema_multi_avg_fn(self.decay)(self.averages, self.parameters, 0)


def checkpoint_by_torch(model: LoadedModel, types_of: TypesOf) -> None:
    """Checkpoint the modules of these types by torch alone, as diffusers' `enable_gradient_checkpointing` does."""
    for part in model.family.parts.values():
        types = types_of(part.spec.model)
        for module in part.module.modules():
            if isinstance(module, types):
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)
