"""What a training method's record holds: the facts that others need, so that none asks for its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from modules.settings.field import Section
from modules.system.problem import Problem


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """How a method samples: in how many denoising steps, with how much guidance, and through how many of the last
    steps its loss sends a gradient at most (0: it samples without gradient).
    """

    steps: int
    guidance: float
    gradient_steps: int = 0


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A training method before anything is loaded.

    `factory` names the function that builds it, as "module:function", called with its settings, the training section
    and the rewards (None where it needs none). All callables take the method's own settings:

    - `rollout`: how it samples images while training, which needs the VAE then. None: it samples none.
    - `held_out_reward`: the kind of reward model that is held out, or "none". None: it needs no reward models.
    - `steps_per_group`: the optimizer steps that one accumulation group of the loader becomes. More than one for a
      method that runs inner epochs over its rollouts. Every count of steps in the program follows from it.
    - `problems`: what is wrong among its own settings.

    `needs_reward_gradient`: it can only train on differentiable rewards.
    """

    name: str
    label: str
    help: str
    settings: type[Section]
    factory: str
    rollout: Callable[[Any], RolloutFacts] | None = None
    held_out_reward: Callable[[Any], str] | None = None
    needs_reward_gradient: bool = False
    steps_per_group: Callable[[Any], int] = lambda settings: 1
    problems: Callable[[Any], Iterable[Problem]] = lambda settings: ()

    @property
    def samples_images(self) -> bool:
        """Whether its training steps sample images and decode them."""
        return self.rollout is not None

    @property
    def needs_reward_models(self) -> bool:
        """Whether it scores the images it samples."""
        return self.held_out_reward is not None
