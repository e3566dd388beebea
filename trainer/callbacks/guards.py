"""Guards against overoptimization: they end a run whose images still gain reward but lose what they had before.

A model that follows a reward too far moves away from the original one (KL), samples the same image again and again
(diversity), or exceeds the target reward. Gao et al. 2022 (arXiv 2210.10760) measure this for language models,
Fan et al. 2023 (arXiv 2305.16381) and Black et al. 2023 (arXiv 2305.13301) for diffusion models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modules.config.sections.reward import Reward
from trainer.events import RewardMeasured
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters


@dataclass(slots=True)
class _Series:
    """The first and the newest values of a metric, as many as are averaged."""

    first: list[float] = field(default_factory=list)
    newest: list[float] = field(default_factory=list)

    def add(self, value: float, count: int) -> None:
        """Add a value; `count` is how many are averaged."""
        if len(self.first) < count:
            self.first.append(value)
        self.newest = [*self.newest, value][-count:]


class Guards:
    """Tracks the KL and the diversity of the rollouts, and the measured reward and diversity; kept in backups.

    A limit applies to the mean over `guard_steps` steps that reported the metric. Measurements use the same prompts
    and seeds each time, so a single one counts.
    """

    def __init__(self, settings: Reward) -> None:
        self._settings = settings
        self._kl = _Series()
        self._diversity = _Series()
        self._measured = _Series()
        self._measured_on = ""
        self._reward: float | None = None

    @property
    def reason(self) -> str:
        """Why the run is to end, as part of a sentence, with the figure and its limit; empty if it is to continue."""
        return self._by_kl() or self._by_diversity() or self._by_reward()

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return True: each step may be the one that ends the run."""
        return True

    def after_step(self, view: StepView) -> None:
        """Add the metrics that the method reported of a step."""
        metrics, count = view.outcome.metrics, self._settings.guard_steps
        if not math.isnan(kl := metrics.get("kl", math.nan)):
            self._kl.add(kl, count)
        if math.isfinite(diversity := metrics.get("diversity", math.nan)):
            self._diversity.add(diversity, count)

    def after_measurement(self, result: RewardMeasured, measured_on: str) -> None:
        """Add a measurement; `measured_on` identifies its prompts and reward models: others cannot be compared.

        The reward before the first step does not count: the run has not trained anything yet.
        """
        if measured_on != self._measured_on:
            self._measured, self._measured_on = _Series(), measured_on
        if result.diversity is not None:
            self._measured.add(result.diversity, 1)
        self._reward = result.followed if result.step > 0 else None

    def dry_run_checks(self, state: DryRunState) -> tuple[DryRunCheck, ...]:
        """Return no checks: the guards only read numbers."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-safe state for a resumed run."""
        series = {"kl": self._kl, "diversity": self._diversity, "measured": self._measured}
        return {
            **{name: {"first": s.first, "newest": s.newest} for name, s in series.items()},
            "measured_on": self._measured_on,
            "reward": self._reward,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; an empty one, of a backup of an older version, starts anew."""
        if not state:
            return
        self._kl, self._diversity, self._measured = (_Series(**state[n]) for n in ("kl", "diversity", "measured"))
        self._measured_on = str(state["measured_on"])
        self._reward = state["reward"]

    def _by_kl(self) -> str:
        limit, count = self._settings.max_kl, self._settings.guard_steps
        if limit is None or len(self._kl.newest) < count or (kl := _mean(self._kl.newest[-count:])) <= limit:
            return ""
        return f"the KL to the reference reached {kl:.3g} (limit: {limit:g}). {_EARLIER}"

    def _by_diversity(self) -> str:
        share, count = self._settings.min_diversity, self._settings.guard_steps
        if share is None:
            return ""
        for series, needed in ((self._diversity, count), (self._measured, 1)):
            if len(series.newest) < needed:
                continue
            start, now = _mean(series.first[:needed]), _mean(series.newest[-needed:])
            if now < share * start:
                return (
                    f"the diversity of a prompt's images fell to {now:.3g}, {now / start:.0%} of {start:.3g} at the "
                    f"start (limit: {share:.0%}). {_EARLIER}"
                )
        return ""

    def _by_reward(self) -> str:
        target = self._settings.stop_at_reward
        if target is None or self._reward is None or self._reward < target:
            return ""
        return f"the measured reward reached {self._reward:.4g} (target: {target:g})."


_EARLIER = "Models of earlier steps may be better than the last one."


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
