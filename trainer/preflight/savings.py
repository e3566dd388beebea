"""Settings that would save memory, each with the estimated saving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modules.families.spec import PartSpec
from modules.memory.part_plan import PartPlan
from modules.optim.registry import memory_saver, optimizer_spec
from modules.optim.spec import is_fused
from modules.quantization.registry import INT8, NFLOAT4
from trainer.preflight import moves
from trainer.preflight.moves import Move
from trainer.preflight.run_budget import Budget

_WORTH_IT = 0.03  # of the peak; less is not worth mentioning
_MAX_REPORTED = 4


@dataclass(frozen=True, slots=True)
class Worth:
    """A change of settings with the bytes by which it lowers the peak."""

    move: Move
    saved_bytes: int


def worthwhile_savings(budget: Budget, *, limit_bytes: int) -> list[Worth]:
    """Return the changes that lower the peak, the largest first. Raises the errors of `estimate`.

    A frozen base is quantized to int8, or to the smaller nfloat4 where that does not bring the peak to `limit_bytes`.
    """
    savings = _worthwhile(budget, INT8.name)
    if any(w.move.quantizes for w in savings) and peak_with_all(budget, savings) > limit_bytes:
        savings = _worthwhile(budget, NFLOAT4.name)
    return savings


def peak_with_all(budget: Budget, savings: Sequence[Worth]) -> int:
    """Return the peak with all of the changes."""
    config = budget.config
    for worth in savings:
        config = worth.move.apply_to(config)
    changed = budget.with_config(config)
    assert changed is not None, "each change has an estimate"
    return changed.peak_bytes


def _worthwhile(budget: Budget, base_format: str) -> list[Worth]:
    peak = budget.peak_bytes
    savings = []
    for move in (*_savings(budget), *_of_base(budget, base_format)):
        changed = budget.with_config(move.apply_to(budget.config))
        if changed is not None:
            savings.append(Worth(move, peak - changed.peak_bytes))
    worthwhile = (w for w in savings if w.saved_bytes > _WORTH_IT * peak)
    return sorted(worthwhile, key=lambda w: -w.saved_bytes)[:_MAX_REPORTED]


def _savings(budget: Budget) -> Iterator[Move]:
    config, run = budget.config, budget.run
    spec = config.family
    for part in (p for p in config.family_parts if p.trainable):
        yield from _of_passes(part, run.plans[part.name])
    encoders = spec.names_of("text_encoder")
    trained = [n for n in encoders if run.plans[n].trains != "nothing"]
    if trained and any(p.trains != "nothing" for n, p in run.plans.items() if n not in encoders):
        yield moves.frozen_encoders(config, trained)
    wide = [p for p in spec.parts if run.plans[p.name].weight_bytes > 2]
    if wide:
        yield moves.sixteen_bits(wide)
    if run.batch_size > 1:
        half = next(n for n in range(run.batch_size // 2, 0, -1) if run.batch_size % n == 0)
        yield moves.micro_batch(config, half)
    if config.training.precision in ("float32", "tfloat32"):
        yield moves.sixteen_bit_precision()
    if run.optimizer.name != memory_saver().name:
        yield moves.lean_optimizer()
    yield from _of_steps(budget)
    if run.average == "here":
        yield moves.ema_offloaded()
    if run.encodes_in_training:
        yield moves.latent_cache()
    if run.samples:
        yield moves.half_samples(config)


def _of_base(budget: Budget, base_format: str) -> Iterator[Move]:
    """Yield the quantization of a denoiser whose own weights are not trained."""
    for part in budget.config.family.parts:
        plan = budget.run.plans[part.name]
        if part.role == "denoiser" and plan.trains != "full" and not plan.quantized and not budget.run.reconstructs:
            yield moves.quantized_base(part, base_format)


def _of_passes(part: PartSpec, plan: PartPlan) -> Iterator[Move]:
    if plan.trains != "nothing" and plan.checkpointing in ("off", "selective", "transformer"):
        yield moves.checkpointing(part, "block")
    elif plan.trains != "nothing" and not plan.offloads:
        yield moves.activation_offloading(part)
    if plan.checkpointing == "block" and plan.offload_fraction == 0:
        yield moves.layer_offloading(part, 0.5)


def _of_steps(budget: Budget) -> Iterator[Move]:
    config, run = budget.config, budget.run
    is_tuned = any(p.trains == "full" for p in run.plans.values())
    can_fuse = run.batch_size == 1 and not run.accumulates and not run.scales_loss  # a smaller batch would accumulate
    settings = config.training.optimizer
    if is_tuned and can_fuse and optimizer_spec(settings).can_fuse and not is_fused(settings):
        yield moves.fused_backward()
    if run.has_master_weights and any(
        config.part(n).dtype == "bfloat16" for n, p in run.plans.items() if p.trains == "full"
    ):
        yield moves.stochastic_rounding()
