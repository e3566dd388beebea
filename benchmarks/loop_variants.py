"""The variants of the training loop that are compared: single settings, and all the faster ones together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Ratio
from benchmarks.saving_memory import of_denoiser
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.families.attention import ATTENTIONS, usable_attentions
from modules.system.devices import Device
from modules.system.errors import DarkroomError

Changes = Mapping[str, Mapping[str, Any]]  # by section

WORTH_IT = 1.02  # times as fast as without: less is noise
_PLAIN: Changes = {"optimizer": {"fused": False, "foreach": False, "fused_back_pass": False}}
# They change nothing but rounding, most not even that.
SINGLE: Mapping[str, Changes] = {
    "fused optimizer": {"optimizer": {"fused": True}},
    "foreach optimizer": {"optimizer": {"foreach": True}},
    "optimizer in the backward pass": {"optimizer": {"fused_back_pass": True}},
    "channels last": {"model": {"channels_last": "on"}},
    "compiled": {"model": {"compile": "on"}},
}
TF32: Mapping[str, Changes] = {"TF32": {"training": {"precision": "tfloat32"}}}
_IN_16_BITS: Changes = {"training": {"precision": "bfloat16", "autocast_cache": False}}
_WITH_CACHE: Changes = {"training": {"autocast_cache": True}}


@dataclass(frozen=True, slots=True)
class LoopVariant:
    """A config whose loop is measured, its name, and the config of the bare loop: the same without its changes."""

    name: str
    config: Config
    plain: Config


@dataclass(frozen=True, slots=True)
class VariantSpeed:
    """A variant's speed, or why it was not measured, as a sentence."""

    name: str
    speed: Ratio | None
    reason: str = ""


Measure = Callable[[LoopVariant], Ratio]


def measure_variants(config: Config, measure: Measure) -> Iterator[VariantSpeed]:
    """Yield the speed of the config's loop as LoRA and as fine-tune of the denoiser.

    First plain, then with single changes, then with all the faster changes together, and last under autocast, without
    and with its cache. `measure` raises DarkroomError for a variant that this machine cannot run.
    """
    for trains, what in (("adapter", "LoRA"), ("full", "fine-tune")):
        plain = with_changes(of_denoiser(config, trains=trains), _PLAIN)
        without = _measure_variant(LoopVariant(what, plain, plain), measure)
        yield without
        speeds: dict[str, float] = {}
        changes = single_changes(plain)
        for name, change in changes.items():
            single = _measure_variant(LoopVariant(f"{what}, {name}", with_changes(plain, change), plain), measure)
            yield single
            if single.speed is not None and without.speed is not None:
                speeds[name] = single.speed.ratio / without.speed.ratio
        faster = fastest_together(speeds)
        name = f"{what}, all of these: {', '.join(faster) or 'none was faster'}"
        if len(faster) > 1:
            yield _measure_variant(
                LoopVariant(name, with_changes(plain, *(changes[f] for f in faster)), plain), measure
            )
        else:
            yield VariantSpeed(name, None, "It is the row above." if faster else "It is the plain one.")
        in_16_bits = with_changes(plain, _IN_16_BITS)
        yield _measure_variant(LoopVariant(f"{what}, bfloat16 without autocast cache", in_16_bits, in_16_bits), measure)
        with_cache = with_changes(in_16_bits, _WITH_CACHE)
        yield _measure_variant(LoopVariant(f"{what}, bfloat16 with autocast cache", with_cache, in_16_bits), measure)


def single_changes(config: Config) -> dict[str, Changes]:
    """Return the single changes that the training device of a config may run, by name."""
    device = Device(config.general.train_device).type
    attentions = usable_attentions(device, is_16_bit=config.training.precision in ("bfloat16", "float16"))
    return {
        **SINGLE,
        **{_attention(name): {"training": {"attention": name}} for name in attentions if ATTENTIONS[name].kernel},
        **(TF32 if device == "cuda" else {}),
    }


def fastest_together(speeds: Mapping[str, float]) -> list[str]:
    """Return the changes that were clearly faster, by their speeds relative to the plain loop.

    Of those that replace each other, the attentions and the fused and the foreach optimizer, only the fastest.
    """
    faster = [name for name, speed in speeds.items() if speed > WORTH_IT]
    for kind in ([_attention(name) for name in ATTENTIONS], ["fused optimizer", "foreach optimizer"]):
        of_kind = sorted((n for n in faster if n in kind), key=lambda n: -speeds[n])
        faster = [n for n in faster if n not in of_kind[1:]]
    return faster


def with_changes(config: Config, *changes: Changes) -> Config:
    """Return the config with changes of its sections; those of "optimizer" are of the chosen optimizer."""
    tree = encode(config)
    for change in changes:
        tree["training"]["optimizer"] |= change.get("optimizer", {})
        for section in ("model", "training"):
            tree[section] |= change.get(section, {})
    return decode(tree).config


def _attention(name: str) -> str:
    return f"attention {ATTENTIONS[name].label}"


def _measure_variant(variant: LoopVariant, measure: Measure) -> VariantSpeed:
    try:
        return VariantSpeed(variant.name, measure(variant))
    except DarkroomError as error:
        return VariantSpeed(variant.name, None, error.message)
