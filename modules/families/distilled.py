"""How to detect a family's checkpoints that were distilled to sample in few steps or without guidance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FEW_STEP_SCHEDULERS = ("LCMScheduler", "TCDScheduler", "FlowMatchLCMScheduler", "FlowMapEulerDiscreteScheduler")

_BY_NAME = "its name"


@dataclass(frozen=True, slots=True)
class DistilledSpec:
    """The checkpoints of a family that were distilled to sample in few steps or without guidance.

    A checkpoint is recognized by one of `words` in the name of its file or repository, by `config_key` in the
    denoiser's config (set to `config_value`, if there is one), by a true `index_key` in its index, or by a scheduler of
    few-step models. One of `undone_words` in its name means that the distillation was undone.

    `advice` is shown to the user. Distilled models are sampled in about `steps` steps, with a guidance scale of at most
    `guidance`. They may lack weights whose names begin with one of `lacks`, which have no effect in the base model if
    they are 0, and add weights whose names begin with one of `adds`. `is_refused`: training one without a training
    adapter is an error, as its results are useless. `published` are the published repositories and files, in lower
    case: any other model with a similar name may be a fine-tune of the base and is not refused.
    """

    words: tuple[str, ...]
    advice: str
    config_key: str = ""
    config_value: object = None
    index_key: str = ""
    undone_words: tuple[str, ...] = ()
    steps: int = 8
    guidance: float = 1.0
    lacks: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    is_refused: bool = False
    published: frozenset[str] = frozenset()

    def is_named(self, base_model: str) -> bool:
        """Return whether a base model, a path or a repository, is named like a distilled one."""
        name = _file_name(base_model)
        return not self.is_undone(base_model) and any(
            re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", name) for word in self.words
        )

    def is_undone(self, base_model: str) -> bool:
        """Return whether a base model is named like one whose distillation was undone."""
        return any(word in _file_name(base_model) for word in self.undone_words)

    def refuses(self, base_model: str, evidence: str) -> bool:
        """Return whether a model with this evidence must not be trained: by its files, or as a published one."""
        is_published = not self.published.isdisjoint({base_model.strip().lower(), _file_name(base_model)})
        return self.is_refused and bool(evidence) and (is_published or evidence != _BY_NAME)

    def evidence(
        self,
        base_model: str,
        config: Mapping[str, Any],
        scheduler: Mapping[str, Any],
        index: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the evidence that a model is distilled, such as "its name"; empty without any.

        `config` is the config of its denoiser, `scheduler` the config of its scheduler, `index` its folder's index; all
        may be empty.
        """
        if index is not None and self.index_key and self.index_key in index:  # in a base model's index it is false
            return f"{self.index_key} in its model_index.json" if index[self.index_key] else ""
        if self.is_undone(base_model):
            return ""
        if self.is_named(base_model):
            return _BY_NAME
        value = config.get(self.config_key) if self.config_key else None
        if value is not None and self.config_value in (None, value):
            return f"{self.config_key} in its config"
        by = _few_step_scheduler(scheduler)
        return f"{by} in its scheduler config" if by else ""


def _few_step_scheduler(scheduler: Mapping[str, Any]) -> str:
    """Return the setting of a scheduler config that only few-step models have; empty without one."""
    if (name := str(scheduler.get("_class_name"))) in _FEW_STEP_SCHEDULERS:
        return name
    if scheduler.get("stochastic_sampling"):
        return "stochastic_sampling"
    lowest, highest = scheduler.get("base_shift"), scheduler.get("max_shift")
    # A dynamic shift that is equal for all sizes (Qwen-Image-Lightning, Krea 2 Turbo).
    is_pinned = scheduler.get("use_dynamic_shifting") and lowest is not None and lowest == highest
    return "a fixed dynamic shift" if is_pinned else ""


def _file_name(base_model: str) -> str:
    return re.split(r"[\\/]", base_model.rstrip("\\/"))[-1].lower()
