"""The requirements of an optimizer: its settings, the usual range of learning rates, the fused backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from modules.config.schema import Config
from modules.config.usage import embedding_rates, method_of, rate_factor_of, trained_parts
from modules.optim.registry import OPTIMIZERS, optimizer_spec
from modules.optim.schedule_registry import SCHEDULES, learning_rate_factor
from modules.optim.spec import is_fused
from modules.system.errors import DarkroomError
from modules.system.problem import Problem


def optimizer_fields(config: Config) -> Iterator[Problem]:
    """Yield the problems that the optimizer's record finds in its settings."""
    settings = config.training.optimizer
    for problem in optimizer_spec(settings).problems(settings):
        yield replace(problem, path=f"training.optimizer.{problem.path}")


def _rates_of_embeddings(config: Config) -> dict[str, float]:
    places = {w.placeholder: f"embeddings.words.{i}.learning_rate" for i, w in enumerate(config.embeddings.words)}
    factor = rate_factor_of(config)
    return {places[placeholder]: rate * factor for placeholder, rate in embedding_rates(config).items()}


def one_learning_rate(config: Config) -> Iterator[Problem]:
    """Yield an error if an optimizer that estimates a single learning rate is given different ones."""
    spec = optimizer_spec(config.training.optimizer)
    rates = rates_in_use(config) | _rates_of_embeddings(config)
    if spec.has_one_rate and len(set(rates.values())) > 1:
        path = next(reversed(rates))
        given = ", ".join(f"{rate:g}" for rate in rates.values())
        yield Problem(
            path,
            f"{spec.label} estimates a single learning rate for everything that is trained, but the parts have "
            f"different ones: {given}.",
            advice="Give all parts the same learning rate, or choose another optimizer.",
        )
    ratio = getattr(config.adapter, "lora_plus_ratio", 1.0)
    if spec.has_one_rate and config.training.trains == "adapter" and ratio != 1.0:
        yield Problem(
            "adapter.lora_plus_ratio",
            f"{spec.label} estimates a single learning rate for everything that is trained; a LoRA+ ratio of {ratio:g} "
            "gives the up matrices another one.",
            advice="Set the ratio to 1, or choose another optimizer.",
        )


def weights_that_stay_zero(config: Config) -> Iterator[Problem]:
    """Yield an error if an optimizer that leaves zeros would train an adapter, half of which is zero at first."""
    settings = config.training.optimizer
    spec = optimizer_spec(settings)
    if config.training.trains == "adapter" and spec.leaves_zeros(settings):
        yield Problem(
            "training.optimizer",
            f"{spec.label} limits each update by the norm of the weights. A new adapter has weights that are all zero: "
            "they would never change.",
            advice="Set Max update to 0 where the optimizer has it, or choose another optimizer.",
        )


def plausible_learning_rate(config: Config) -> Iterator[Problem]:
    """Yield a warning for each rate outside the optimizer's range: the run would diverge, or hardly train."""
    spec = optimizer_spec(config.training.optimizer)
    if spec.chooses_rate is not None and spec.chooses_rate(config.training.optimizer):
        return
    label = spec.label
    is_full = config.training.trains in ("full", "vae")
    rates = spec.rates.full if is_full else spec.rates.adapter
    factor = rate_factor_of(config)
    for path, rate in rates_in_use(config).items():
        if rate > rates.highest:
            verdict = f"is far above what {label} can use"
        elif 0 < rate < rates.lowest:
            verdict = f"is so far below what {label} needs that hardly anything is learned"
        else:
            continue
        scaled = "" if factor == 1 else f", {rate / factor:g} times {factor:g} by the learning rate scaler,"
        yield Problem(
            path,
            f"A learning rate of {rate:g}{scaled} {verdict}: it {spec.rates.why}.",
            "warning",
            f"With {label}, usual values for {'a fine-tune' if is_full else 'a LoRA'} are {rates.usual}.",
        )


def rates_in_use(config: Config) -> dict[str, float]:
    """Return the learning rates of the trained parts, scaled, by the path of the setting they come from."""
    rates: dict[str, float] = {}
    factor = rate_factor_of(config)
    for part in trained_parts(config):
        settings = config.part(part.name)
        if settings.learning_rate is None:
            rates["training.learning_rate"] = config.training.learning_rate * factor
        else:
            rates[f"parts.{part.name}.learning_rate"] = settings.learning_rate * factor
    return rates


# What a fused backward pass cannot do: each weight is updated at once, and its gradient is freed.
_OFF = "So the weights are updated after the backward pass in this run, and all gradients are kept until then."


def fused_backward_pass(config: Config) -> Iterator[Problem]:
    """Yield a warning for accumulation and loss scaling, which need all gradients at once and switch the fused backward
    pass off (`usage.updates_in_backward`); say how clipping works with it.
    """
    training = config.training
    if not is_fused(training.optimizer):
        return
    hindrances = list(_hindrances(config))
    for path, message, advice in hindrances:
        yield Problem(path, f"{message} {_OFF}", "warning", advice)
    if not hindrances and training.clip_grad_norm is not None:
        yield Problem(
            "training.clip_grad_norm",
            "With the fused backward pass, the norm of each weight's gradient is clipped at "
            f"{training.clip_grad_norm:g}, not the norm of all of them together.",
            "info",
        )


def _hindrances(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield the path, the reason and an advice for each setting that needs all gradients at once."""
    training, method = config.training, method_of(config)
    if training.accumulation_steps > 1:
        message = f"A fused backward pass cannot accumulate {training.accumulation_steps} batches."
        yield "training.accumulation_steps", message, "Set the accumulation steps to 1 to save this memory."
    if method.splits_batches:
        message = f"{method.label} accumulates the gradients of many passes, which a fused backward pass cannot do."
        yield "training.optimizer", message, "Switch off the optimizer's fused backward pass."
    if training.precision == "float16":
        message = "float16 scales the loss, which a fused backward pass cannot do."
        yield "training.precision", message, "Choose bfloat16 or float32 to save this memory."


# The learning rate schedule and the average of weights: their settings, and whether they suit the optimizer.

_NUM_TRIED = 100


def schedule_fields(config: Config) -> Iterator[Problem]:
    """Yield the problems that the schedule's record finds in its settings."""
    settings = config.training.schedule
    for problem in SCHEDULES[settings.name].problems(settings):
        yield replace(problem, path=f"training.schedule.{problem.path}")


def schedule_of_optimizer(config: Config) -> Iterator[Problem]:
    """Yield problems where the optimizer should choose its learning rate itself but does not, or the reverse."""
    schedule, optimizer = SCHEDULES[config.training.schedule.name], optimizer_spec(config.training.optimizer)
    chooses = optimizer.chooses_rate is not None and optimizer.chooses_rate(config.training.optimizer)
    if schedule.is_of_optimizer and optimizer.chooses_rate is None:
        able = " or ".join(spec.label for spec in OPTIMIZERS.values() if spec.chooses_rate is not None)
        yield Problem(
            "training.schedule",
            f"With the schedule {schedule.label}, the optimizer chooses the learning rate itself. {optimizer.label} "
            "cannot do this.",
            advice=f"Choose the optimizer {able}, or another schedule.",
        )
    elif schedule.is_of_optimizer and not chooses:
        yield Problem(
            "training.schedule",
            f"With the schedule {schedule.label}, the optimizer chooses the learning rate itself, but its relative "
            f"step is off: the learning rate stays {config.training.learning_rate:g}.",
            "warning",
            "Switch on the optimizer's relative step, or choose a constant schedule.",
        )
    elif chooses and not schedule.is_of_optimizer:
        yield Problem(
            "training.schedule",
            f"{optimizer.label} chooses its learning rate itself: the learning rate and its schedule have no effect.",
            "warning",
            f"Choose the schedule {_optimizer_schedules()}, or switch off the optimizer's relative step.",
        )


def falling_schedule(config: Config) -> Iterator[Problem]:
    """Yield a warning for a schedule that falls with an optimizer that averages its weights instead."""
    optimizer = optimizer_spec(config.training.optimizer)
    if not optimizer.has_evaluation_mode(config.training.optimizer) or not _falls(config):
        return
    yield Problem(
        "training.schedule",
        f"{optimizer.label} averages the weights in place of a falling learning rate. With the schedule "
        f"{SCHEDULES[config.training.schedule.name].label}, the end of the run hardly counts in this average.",
        "warning",
        "Choose a constant schedule.",
    )


def two_averages(config: Config) -> Iterator[Problem]:
    """Yield a warning for EMA with an optimizer that averages the weights itself: EMA takes the place of that average.

    Such an optimizer trains other weights than it is evaluated with, and EMA averages the trained ones.
    """
    optimizer = optimizer_spec(config.training.optimizer)
    if config.training.ema.mode == "off" or not optimizer.has_evaluation_mode(config.training.optimizer):
        return
    yield Problem(
        "training.ema.mode",
        f"{optimizer.label} averages the weights itself. EMA averages the weights it trains on instead, and samples, "
        "validation and saved models use EMA's average in place of the optimizer's.",
        "warning",
        "Switch EMA off.",
    )


def _falls(config: Config) -> bool:
    """Return whether the learning rate is lower at the end of a run than in its middle or after the warm-up."""
    schedule = config.training.schedule.model_copy(update={"warmup_steps": 0, "warmup_share": 0.0})
    try:
        start, middle, end = (
            learning_rate_factor(
                schedule,
                step=step,
                total_steps=_NUM_TRIED,
                epochs=config.training.epochs,
                learning_rate=config.training.learning_rate,
            )
            for step in (0, _NUM_TRIED // 2, _NUM_TRIED - 1)
        )
    except DarkroomError:  # reported for the schedule itself
        return False
    return end < max(start, middle)


def _optimizer_schedules() -> str:
    return " or ".join(spec.label for spec in SCHEDULES.values() if spec.is_of_optimizer)
