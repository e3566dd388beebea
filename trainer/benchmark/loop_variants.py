"""The variants of the training loop whose speed is compared: single settings that may make it faster, and all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.system.devices import Device
from trainer.benchmark.saving_memory import of_denoiser

Changes = Mapping[str, Mapping[str, Any]]  # by section

# They change nothing but rounding.
SINGLE: Mapping[str, Changes] = {
    "fused optimizer": {"optimizer": {"fused": True}},
    "optimizer in the backward pass": {"optimizer": {"fused_back_pass": True}},
    "channels last": {"model": {"channels_last": True}},
    "compiled": {"model": {"compile": True}},
}
TF32: Mapping[str, Changes] = {"TF32": {"training": {"precision": "tfloat32"}}}


@dataclass(frozen=True, slots=True)
class LoopVariant:
    """A config whose loop is measured, its name, and the config of the bare loop: the same without its changes."""

    name: str
    config: Config
    plain: Config


def loop_variants(config: Config) -> Iterator[LoopVariant]:
    """Yield the config's loop as LoRA and as fine-tune of the denoiser: plain, with single changes, and with all."""
    changes = {**SINGLE, **(TF32 if Device(config.general.train_device).type == "cuda" else {})}
    everything: dict[str, dict[str, Any]] = {}
    for change in changes.values():
        for section, values in change.items():
            everything.setdefault(section, {}).update(values)
    for trains, what in (("adapter", "LoRA"), ("full", "fine-tune")):
        plain = _changed(of_denoiser(config, trains=trains), {"optimizer": {"fused": False}})
        yield LoopVariant(what, plain, plain)
        for name, change in {**changes, "all of these": everything}.items():
            yield LoopVariant(f"{what}, {name}", _changed(plain, change), plain)


def _changed(config: Config, changes: Changes) -> Config:
    tree = encode(config)
    tree["training"]["optimizer"] |= changes.get("optimizer", {})
    for section in ("model", "training"):
        tree[section] |= changes.get(section, {})
    return decode(tree).config
