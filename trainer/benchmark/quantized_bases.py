"""What quantizing the UNet under a LoRA saves and costs, for each format, compared to float32 weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from modules.config.codec import decode, encode
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from modules.families.registry import FAMILIES
from modules.quantization.linear import QuantizedLinear
from modules.quantization.registry import FORMATS
from modules.quantization.spec import QuantizedFormat
from trainer.benchmark.loop_speed import run_setup
from trainer.benchmark.measure import Ratio, paired
from trainer.benchmark.saving_memory import of_denoiser
from trainer.run.model import load_family
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings

_PROMPT = "a red disc"


@dataclass(frozen=True, slots=True)
class QuantizedBase:
    """A format: the measured bytes per weight of the quantized layers, the relative error (by norms) of the UNet's
    output on a fixed input, and the speed of training steps relative to those on float32 weights.
    """

    format: QuantizedFormat
    bytes_per_weight: float
    output_error: float
    speed: Ratio


def quantized_bases(trained: Config, config: Config, *, rounds: int, num_threads: int) -> Iterator[QuantizedBase]:
    """Yield the measurements of each format: the error on the model of `trained`, the speed of steps of `config`."""
    trained, config = (of_denoiser(c, trains="adapter") for c in (trained, config))
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        exact = _output(_family(trained))
        for form in FORMATS.values():
            family = _family(_with_dtype(trained, form.name))
            error = float((_output(family) - exact).norm() / exact.norm())
            yield QuantizedBase(form, _bytes_per_weight(family), error, _speed(config, form.name, rounds))


def _with_dtype(config: Config, dtype: str) -> Config:
    tree: dict[str, Any] = encode(config)
    for part in FAMILIES[config.model.family].parts:
        if part.role == "denoiser":
            tree["parts"][part.name] = tree["parts"].get(part.name, {}) | {"dtype": dtype}
    return decode(tree).config


def _family(config: Config) -> ModelFamily:
    return load_family(config.model, config.part, quantized=quantized_parts(config))


@torch.no_grad()
def _output(family: ModelFamily) -> torch.Tensor:
    """Return what the denoiser predicts for a fixed input at several timesteps."""
    spec = family.spec
    side = 32
    noisy = torch.randn(4, spec.latent_channels, side, side, generator=torch.Generator().manual_seed(0))
    timesteps = torch.tensor([50, 300, 600, 900])
    return family.predict(noisy, timesteps, family.encode_prompts([_PROMPT] * 4)).float()


def _bytes_per_weight(family: ModelFamily) -> float:
    layers = [m for p in family.parts.values() for m in p.module.modules() if isinstance(m, QuantizedLinear)]
    stored = sum(layer.packed.nbytes + layer.scales.nbytes for layer in layers)
    return stored / sum(layer.in_features * layer.out_features for layer in layers)


def _speed(config: Config, dtype: str, rounds: int) -> Ratio:
    runs = [prepare(run_setup(c)) for c in (_with_dtype(config, dtype), _with_dtype(config, "float32"))]
    try:
        ours, plain = (run.training for run in runs)
        device = runs[0].setup.machine.train_device
        return paired(lambda: train_epoch(ours), lambda: train_epoch(plain), rounds=rounds, device=device)
    finally:
        for run in runs:
            run.close()
