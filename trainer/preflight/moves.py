"""The settings that a run can change to need less memory, or less time: the only list of them.

A `Choice` is a setting with its options, from the one that needs most memory to the one that needs least. With every
option the run trains the same weights on the same images; `sacrifices` are the changes without that guarantee.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modules.config.schema import Config
from modules.config.usage import method_of
from modules.families.spec import PartSpec
from modules.optim.registry import memory_saver, optimizer_spec
from modules.optim.spec import is_fused
from modules.quantization.registry import FORMATS, INT8, NFLOAT4
from modules.settings.edit import get_path, replace_value
from modules.settings.shared_types import CheckpointMode
from modules.system.problem import count
from trainer.preflight.run_budget import Budget

_MODES: Mapping[CheckpointMode, str] = {
    "whole": "gradient checkpointing of the whole part",
    "off": "no gradient checkpointing",
    "selective": "gradient checkpointing of cheap operations",
    "transformer": "gradient checkpointing per transformer block",
    "auto": "automatic gradient checkpointing",
    "block": "gradient checkpointing per block",
}
"""The choices of gradient checkpointing, from the one that keeps most activations to the one that keeps least."""
_KEPT = tuple(_MODES)
_FRACTIONS = {0.5: "half of the layers offloaded", 1.0: "all layers offloaded"}
_NEAR_BATCHES = 2  # the micro-batches tried above and below; one image in any case


@dataclass(frozen=True, slots=True)
class Move:
    """A change of settings: the field it is named by, the change in words, and the new values by path.

    `changes_result`: the run learns something else, or from other images.
    """

    path: str
    words: str
    values: tuple[tuple[str, Any], ...]
    changes_result: bool = False

    def apply_to(self, config: Config) -> Config:
        """Return the config with the new values."""
        for path, value in self.values:
            config = replace_value(config, path, value)
        return config


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of a setting besides the present one: those that need more memory, and those that need less.

    Both are in the order of memory, from the most to the least.
    """

    wider: tuple[Move, ...] = ()
    leaner: tuple[Move, ...] = field(default=())

    @property
    def options(self) -> tuple[Move | None, ...]:
        """All options, the one that needs least memory last; None is the present one."""
        return (*self.wider, None, *self.leaner)


def choices(budget: Budget) -> tuple[Choice, ...]:
    """Return the choices that do not change what a run learns; the last one is about kept activations and layers."""
    return (
        Choice(leaner=tuple(_narrower_weights(budget))),
        Choice(leaner=tuple(_narrower_vae(budget))),
        _micro_batches(budget),
        Choice(leaner=tuple(_fused_backward(budget))),
        Choice(leaner=tuple(_offloaded_average(budget))),
        _kept_activations(budget),
    )


def is_possible(config: Config) -> bool:
    """Return whether the values of several moves go together: a fused backward pass cannot accumulate."""
    return not is_fused(config.training.optimizer) or config.training.accumulation_steps == 1


def sacrifices(budget: Budget) -> Iterator[Move]:
    """Yield the changes that save memory, but change what the run learns or shows."""
    config, run = budget.config, budget.run
    training, spec = config.training, config.family
    encoders = spec.names_of("text_encoder")
    trained = [n for n in encoders if run.plans[n].trains != "nothing"]
    if trained and any(p.trains != "nothing" for n, p in run.plans.items() if n not in encoders):
        words = "not training the text encoders" if len(trained) > 1 else "not training the text encoder"
        yield _sacrifice(f"parts.{trained[0]}.train", words, *((f"parts.{n}.train", False) for n in encoders))
    # In bfloat16 other weights than these may be narrower without another result: see `choices`.
    is_wide = training.precision != "bfloat16"
    wide = [p for p in spec.parts if run.plans[p.name].weight_bytes > 2]
    if wide := [p for p in wide if is_wide or run.reconstructs or run.plans[p.name].trains == "full"]:
        yield _sixteen_bits(wide, changes_result=True)
    if training.precision in ("float32", "tfloat32"):
        yield _sacrifice("training.precision", "bfloat16 as the precision", ("training.precision", "bfloat16"))
    saver = memory_saver()
    if run.optimizer.name != saver.name:
        yield _sacrifice("training.optimizer.name", saver.label, ("training.optimizer", saver.settings()))
    tuned = [n for n, p in run.plans.items() if p.trains == "full"]
    if run.has_master_weights and any(config.part(n).dtype == "bfloat16" for n in tuned):
        path, words = "training.low_precision_updates", "stochastic rounding instead of float32 master weights"
        yield _sacrifice(path, words, (path, "stochastic"))
    if run.encodes_in_training:
        yield _sacrifice("data.latent_cache", "the latent cache", ("data.latent_cache", True))
    if run.samples:
        halves = tuple(
            p.model_copy(update={"width_px": p.width_px // 2, "height_px": p.height_px // 2})
            for p in config.sampling.prompts
        )
        path = "sampling.prompts"
        yield _sacrifice(path, "samples of half the width and height", (path, halves))


def slowest_part(budget: Budget) -> PartSpec:
    """Return the part whose forward and backward pass takes the time."""
    role = "vae" if budget.run.reconstructs else "denoiser"
    return next(p for p in budget.config.family.parts if p.role == role)


def reached_encoders(budget: Budget) -> list[PartSpec]:
    """Return the text encoders that gradients pass through."""
    plans = budget.run.plans
    return [p for p in budget.config.family.parts if p.role == "text_encoder" and plans[p.name].has_gradient]


def _sacrifice(path: str, words: str, *values: tuple[str, Any]) -> Move:
    return Move(path, words, values, changes_result=True)


def _sixteen_bits(parts: Sequence[PartSpec], *, changes_result: bool = False) -> Move:
    """Return bfloat16 as the weight dtype of parts, named by the denoiser if it is one of them."""
    first = next((p for p in parts if p.role == "denoiser"), parts[0])
    words = f"bfloat16 as the weight dtype of {', '.join(p.label for p in parts)}"
    values = tuple((f"parts.{p.name}.dtype", "bfloat16") for p in parts)
    return Move(f"parts.{first.name}.dtype", words, values, changes_result)


def _narrower_weights(budget: Budget) -> Iterator[Move]:
    """Yield smaller dtypes of weights that are not trained: bfloat16, then quantized formats of the denoiser."""
    config, plans = budget.config, budget.run.plans
    if budget.run.reconstructs:
        return
    denoiser = slowest_part(budget)
    frozen = [p for p in config.family.parts if p.role != "vae" and plans[p.name].trains != "full"]
    wide = [p for p in frozen if config.part(p.name).dtype == "float32" and config.training.precision == "bfloat16"]
    if wide:
        yield _sixteen_bits(wide)
    if config.training.trains == "full" or config.part(denoiser.name).dtype in FORMATS:
        return
    path = f"parts.{denoiser.name}.dtype"
    guides = [p for p in config.family.parts if p.role == "guidance" and config.part(p.name).dtype not in FORMATS]
    encoders = [p for p in wide if p is not denoiser and p not in guides]
    narrow = _sixteen_bits(encoders) if encoders else Move("", "", ())
    for name in (INT8.name, NFLOAT4.name):
        labels = " and the ".join(p.label for p in (denoiser, *guides))
        words = f"{FORMATS[name].label} as the weight dtype of the {labels}"
        words = f"{words}, {narrow.words}" if encoders else words
        of_guides = ((f"parts.{p.name}.dtype", name) for p in guides)
        yield Move(path, words, ((path, name), *of_guides, *narrow.values))


def _narrower_vae(budget: Budget) -> Iterator[Move]:
    config = budget.config
    wide = [p for p in config.family_parts if p.role == "vae" and config.part(p.name).dtype == "float32"]
    if wide and not budget.run.reconstructs and config.training.precision == "bfloat16":
        yield _sixteen_bits(wide)


def _micro_batches(budget: Budget) -> Choice:
    """Return the micro-batches that divide the effective batch; larger ones where every size has enough images."""
    training = budget.config.training
    if training.learning_rate_scaler not in ("none", "both", "global_both") or method_of(budget.config).splits_batches:
        return Choice()  # the learning rate, or the size of a rollout, depends on the batch itself
    whole, largest = training.batch_size * training.accumulation_steps, min(budget.sizes.values(), default=0)
    sizes = [n for n in range(whole, 0, -1) if whole % n == 0]
    larger = [n for n in sizes if training.batch_size < n <= largest][:_NEAR_BATCHES]
    smaller = [n for n in sizes if n < training.batch_size]
    near = [*smaller[:_NEAR_BATCHES], *smaller[_NEAR_BATCHES:][-1:]]
    return Choice(
        tuple(_micro_batch(budget.config, n) for n in larger), tuple(_micro_batch(budget.config, n) for n in near)
    )


def _micro_batch(config: Config, batch_size: int) -> Move:
    """Return another batch size with the accumulation steps that keep the effective batch."""
    training = config.training
    steps = training.batch_size * training.accumulation_steps // batch_size
    is_twice = steps == 2 * training.accumulation_steps
    times = "twice the accumulation steps" if is_twice else count(steps, "accumulation step")
    values = (("training.batch_size", batch_size), ("training.accumulation_steps", steps))
    return Move("training.batch_size", f"a batch size of {batch_size} with {times}", values)


def _fused_backward(budget: Budget) -> Iterator[Move]:
    run, settings = budget.run, budget.config.training.optimizer
    is_tuned = any(p.trains == "full" for p in run.plans.values())
    if is_tuned and not run.scales_loss and optimizer_spec(settings).can_fuse and not is_fused(settings):
        path = "training.optimizer.fused_back_pass"
        yield Move(path, "the optimizer's fused backward pass", ((path, True),))


def _offloaded_average(budget: Budget) -> Iterator[Move]:
    if budget.run.average == "here" and _can_offload(budget):
        path = "training.ema.mode"
        yield Move(path, "EMA on the offload device", ((path, "temp_device"),))


def _kept_activations(budget: Budget) -> Choice:
    """Return the gradient checkpointing and the offloading of the slowest part, and of the encoders with it."""
    part, can_offload = slowest_part(budget), _can_offload(budget)
    plain: tuple[CheckpointMode, ...] = ("off", "selective", "transformer") if budget.on_gpu else ("off", "transformer")
    levels: list[tuple[float, bool, CheckpointMode]] = [(0.0, False, mode) for mode in plain]
    fractions = (0.0, *_FRACTIONS) if can_offload and part.role == "denoiser" else (0.0,)
    levels += [(f, offloads, "block") for f in fractions for offloads in ((False, True) if can_offload else (False,))]
    settings = budget.config.part(part.name)
    present = (settings.offload_fraction, settings.offload_activations, _KEPT.index(settings.checkpointing))
    wider, leaner = list[Move](), list[Move]()
    for fraction, offloads, mode in levels:
        if move := _move_to(budget, mode, offloads=offloads, fraction=fraction):
            (wider if (fraction, offloads, _KEPT.index(mode)) < present else leaner).append(move)
    return Choice(tuple(wider), tuple(leaner))


def _move_to(budget: Budget, mode: CheckpointMode, *, offloads: bool, fraction: float) -> Move | None:
    """Return a move to these values; None if the config has them already."""
    config, part, encoders = budget.config, slowest_part(budget), reached_encoders(budget)
    values: list[tuple[str, Any]] = [(f"parts.{part.name}.offload_activations", offloads)]
    for one in (part, *encoders):
        values += [(f"parts.{one.name}.checkpointing", mode), (f"parts.{one.name}.offload_fraction", fraction)]
    if fraction:  # one that guides samples is on the device together with the denoiser
        guides = (f"parts.{name}.offload_fraction" for name in config.family.names_of("guidance"))
        values += [(path, fraction) for path in guides if get_path(config, path) < fraction]
    changed = tuple((path, value) for path, value in sorted(values) if get_path(config, path) != value)
    if not changed:
        return None
    words = [f"{_MODES[mode]} for the {part.label}{' and the text encoders' if encoders else ''}"]
    words += ["activation offloading"] * offloads
    words += [_FRACTIONS[fraction]] if fraction else []
    path = next((path for path, _ in changed if path.startswith(f"parts.{part.name}.")), changed[0][0])
    return Move(path, ", ".join(words), changed)


def _can_offload(budget: Budget) -> bool:
    general = budget.config.general
    return budget.on_gpu and general.temp_device.strip().lower() != general.train_device.strip().lower()
