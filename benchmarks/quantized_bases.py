"""What quantizing the UNet under a LoRA saves and costs, for each format, compared to float32 weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gguf_file import write_gguf
from benchmarks.loop_speed import run_setup
from benchmarks.measure import Ratio, compare
from benchmarks.saving_memory import of_denoiser
from modules.config.codec import decode, encode
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from modules.quantization.linear import QuantizedLinear
from modules.quantization.registry import COMPUTED, FORMATS
from trainer.run.reading import load_family
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings

_PROMPT = "a red disc"
_RESIDUAL = {"svd_dtype": "bfloat16", "svd_rank": 16}
_BLOCKS = ("Q8_0", "Q4_0")  # of GGUF files: the package gguf packs no K-quants


@dataclass(frozen=True, slots=True)
class Case:
    """A weight dtype of the UNet, with or without an SVD residual; `blocks` is the type of a GGUF file."""

    dtype: str
    has_residual: bool = False
    blocks: str = ""

    @property
    def label(self) -> str:
        """The format in words."""
        label = FORMATS[self.dtype].label
        if self.blocks:
            label = label.replace("GGUF", f"GGUF {self.blocks}")
        return f"{label}, SVD residual of rank {_RESIDUAL['svd_rank']}" if self.has_residual else label


CASES = (
    *(Case(name) for name in COMPUTED),
    *(Case("gguf", blocks=blocks) for blocks in _BLOCKS),
    *(Case(name, blocks=_BLOCKS[0]) for name in ("gguf_a8_float", "gguf_a8_int")),
    *(Case(name, has_residual=True) for name in COMPUTED),
)


@dataclass(frozen=True, slots=True)
class QuantizedBase:
    """A format: the measured bytes per weight of the quantized layers, the relative error (by norms) of the UNet's
    output on a fixed input, and the speed of training steps relative to those on float32 weights.
    """

    case: Case
    bytes_per_weight: float
    output_error: float
    speed: Ratio


def quantized_bases(
    trained: Config, config: Config, folder: Path, *, rounds: int, num_threads: int
) -> Iterator[QuantizedBase]:
    """Yield the measurements of each format: the error on the model of `trained`, the speed of steps of `config`.

    GGUF files of both models are written to the folder.
    """
    trained, config = (of_denoiser(c, trains="adapter") for c in (trained, config))
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        exact = _output(_family(trained))
        for case in CASES:
            family = _family(in_format(case, trained, folder / "trained"))
            error = float((_output(family) - exact).norm() / exact.norm())
            yield QuantizedBase(
                case,
                _bytes_per_weight(family),
                error,
                _speed(config, in_format(case, config, folder / "large"), rounds),
            )


def in_format(case: Case, config: Config, folder: Path) -> Config:
    """Return a config with the denoiser in a format."""
    denoiser = config.family.names_of("denoiser")[0]
    tree: dict[str, Any] = encode(config)
    tree["parts"][denoiser] = tree["parts"].get(denoiser, {}) | {"dtype": case.dtype}
    tree["quantization"] = tree.get("quantization", {}) | (_RESIDUAL if case.has_residual else {})
    if case.blocks:
        file = folder / f"{case.blocks}.gguf"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_gguf(file, _family(config).parts[denoiser].module.state_dict(), kind=case.blocks, flattens=False)
        tree["parts"][denoiser]["file"] = str(file)
    return decode(tree).config


def _family(config: Config) -> ModelFamily:
    return load_family(config.model, config.part, quantized=quantized_parts(config))


@torch.no_grad()
def _output(family: ModelFamily) -> torch.Tensor:
    """Return the predictions of the denoiser for a fixed input at several timesteps."""
    spec = family.spec
    side = 32
    noisy = torch.randn(4, spec.latents.channels, side, side, generator=torch.Generator().manual_seed(0))
    timesteps = torch.tensor([50, 300, 600, 900])
    return family.predict(noisy, timesteps, family.encode_prompts([_PROMPT] * 4)).float()


def _bytes_per_weight(family: ModelFamily) -> float:
    layers = [m for p in family.parts.values() for m in p.module.modules() if isinstance(m, QuantizedLinear)]
    stored = sum(p.nbytes for layer in layers for p in layer.parameters(recurse=False) if p is not layer.bias)
    return stored / sum(layer.in_features * layer.out_features for layer in layers)


def _speed(config: Config, quantized: Config, rounds: int) -> Ratio:
    runs = [prepare(run_setup(c)) for c in (quantized, config)]
    try:
        ours, plain = (run.training for run in runs)
        device = runs[0].setup.machine.train_device
        return compare(lambda: train_epoch(ours), lambda: train_epoch(plain), rounds=rounds, device=device)
    finally:
        for run in runs:
            run.close()
