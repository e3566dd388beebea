"""The outcome of a step, which is read from the device after the next step has been enqueued there.

While the host waits for a number it enqueues nothing, so the device would run dry after each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from modules.system.devices import LateRead

Metric = tuple[str, float | torch.Tensor, int]
"""A metric of a micro-batch: its name, its value, and the number of images it covers."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of a step. A step whose loss or gradient is not finite is skipped: the weights do not change.

    `metrics` are the values the method reported for its micro-batches, each the mean over the images it covers.
    `gradient_norms` are the finite norms of the gradients by unit, before clipping; `gradient_norm` is their total.
    `effective_rates` are, by unit, the rates that an adaptive optimizer chose; `learning_rates` were set.
    """

    loss: float | None
    gradient_norm: float | None
    num_images: int
    was_skipped: bool
    learning_rates: dict[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)
    gradient_norms: Mapping[str, float] = field(default_factory=dict)
    effective_rates: Mapping[str, float] = field(default_factory=dict)


class StepNumbers:
    """The numbers of a step, copied from the device together: loss, gradient norms, effective rates, metrics."""

    def __init__(
        self,
        loss: torch.Tensor,
        norm: torch.Tensor,
        norms: Mapping[str, torch.Tensor],
        rates: Mapping[str, torch.Tensor],
        metrics: Sequence[Metric],
    ) -> None:
        """Start the copy. The tensors are of shape (); `loss` is on the training device."""
        self._units, self._rates, self._metrics = tuple(norms), tuple(rates), metrics
        others = [*rates.values(), *tensors_in(metrics)]
        self._read = LateRead(torch.stack([loss, norm, *norms.values(), *(t.to(loss.device) for t in others)]))

    @property
    def is_ready(self) -> bool:
        """Whether nothing is gained by reading them later: they are not on their way from a GPU."""
        return self._read.is_ready

    @property
    def loss(self) -> float:
        """The loss of the step. Waits for the copy, as everything below."""
        return self._read.wait()[0]

    @property
    def gradient_norm(self) -> float:
        """The norm of all gradients."""
        return self._read.wait()[1]

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are finite: otherwise the step is skipped."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    @property
    def gradient_norms(self) -> dict[str, float]:
        """The norms of the gradients by unit, as far as they are finite."""
        norms = zip(self._units, self._read.wait()[2:], strict=False)
        return {unit: norm for unit, norm in norms if math.isfinite(norm)}

    @property
    def effective_rates(self) -> dict[str, float]:
        """The effective learning rates before the update that were on the device, by unit."""
        return dict(zip(self._rates, self._read.wait()[2 + len(self._units) :], strict=False))

    @property
    def metrics(self) -> list[Metric]:
        """The metrics, without tensors."""
        values = iter(self._read.wait()[2 + len(self._units) + len(self._rates) :])
        return [(n, next(values) if isinstance(v, torch.Tensor) else v, k) for n, v, k in self._metrics]


class PendingOutcome:
    """A step whose update is enqueued on the device, and whose outcome is not read yet.

    `num_images` are the images of the step, which are known at once.
    """

    def __init__(self, num_images: int, numbers: StepNumbers, complete: Callable[[], StepOutcome]) -> None:
        """`complete()` does on the host what depends on the numbers, and returns the outcome."""
        self.num_images = num_images
        self._numbers = numbers
        self._complete = complete
        self._outcome: StepOutcome | None = None

    @property
    def is_ready(self) -> bool:
        """Whether nothing is gained by reading the outcome later."""
        return self._numbers.is_ready

    def read(self) -> StepOutcome:
        """Return the outcome. The first call waits for the device, and completes the step on the host."""
        if self._outcome is None:
            self._outcome = self._complete()
        return self._outcome


def tensors_in(metrics: Sequence[Metric]) -> list[torch.Tensor]:
    """Return the values of metrics that are tensors."""
    return [value.detach().float() for _, value, _ in metrics if isinstance(value, torch.Tensor)]


def read_metrics(metrics: Sequence[Metric]) -> list[Metric]:
    """Return the metrics with the values of their tensors, which are read from the device together."""
    tensors = tensors_in(metrics)
    values = iter(torch.stack(tensors).tolist() if tensors else [])
    return [(n, next(values) if isinstance(value, torch.Tensor) else value, k) for n, value, k in metrics]


def means(metrics: Sequence[Metric]) -> dict[str, float]:
    """Return, by name, the mean of the values weighted by their numbers of images; those that are NaN are left out."""
    numbers = [(name, float(value), count) for name, value, count in metrics if not math.isnan(value)]
    names = dict.fromkeys(name for name, _, _ in numbers)
    shares = {name: [(value, count) for other, value, count in numbers if other == name] for name in names}
    return {name: sum(v * n for v, n in pairs) / sum(n for _, n in pairs) for name, pairs in shares.items()}
