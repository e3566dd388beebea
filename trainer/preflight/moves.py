"""Changes of settings that save memory, one function for each: for advice and for "fit to my card".

Each keeps what is trained, and on what: advice also has some that do not (`changes_result`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modules.config.schema import Config
from modules.families.spec import PartSpec
from modules.optim.registry import memory_saver
from modules.quantization.registry import FORMATS
from modules.settings.edit import get_path, replace_value
from modules.settings.shared_types import CheckpointMode
from modules.system.problem import count

_MODES = {
    "off": "no gradient checkpointing",
    "auto": "automatic gradient checkpointing",
    "selective": "gradient checkpointing of cheap operations",
    "transformer": "gradient checkpointing per transformer block",
    "block": "gradient checkpointing per block",
    "whole": "gradient checkpointing of the whole part",
}


@dataclass(frozen=True, slots=True)
class Move:
    """A change of settings: the field it is named by, the change in words, and the new values by path.

    `changes_result`: the run learns something else, or from other images. `quantizes`: it is the format of a frozen
    base.
    """

    path: str
    words: str
    values: tuple[tuple[str, Any], ...]
    changes_result: bool = False
    quantizes: bool = False

    def apply_to(self, config: Config) -> Config:
        """Return the config with the new values."""
        for path, value in self.values:
            config = replace_value(config, path, value)
        return config

    def is_in(self, config: Config) -> bool:
        """Return whether a config has the new values already."""
        return all(get_path(config, path) == value for path, value in self.values)


def checkpointing(part: PartSpec, mode: CheckpointMode) -> Move:
    """Return the choice of what gradient checkpointing computes again."""
    path = f"parts.{part.name}.checkpointing"
    return Move(path, f"{_MODES[mode]} for the {part.label}", ((path, mode),))


def activation_offloading(part: PartSpec, *, is_on: bool = True) -> Move:
    """Return the offloading of the activations that checkpointing keeps."""
    path = f"parts.{part.name}.offload_activations"
    words = "activation offloading" if is_on else "no activation offloading"
    return Move(path, f"{words} for the {part.label}", ((path, is_on),))


def layer_offloading(part: PartSpec, fraction: float) -> Move:
    """Return the offloading of a fraction of the layers, which needs checkpointing per block."""
    path = f"parts.{part.name}.offload_fraction"
    blocks = ((f"parts.{part.name}.checkpointing", "block"),) if fraction else ()
    share = {0.0: "none", 0.5: "half", 1.0: "all"}.get(fraction, f"{fraction:.0%}")
    return Move(path, f"offloading {share} of the layers of the {part.label}", ((path, fraction), *blocks))


def sixteen_bits(parts: Sequence[PartSpec], *, changes_result: bool = True) -> Move:
    """Return bfloat16 as the weight dtype of parts, named by the denoiser if it is one of them."""
    first = next((p for p in parts if p.role == "denoiser"), parts[0])
    words = f"bfloat16 as the weight dtype of {', '.join(p.name for p in parts)}"
    values = tuple((f"parts.{p.name}.dtype", "bfloat16") for p in parts)
    return Move(f"parts.{first.name}.dtype", words, values, changes_result)


def quantized_base(part: PartSpec, format_name: str) -> Move:
    """Return a quantized format of a part whose own weights are not trained."""
    path = f"parts.{part.name}.dtype"
    words = f"{FORMATS[format_name].label} as the weight dtype of the {part.label}"
    return Move(path, words, ((path, format_name),), quantizes=True)


def micro_batch(config: Config, batch_size: int) -> Move:
    """Return another batch size, which divides the effective batch, with the accumulation steps that keep it."""
    training = config.training
    steps = training.batch_size * training.accumulation_steps // batch_size
    is_twice = steps == 2 * training.accumulation_steps
    times = "twice the accumulation steps" if is_twice else count(steps, "accumulation step")
    values = (("training.batch_size", batch_size), ("training.accumulation_steps", steps))
    return Move("training.batch_size", f"a batch size of {batch_size} with {times}", values)


def fused_backward() -> Move:
    """Return the update of each weight inside the backward pass."""
    path = "training.optimizer.fused_back_pass"
    return Move(path, "the optimizer's fused backward pass", ((path, True),))


def ema_offloaded() -> Move:
    """Return EMA on the offload device."""
    path = "training.ema.mode"
    return Move(path, "EMA on the offload device", ((path, "temp_device"),))


def frozen_encoders(config: Config, trained: Sequence[str]) -> Move:
    """Return not training the text encoders, of which `trained` are."""
    words = "not training the text encoders" if len(trained) > 1 else "not training the text encoder"
    encoders = config.family.names_of("text_encoder")
    values = tuple((f"parts.{name}.train", False) for name in encoders)
    return Move(f"parts.{trained[0]}.train", words, values, changes_result=True)


def sixteen_bit_precision() -> Move:
    """Return bfloat16 as the precision."""
    path = "training.precision"
    return Move(path, "bfloat16 as the precision", ((path, "bfloat16"),), changes_result=True)


def lean_optimizer() -> Move:
    """Return the optimizer that keeps the least state."""
    saver = memory_saver()
    values = (("training.optimizer", saver.settings()),)
    return Move("training.optimizer.name", saver.label, values, changes_result=True)


def stochastic_rounding() -> Move:
    """Return stochastic rounding of 16-bit weights instead of additional float32 ones."""
    path = "training.low_precision_updates"
    words = "stochastic rounding instead of float32 master weights"
    return Move(path, words, ((path, "stochastic"),), changes_result=True)


def latent_cache() -> Move:
    """Return the latent cache, which encodes all images before the training."""
    return Move("data.latent_cache", "the latent cache", (("data.latent_cache", True),), changes_result=True)


def half_samples(config: Config) -> Move:
    """Return samples of half the width and height."""
    halves = tuple(
        p.model_copy(update={"width_px": p.width_px // 2, "height_px": p.height_px // 2})
        for p in config.sampling.prompts
    )
    return Move(
        "sampling.prompts",
        "samples of half the width and height",
        (("sampling.prompts", halves),),
        changes_result=True,
    )
