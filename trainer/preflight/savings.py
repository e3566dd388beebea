"""Settings that would save memory, each with the estimated saving. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.estimate.passes import Passes
from modules.estimate.run import RunPlan, estimate
from modules.families.registry import FAMILIES
from modules.families.spec import PartSpec
from modules.memory.tape import PartPlan
from modules.optim.registry import MEMORY_SAVER, optimizer_spec
from modules.optim.spec import is_fused
from modules.quantization.formats.int8 import INT8
from modules.quantization.formats.nfloat4 import NFLOAT4
from trainer.preflight.memory_plan import ITEM_BYTES

_WORTH_IT = 0.03  # of the peak; less is not worth mentioning
_MAX_REPORTED = 4


@dataclass(frozen=True, slots=True)
class Saving:
    """A change of settings: the field, the change in words, and a function that returns the changed plan.

    `quantizes`: it is the format of a frozen base.
    """

    path: str
    words: str
    apply: Callable[[RunPlan], RunPlan]
    quantizes: bool = False


@dataclass(frozen=True, slots=True)
class Worth:
    """A saving with the bytes by which it lowers the peak."""

    saving: Saving
    saved_bytes: int


def worthwhile_savings(config: Config, passes: Passes, run: RunPlan, *, limit_bytes: int) -> list[Worth]:
    """Return the savings that lower the peak, the largest first. Raises the errors of `estimate`.

    A frozen base is quantized to int8, or to the smaller nfloat4 where that does not bring the peak to `limit_bytes`.
    """
    found = _worthwhile(config, passes, run, INT8.name)
    is_quantized = any(w.saving.quantizes for w in found)
    if is_quantized and peak_with_all(passes, run, found) > limit_bytes:
        found = _worthwhile(config, passes, run, NFLOAT4.name)
    return found


def _worthwhile(config: Config, passes: Passes, run: RunPlan, base_format: str) -> list[Worth]:
    peak = estimate(passes, run).peak.total_bytes
    savings = (*_savings(config, run), *_of_base(config, run, base_format))
    found = [Worth(s, peak - _peak(passes, s.apply(run))) for s in savings]
    return sorted((w for w in found if w.saved_bytes > _WORTH_IT * peak), key=lambda w: -w.saved_bytes)[:_MAX_REPORTED]


def peak_with_all(passes: Passes, run: RunPlan, savings: list[Worth]) -> int:
    """Return the peak with all of the savings."""
    for worth in savings:
        run = worth.saving.apply(run)
    return _peak(passes, run)


def _peak(passes: Passes, run: RunPlan) -> int:
    return estimate(passes, run).peak.total_bytes


def _savings(config: Config, run: RunPlan) -> Iterator[Saving]:
    spec = FAMILIES[config.model.family]
    for part in (p for p in config.family_parts if p.trainable):
        yield from _of_passes(part, run.plans[part.name])
    encoders = spec.names_of("text_encoder")
    trained = [n for n in encoders if run.plans[n].trains != "nothing"]
    if trained and any(p.trains != "nothing" for n, p in run.plans.items() if n not in encoders):
        words = "not training the text encoders" if len(trained) > 1 else "not training the text encoder"
        cached = encoders if config.data.text_cache else ()
        yield Saving(f"parts.{trained[0]}.train", words, lambda r: _offloaded(_frozen(r, encoders), cached))
    wide = [n for n, p in run.plans.items() if p.weight_bytes > 2]
    if wide:
        first = next((n for n in spec.names_of("denoiser") if n in wide), wide[0])
        words = f"bfloat16 as the weight dtype of {', '.join(wide)}"
        yield Saving(f"parts.{first}.dtype", words, _of_parts(tuple(wide), weight_bytes=2))
    if run.batch_size > 1:
        smaller = run.batch_size // 2
        words = f"a batch size of {smaller} with twice the accumulation steps"
        yield Saving("training.batch_size", words, lambda r: replace(r, batch_size=smaller, accumulates=True))
    if config.training.precision in ("float32", "tfloat32"):
        names = tuple(p.name for p in spec.parts if p.role != "vae")
        yield Saving("training.precision", "bfloat16 as the precision", _of_parts(names, compute_bytes=2))
    if run.optimizer.name != MEMORY_SAVER.name:
        leaner = MEMORY_SAVER.settings()
        yield Saving("training.optimizer.name", MEMORY_SAVER.label, lambda r: replace(r, optimizer=leaner))
    yield from _of_steps(config, run)
    if run.average == "here":
        words = "EMA on the offload device"
        yield Saving("training.ema.mode", words, lambda r: replace(r, average="elsewhere"))
    yield from _of_caches(config, run)


def _of_base(config: Config, run: RunPlan, base_format: str) -> Iterator[Saving]:
    """Yield the quantization of a denoiser whose own weights are not trained."""
    for part in FAMILIES[config.model.family].parts:
        plan = run.plans[part.name]
        if part.role != "denoiser" or plan.trains == "full" or plan.quantized or run.reconstructs:
            continue
        parts = {**config.parts, part.name: config.part(part.name).model_copy(update={"dtype": base_format})}
        quantized = quantized_parts(config.model_copy(update={"parts": parts}))
        chosen, own = quantized.formats[part.name], ITEM_BYTES[quantized.other_dtype]
        words = f"{chosen.format.label} as the weight dtype of the {part.label}"
        change = _of_part(part.name, quantized=chosen, weight_bytes=own)
        yield Saving(f"parts.{part.name}.dtype", words, change, quantizes=True)


def _of_passes(part: PartSpec, plan: PartPlan) -> Iterator[Saving]:
    name = part.name
    if plan.trains != "nothing" and plan.checkpointing in ("off", "selective", "transformer"):
        words = f"gradient checkpointing per block for the {part.label}"
        yield Saving(f"parts.{name}.checkpointing", words, _of_part(name, checkpointing="block"))
    elif plan.trains != "nothing" and not plan.offloads:
        words = f"activation offloading for the {part.label}"
        yield Saving(f"parts.{name}.offload_activations", words, _of_part(name, offloads=True))
    if plan.checkpointing == "block" and plan.offload_fraction == 0:
        words = f"offloading half of the layers of the {part.label}"
        yield Saving(f"parts.{name}.offload_fraction", words, _of_part(name, offload_fraction=0.5))


def _of_steps(config: Config, run: RunPlan) -> Iterator[Saving]:
    is_tuned = any(p.trains == "full" for p in run.plans.values())
    can_fuse = run.batch_size == 1 and not run.accumulates and not run.scales_loss  # a smaller batch would accumulate
    settings = config.training.optimizer
    if is_tuned and can_fuse and optimizer_spec(settings).can_fuse and not is_fused(settings):
        words = "the optimizer's fused backward pass"
        yield Saving("training.optimizer.fused_back_pass", words, lambda r: replace(r, is_fused=True))
    if run.has_master_weights and any(
        config.part(n).dtype == "bfloat16" for n, p in run.plans.items() if p.trains == "full"
    ):
        words = "stochastic rounding instead of float32 master weights"
        yield Saving("training.low_precision_updates", words, lambda r: replace(r, has_master_weights=False))


def _of_caches(config: Config, run: RunPlan) -> Iterator[Saving]:
    if run.encodes_in_training:
        vae = FAMILIES[config.model.family].names_of("vae")
        words = "the latent cache"
        yield Saving("data.latent_cache", words, lambda r: replace(_offloaded(r, vae), encodes_in_training=False))
    if run.samples:
        halves = tuple(replace(s, width_px=s.width_px // 2, height_px=s.height_px // 2) for s in run.samples)
        yield Saving("sampling.prompts", "samples of half the width and height", lambda r: replace(r, samples=halves))


def _offloaded(run: RunPlan, parts: tuple[str, ...]) -> RunPlan:
    """Return the plan with parts offloaded during training and validation, because their outputs are cached."""
    offloaded = frozenset(parts)
    on_device = {p: n - offloaded if p in ("training", "validating") else n for p, n in run.on_device.items()}
    return replace(run, on_device=on_device)


def _frozen(run: RunPlan, parts: tuple[str, ...]) -> RunPlan:
    return _of_parts(parts, trains="nothing", adapter=None)(run)


def _of_part(name: str, **changes: Any) -> Callable[[RunPlan], RunPlan]:
    return _of_parts((name,), **changes)


def _of_parts(names: tuple[str, ...], **changes: Any) -> Callable[[RunPlan], RunPlan]:
    def change(plan: PartPlan) -> PartPlan:
        return replace(plan, **changes)

    return lambda run: replace(run, plans={n: change(p) if n in names else p for n, p in run.plans.items()})
