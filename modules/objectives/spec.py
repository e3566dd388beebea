"""The record of a training method: the facts that other code needs, so that no code tests for a method's name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from modules.diffusion.process_spec import ProcessSpec
from modules.settings.field import Section
from modules.system.problem import Problem

if TYPE_CHECKING:  # of methods that sample
    from modules.objectives.rollout_facts import RolloutFacts

LearnsFrom = Literal["images", "prompts", "pairs"]
TrainsOn = Literal["latents", "pixels"]

OTHER_METHOD = "Choose another training method, or other settings of this one."
"""The advice for a method that has no form for a model."""


@dataclass(frozen=True, slots=True)
class MethodGuide:
    """The facts that the window shows of a method before it is used.

    `needs`: what the user has to provide, a sentence each. `watch`: names of metrics (`metrics.py`), and what each
    shows about a run that goes well or wrong. The name "held_out" is the held-out reward.
    """

    needs: tuple[str, ...] = ()
    watch: Mapping[str, str] = field(default_factory=dict)


MethodSource = Literal["images", "pairs", "rewards", "person"]

SOURCES: Mapping[MethodSource, str] = {
    "images": "Images that it should imitate",
    "pairs": "Pairs of a better and a worse image",
    "rewards": "Something that scores images",
    "person": "My own eye",
}
"""The materials that a method can learn from, in the words of the user who has them."""


@dataclass(frozen=True, slots=True)
class MethodStart:
    """How a method learns from a source: when to choose it there, and the settings that it needs then.

    `needs` takes the place of the guide's, if this source needs something else.
    """

    why: str
    settings: Mapping[str, object] = field(default_factory=dict)
    is_usual: bool = False
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class MethodSpec:
    """The facts about a training method that are known before anything is loaded.

    `factory` names the function that builds it, as "module:function", called with its settings, the training section
    and what it measures images with: its rewards, the perceptual distance of a VAE, or None. All callables take the
    method's settings:

    - `rollout`: how it samples images during training, which needs the VAE. None: it samples no images.
    - `held_out_reward`: the kind of reward model that is held out, or "none". None: it needs no reward models.
    - `learns_from`: "images" needs their latents, "pairs" the latents of a chosen and a rejected image, "prompts" no
      image at all: the captions are enough.
    - `trains_on_reward`: whether it trains on the scores of its reward models. If not, they are only logged, and it
      needs none.
    - `needs_reference`: whether its loss needs predictions of the model as it was before training.
    - `keeps_reference_copy`: whether it keeps a copy of the trained weights as they were at a later step: of an adapter
      a small one, of a fine-tune one as large as its weights.
    - `steps_per_group`: the optimizer steps per accumulation group of the loader. More than one for a method that runs
      inner epochs over its rollouts. All step counts in the program use it.
    - `sampled_share`: the share of its steps that train on images that it samples, if it samples any. They ignore the
      masks of the dataset.
    - `adds_noise`: whether it adds noise to finished latents at random timesteps, so that the run's noise and timestep
      settings apply. Steps that sample images have their own noise.
    - `reports`: the metrics (`metrics.py`) that it reports with its settings and that others rely on: "kl" and
      "diversity" are compared with limits.
    - `has_denoising_loss`: whether any of its steps trains on the denoising loss, with the settings of the loss.
    - `ddpm_only`: the label of what it uses and only DDPM models have, such as the density of a step of DDIM; empty if
      it can train a model of any noise process.
    - `problems`: the problems of its settings; `problems_of_process`: those with models of a noise process.

    `guide`: what it needs and what to watch, for the window. `sources`: what a user can have for it to learn from.

    `trains_on`: "pixels" for a method of the VAE, whose batches are images; it uses no captions, and nothing is cached.

    `needs_reward_gradient`: it can only train on differentiable rewards. `splits_batches`: it trains on a batch of the
    loader in several micro-batches, so that gradients are always accumulated. `repeats_forward`: it compares its
    predictions with the ones that it sampled with, so that they must not differ by dropout. `trains_embeddings`: it can
    train embeddings. `is_shareable(settings)`: several processes can share its steps, because it trains on each image
    (or pair) of the loader by itself, or shares out its own micro-batches (`splits_batches`). `is_recordable`: its loss
    can be recorded as a CUDA graph (`RecordableMethod`).
    """

    name: str
    label: str
    help: str
    settings: type[Section]
    factory: str
    rollout: Callable[[Any], RolloutFacts] | None = None
    held_out_reward: Callable[[Any], str] | None = None
    needs_reward_gradient: bool = False
    learns_from: Callable[[Any], LearnsFrom] = lambda settings: "images"
    trains_on_reward: Callable[[Any], bool] = lambda settings: True
    needs_reference: Callable[[Any], bool] = lambda settings: False
    keeps_reference_copy: Callable[[Any], bool] = lambda settings: False
    steps_per_group: Callable[[Any], int] = lambda settings: 1
    sampled_share: Callable[[Any], float] = lambda settings: 1.0
    adds_noise: Callable[[Any], bool] = lambda settings: True
    reports: Callable[[Any], Collection[str]] = lambda settings: ()
    has_denoising_loss: Callable[[Any], bool] = lambda settings: False
    trains_on: TrainsOn = "latents"
    splits_batches: bool = False
    repeats_forward: bool = False
    trains_embeddings: bool = False
    is_shareable: Callable[[Any], bool] = lambda settings: False
    is_recordable: bool = False
    ddpm_only: Callable[[Any], str] = lambda settings: ""
    problems: Callable[[Any], Iterable[Problem]] = lambda settings: ()
    problems_of_process: Callable[[Any, ProcessSpec], Iterable[Problem]] = lambda settings, process: ()
    guide: MethodGuide = MethodGuide()
    sources: Mapping[MethodSource, MethodStart] = field(default_factory=dict)

    def refusal(self, settings: Section, process: ProcessSpec) -> str:
        """Return a sentence if it has no form for models of a noise process with its settings; else an empty text."""
        what = self.ddpm_only(settings) if process.flow is not None else ""
        return f"{what} has no form for {process.label} models yet." if what else ""

    @property
    def samples_images(self) -> bool:
        """Whether its training steps sample images and decode them."""
        return self.rollout is not None

    @property
    def needs_reward_models(self) -> bool:
        """Whether it scores the images it samples."""
        return self.held_out_reward is not None
