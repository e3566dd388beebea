"""The variants of the training loop whose speed is compared: what is trained, fused or not, compiled or not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from modules.config.codec import decode, encode
from modules.config.schema import Config
from trainer.benchmark.saving_memory import of_denoiser


@dataclass(frozen=True, slots=True)
class LoopVariant:
    """A config whose loop is measured, and its name."""

    name: str
    config: Config


def loop_variants(config: Config) -> Iterator[LoopVariant]:
    """Yield the config's loop as LoRA and as fine-tune of the denoiser, fused or not, compiled or not."""
    for trains, is_fused, is_compiled in itertools.product(("adapter", "full"), (False, True), (False, True)):
        tree = encode(of_denoiser(config, trains=trains))
        tree["model"] |= {"compile": is_compiled}
        tree["training"]["optimizer"] |= {"fused_back_pass": is_fused}
        name = {"adapter": "LoRA", "full": "fine-tune"}[trains]
        name += (", fused" if is_fused else "") + (", compiled" if is_compiled else "")
        yield LoopVariant(name, decode(tree).config)
