"""The choices of "fit to my card": candidate settings that keep what a run learns, the fastest first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from modules.config.schema import Config
from modules.config.usage import method_of
from modules.estimate.passes import count
from modules.estimate.run import RUNTIME_BYTES
from modules.estimate.step_time import StepFacts, step_time
from modules.families.spec import PartSpec
from modules.memory.part_plan import PartPlan
from modules.optim.registry import optimizer_spec
from modules.optim.spec import is_fused
from modules.quantization.registry import FORMATS, INT8, NFLOAT4
from modules.settings.shared_types import CheckpointMode
from trainer.preflight import moves
from trainer.preflight.memory_plan import ITEM_BYTES
from trainer.preflight.moves import Move
from trainer.preflight.run_budget import Budget

Option = tuple[Move, ...]  # what one choice changes; nothing as it is

_VAE_WORK = 36.0  # a VAE encodes and decodes 1024 px with 84 million weights and 7 TFLOP
_TYPICAL = (1024, 1024)  # the shape of a weight
_FRACTIONS = (0.5, 1.0)
_NEAR_BATCHES = 2  # the micro-batches tried above and below; one image in any case


@dataclass(frozen=True, slots=True)
class Candidate:
    """A combination of options, with the resulting config and its relative time."""

    options: tuple[Option, ...]
    config: Config
    time: float

    @property
    def moves(self) -> tuple[Move, ...]:
        """All moves, in order."""
        return tuple(itertools.chain.from_iterable(self.options))

    @property
    def group(self) -> tuple[Option, ...]:
        """The combination without the choice of what is kept of activations and layers, the last one."""
        return self.options[:-1]


def on_a_gpu(budget: Budget) -> Budget:
    """Return the budget with the memory of a GPU's runtime, unless the config trains on the CPU by name."""
    if budget.config.general.train_device.strip().lower() == "cpu":
        return budget
    return replace(budget, run=replace(budget.run, runtime_bytes=RUNTIME_BYTES), runtime_bytes=RUNTIME_BYTES)


def kept_rank(budget: Budget, config: Config) -> tuple[float, bool, bool]:
    """Return how little a config keeps of activations and layers; the greatest keeps least."""
    part = config.part(_slowest_part(budget).name)
    return part.offload_fraction, part.offload_activations, part.checkpointing == "block"


def candidates(budget: Budget) -> list[Candidate]:
    """Return all combinations of the options, the fastest first; of equally fast ones that with fewer changes."""
    choices = []
    for options in itertools.product(*_choices(budget)):
        config = budget.config
        for move in itertools.chain.from_iterable(options):
            config = move.apply_to(config)
        if is_fused(config.training.optimizer) and config.training.accumulation_steps > 1:
            continue  # a fused backward pass cannot accumulate
        choices.append(Candidate(options, config, relative_time(budget, config)))
    choices.sort(key=lambda c: (round(c.time, 9), len(c.moves)))
    return choices


def relative_time(budget: Budget, config: Config | None = None) -> float:
    """Return the time of an optimizer step in the units of `step_time`, of the budget's config or a changed one."""
    config = config or budget.config
    part, run = _slowest_part(budget), budget.run
    plan, settings, training = run.plans[part.name], config.part(part.name), config.training
    dtype = settings.dtype
    size = max(run.sizes, key=lambda s: s[0] * s[1], default=(0, 0))
    return step_time(
        StepFacts(
            num_weights=_num_weights(budget, part),
            weight_bytes=_stored_bytes(dtype),
            pixels=size[0] * size[1],
            batch_size=training.batch_size * run.images_per_pass,
            accumulation_steps=training.accumulation_steps,
            num_trained=_num_trained(budget),
            num_beside=sum(_num_weights(budget, p) for p in _encoders(budget)),
            trains_weights=plan.trains == "full",
            checkpointing=settings.checkpointing,
            offloads_activations=settings.offload_activations and settings.checkpointing not in ("off", "selective"),
            offload_fraction=settings.offload_fraction,
            is_unpacked=dtype in FORMATS,
            is_cast=dtype == "float32" and training.precision in ("bfloat16", "float16"),
            is_fused=is_fused(training.optimizer),
            moves_average=training.ema.mode == "temp_device",
            on_gpu=_on_gpu(budget),
            work=_VAE_WORK if part.role == "vae" else 1.0,
        )
    ) * (1.001 if _narrow_vae(budget, config) else 1.0)  # rounds latents: only where it is needed


def _stored_bytes(dtype: str) -> float:
    """Return the bytes of a weight as it is stored; those packed in a file of the model have about a byte."""
    if dtype not in FORMATS:
        return ITEM_BYTES[dtype]
    chosen = FORMATS[dtype]
    return 1.0 if chosen.is_stored else chosen.stored_bytes(_TYPICAL) / math.prod(_TYPICAL)


def _narrow_vae(budget: Budget, config: Config) -> bool:
    names = config.family.names_of("vae")
    return any(config.part(n).dtype != budget.config.part(n).dtype for n in names)


def _num_weights(budget: Budget, part: PartSpec) -> int:
    return count(budget.passes.weights(part.name, PartPlan()).own.values())


def _num_trained(budget: Budget) -> int:
    run = budget.run
    trained = ((n, p) for n, p in run.plans.items() if p.trains != "nothing")
    return sum(count(budget.passes.weights(n, p).trained(p)) for n, p in trained)


def _choices(budget: Budget) -> Iterator[tuple[Option, ...]]:
    """Yield the options of each choice, the present one first; the last choice is what is kept of activations."""
    yield tuple(_weight_options(budget))
    yield tuple(_vae_options(budget))
    yield tuple(_batch_options(budget))
    yield tuple(_fused_options(budget))
    yield ((), (moves.ema_offloaded(),)) if budget.run.average == "here" and _can_offload(budget) else ((),)
    yield tuple(_kept_options(budget))


def _weight_options(budget: Budget) -> Iterator[Option]:
    config, run = budget.config, budget.run
    yield ()
    if run.reconstructs:
        return
    spec = config.family
    wide = [
        p
        for p in spec.parts
        if p.role != "vae" and config.part(p.name).dtype == "float32" and run.plans[p.name].trains != "full"
    ]
    narrow: Option = ()
    if wide and config.training.precision == "bfloat16":
        narrow = (moves.sixteen_bits(wide, changes_result=False),)
        yield narrow
    denoiser = next(p for p in spec.parts if p.role == "denoiser")
    if config.training.trains == "full" or config.part(denoiser.name).dtype in FORMATS:
        return
    encoders = [p for p in wide if p is not denoiser]
    smaller: Option = (moves.sixteen_bits(encoders, changes_result=False),) if narrow and encoders else ()
    for name in (INT8.name, NFLOAT4.name):
        yield (*smaller, moves.quantized_base(denoiser, name))


def _vae_options(budget: Budget) -> Iterator[Option]:
    config = budget.config
    yield ()
    wide = [p for p in config.family_parts if p.role == "vae" and config.part(p.name).dtype == "float32"]
    if wide and not budget.run.reconstructs and config.training.precision == "bfloat16":
        yield (moves.sixteen_bits(wide, changes_result=False),)


def _batch_options(budget: Budget) -> Iterator[Option]:
    """Yield the micro-batches that divide the effective batch; larger ones where every size has enough images."""
    training = budget.config.training
    yield ()
    if training.learning_rate_scaler not in ("none", "both", "global_both") or method_of(budget.config).splits_batches:
        return  # the learning rate, or what a rollout has, depends on the batch itself
    whole = training.batch_size * training.accumulation_steps
    largest = min(budget.sizes.values(), default=0)
    sizes = [n for n in range(1, whole + 1) if whole % n == 0]
    smaller = [n for n in sizes if n < training.batch_size]
    larger = [n for n in sizes if training.batch_size < n <= largest]
    for size in sorted({*smaller[:1], *smaller[-_NEAR_BATCHES:], *larger[-_NEAR_BATCHES:]}):
        yield (moves.micro_batch(budget.config, size),)


def _fused_options(budget: Budget) -> Iterator[Option]:
    run, settings = budget.run, budget.config.training.optimizer
    yield ()
    is_tuned = any(p.trains == "full" for p in run.plans.values())
    if is_tuned and not run.scales_loss and optimizer_spec(settings).can_fuse and not is_fused(settings):
        yield (moves.fused_backward(),)


def _kept_options(budget: Budget) -> Iterator[Option]:
    """Yield what is kept of activations and layers, from most to least."""
    config, part = budget.config, _slowest_part(budget)
    yield ()
    can_offload = _can_offload(budget)
    plain: tuple[CheckpointMode, ...] = (
        ("off", "selective", "transformer") if _on_gpu(budget) else ("off", "transformer")
    )
    levels: list[tuple[CheckpointMode, bool, float]] = [(mode, False, 0.0) for mode in plain]
    fractions = (0.0, *_FRACTIONS) if can_offload and part.role == "denoiser" else (0.0,)
    levels += [("block", offloads, f) for f in fractions for offloads in ((False, True) if can_offload else (False,))]
    for mode, offloads, fraction in levels:
        option = [moves.checkpointing(part, mode), moves.activation_offloading(part, is_on=offloads)]
        option.append(moves.layer_offloading(part, fraction))
        for encoder in _encoders(budget):
            option += [moves.checkpointing(encoder, mode), moves.layer_offloading(encoder, fraction)]
        if changed := tuple(m for m in option if not m.is_in(config)):
            yield changed


def _slowest_part(budget: Budget) -> PartSpec:
    """Return the part whose forward and backward pass takes the time."""
    role = "vae" if budget.run.reconstructs else "denoiser"
    return next(p for p in budget.config.family.parts if p.role == role)


def _encoders(budget: Budget) -> list[PartSpec]:
    """Return the text encoders that gradients pass through."""
    plans = budget.run.plans
    return [p for p in budget.config.family_parts if p.role == "text_encoder" and plans[p.name].has_gradient]


def _on_gpu(budget: Budget) -> bool:
    return budget.run.runtime_bytes > 0


def _can_offload(budget: Budget) -> bool:
    general = budget.config.general
    return _on_gpu(budget) and general.temp_device.strip().lower() != general.train_device.strip().lower()
