"""Counts the program's own training step of published models, whose weights have no values here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch

from benchmarks.kernels.counter import Counts, KernelCounter
from benchmarks.kernels.fake_gpu import GPU, fake_gpu
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.config.usage import needs_autocast, updates_in_backward
from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.data.conditioning import SizeConditioning
from modules.diffusion.flow import flow_process_of
from modules.families.parts.files import ModelFiles
from modules.families.parts.lora_names import naming_of
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.protocol import ModelFamily
from modules.families.registry import FAMILIES
from modules.families.sdxl.model import assemble
from modules.families.sdxl.spec import SdxlSettings
from modules.families.z_image.model import ZImage
from modules.families.z_image.spec import CONVENTION, Z_IMAGE
from modules.system.devices import CPU, dtype_of
from modules.system.factories import load_factory
from trainer.methods.build import build_method
from trainer.methods.protocol import StepContext
from trainer.run import model as run_model
from trainer.run.machine import Machine
from trainer.run.model import prepare_for_training
from trainer.run.stepper import build_stepper
from trainer.step.loop import add_micro_batch
from trainer.step.precision import Precision

Configs = Mapping[str, Mapping[str, Any]]
_WARMUP_STEPS = 1  # the optimizer makes its state, and untrained weights are watched


@dataclass(frozen=True, slots=True)
class CountedModel:
    """A model whose steps can be counted: the published model's name and its family.

    `assemble(parts, scheduler_config)` returns the family. `text` are the shapes of the tensors that its text encoders
    would return for one caption.
    """

    published: str
    family: str
    assemble: Callable[[Mapping[str, Any], Mapping[str, Any]], ModelFamily]
    text: Mapping[str, tuple[int, ...]]


def _sdxl(parts: Mapping[str, Any], scheduler: Mapping[str, Any]) -> ModelFamily:
    return assemble(ModelFiles("SDXL", parts, scheduler, tokenizers={}), SdxlSettings())


def _z_image(parts: Mapping[str, Any], scheduler: Mapping[str, Any]) -> ModelFamily:
    naming = naming_of("z_image", parts, prediction="flow")
    process, reader = flow_process_of(scheduler, CONVENTION), cast(Any, None)  # captions are never encoded
    return ZImage(spec=Z_IMAGE, modules=parts, process=process, scheduler=scheduler, lora_naming=naming, reader=reader)


MODELS = {
    "sdxl": CountedModel("sdxl", "sdxl", _sdxl, {"states": (1, 77, 2048), "pooled": (1, 1280)}),
    "z-image": CountedModel("z_image", "z_image", _z_image, {"states": (1, 128, 2560)}),
}


def lora_config(family: str, *, side_px: int, batch_size: int = 1, **changes: Any) -> Config:
    """Return the config of a LoRA of rank 16 in bfloat16; `changes` are settings of the denoiser."""
    tree = encode(Config())
    denoiser = FAMILIES[family].denoiser.name
    tree["model"] |= {"family": family}
    tree["data"] |= {"resolution_px": [side_px]}
    tree["training"] |= {"precision": "bfloat16", "batch_size": batch_size, "ema": {"mode": "off"}}
    tree["adapter"] = {"name": "lora", "rank": 16, "alpha": 16.0}
    tree["parts"] = {p.name: {"dtype": "bfloat16", "train": False} for p in FAMILIES[family].parts}
    tree["parts"][denoiser] |= {"train": True, "checkpointing": "off", **changes}
    return decode(tree).config


def count_step(
    model: CountedModel, config: Config, configs: Configs | None = None, *, autocasts: bool = False
) -> Counts:
    """Return the counts of a step after the warm-up. `configs` replace the published configs of the parts.

    With `autocasts` the step runs under autocast even if it does not need it.
    """
    configs = configs or shipped_configs(model.published)
    counter = KernelCounter()
    needs = mock.patch.object(run_model, "needs_autocast", return_value=True) if autocasts else nullcontext()
    with needs, fake_gpu():
        training = config.training
        precision = Precision(training.precision, GPU, training.autocast_cache, autocasts or needs_autocast(config))
        machine = Machine(GPU, CPU, precision, guard=None)
        family = model.assemble(_parts(model.family, config, configs), configs["scheduler"])
        adapters, groups = prepare_for_training(family, config, machine)
        stepper = build_stepper(
            config.training,
            groups,
            machine,
            run_seed=0,
            total_steps=1000,
            is_fused=updates_in_backward(config),
            adapters=adapters,
        )
        method, context = build_method(config.training, None), _context(family)
        method.prepare(context)
        with counter:
            for step in range(_WARMUP_STEPS + 1):
                batch = _batch(family, config, model.text, step)
                counter.clear()
                add_micro_batch(batch, method, stepper, context, precision)
                stepper.finish(step)
    return counter.counts()


def _parts(family: str, config: Config, configs: Configs) -> dict[str, Any]:
    """Return the parts of a model, frozen: the denoiser with its weights on the GPU, the others on the meta device."""
    spec = FAMILIES[family]
    parts = {p.name: empty_part(load_factory(p.model_class), configs[p.name]) for p in spec.parts}
    dtype = dtype_of(config.part(spec.denoiser.name).dtype)
    denoiser = parts[spec.denoiser.name].eval().requires_grad_(False)
    for module in denoiser.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = _on_gpu(tensor, dtype)
    return parts


def _on_gpu(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the GPU with the shape of a weight or a buffer, without values."""
    made = torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device=GPU.torch)
    return torch.nn.Parameter(made, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else made


def _batch(family: ModelFamily, config: Config, text: Mapping[str, tuple[int, ...]], step: int) -> Batch:
    number, size = config.training.batch_size, Size(*[int(config.data.resolution_px[0])] * 2)
    dtype = Precision(config.training.precision, GPU).compute_dtype
    shape = family.spec.latents.shape(size.width_px, size.height_px)
    tensors = {n: torch.empty(number, *s[1:], dtype=dtype, device=GPU.torch) for n, s in text.items()}
    return Batch(
        latents_BCHW=torch.empty(number, *shape, dtype=dtype, device=GPU.torch),
        captions=("a photo",) * number,
        conditioning=family.conditioning_from(tensors),
        loss_weights_B=torch.empty(number, device=GPU.torch),
        size_conditionings=[SizeConditioning.whole(size)] * number,
        sample_indices=(),
        epoch=0,
        step=step,
        micro_batch=0,
        group_samples=number,
        is_last_micro_batch=True,
    )


def _context(family: ModelFamily) -> StepContext:
    def unused(*_: Any) -> Any:
        raise NotImplementedError("a denoising step needs no reference and no rollout")

    return StepContext(
        family,
        GPU,
        CPU,
        run_seed=0,
        encode=unused,
        check=lambda: None,
        rollout=lambda step: nullcontext(),
        prior=unused,
        frozen_copy=unused,
        reference=unused,
        emit=lambda event: None,
        run_dir=Path(),
    )
