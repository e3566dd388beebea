"""A toy policy method: it samples two images per prompt and trains on them in several inner epochs (clipped PPO).

It is added to the program like any method: settings, a record and a factory, and one line in the registry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

import torch
from annotated_types import Ge, Le

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.data.conditioning import SizeConditioning
from modules.families.protocol import Conditioning
from modules.objectives.registry import METHODS
from modules.objectives.rollout_facts import RolloutFacts
from modules.objectives.spec import MethodSpec
from modules.rewards.composite import CompositeReward
from modules.sampling.ddim_step import ddim_steps
from modules.sampling.rollout import Rollout, RolloutSettings, roll_out
from modules.settings.field import Section, Setting
from modules.system.devices import move
from modules.system.seeds import derive_seed
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod

SAMPLES_PER_PROMPT = 2
SETTINGS = RolloutSettings(num_steps=2, eta=1.0)


class ToyPolicy(Section):
    """Its settings."""

    name: Literal["toy_policy"] = "toy_policy"
    inner_epochs: Annotated[int, Ge(1), Le(8), Setting("Inner epochs", "Steps that train on one rollout.")] = 2


SPEC = MethodSpec(
    "toy_policy",
    "Toy policy",
    "Trains on its own samples.",
    ToyPolicy,
    "tests.builders.toy_policy:build",
    rollout=lambda settings: RolloutFacts(SETTINGS.num_steps, SETTINGS.guidance),
    held_out_reward=lambda settings: "none",
    learns_from=lambda settings: "prompts",
    steps_per_group=lambda settings: settings.inner_epochs,
)


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Register the method while entered. In the program this is a line in the registry's file."""
    methods = cast(MutableMapping[str, MethodSpec], METHODS)
    methods[SPEC.name] = SPEC
    try:
        yield
    finally:
        del methods[SPEC.name]


@dataclass(frozen=True, eq=False)
class Sampled:
    """The samples of a micro-batch, and the advantage of each image over the others of its prompt."""

    latents_BSCHW: torch.Tensor
    log_probs_BN: torch.Tensor
    advantages_B: torch.Tensor


@dataclass(frozen=True, eq=False)
class PolicyBatch:
    """A micro-batch of an inner epoch."""

    batch: Batch
    sampled: Sampled
    step: int
    micro_batch: int
    group_samples: int


@dataclass(eq=False)
class Policy:
    """The method: a rollout per accumulation group, and a step over it per inner epoch."""

    reward: CompositeReward
    inner_epochs: int
    first_step: int = -1
    sampled: list[Sampled] = field(default_factory=list)

    def prepare(self, context: StepContext) -> None:
        """Nothing to prepare."""

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[PolicyBatch]:
        """Yield the micro-batches of every inner epoch."""
        for group in _groups(loader):
            if self.first_step != group[0].step:  # otherwise it is the group in which a resumed run stopped
                sampled = [self._sample(batch, context) for batch in group]
                self.first_step, self.sampled = group[0].step, sampled
            num_samples = sum(b.num_samples for b in group) * SAMPLES_PER_PROMPT
            for epoch in range(self.inner_epochs):
                for batch, sampled_here in zip(group, self.sampled, strict=True):
                    yield PolicyBatch(batch, sampled_here, batch.step + epoch, batch.micro_batch, num_samples)

    def _sample(self, batch: Batch, context: StepContext) -> Sampled:
        prompts = [caption for caption in batch.captions for _ in range(SAMPLES_PER_PROMPT)]
        seeds = [derive_seed(context.run_seed, "toy", batch.step, batch.micro_batch, i) for i, _ in enumerate(prompts)]
        with context.rollout(batch.step):
            rollout = self._roll_out(batch, prompts, seeds, context)
            scores_PG = self.reward(rollout.images_B3PP, prompts).total_B.view(-1, SAMPLES_PER_PROMPT)
        advantages_PG = (scores_PG - scores_PG.mean(1, keepdim=True)) / (scores_PG.std(1, keepdim=True) + 1e-4)
        return Sampled(
            torch.stack(list(rollout.states_BCHW.values()), dim=1), rollout.log_probs_BN, advantages_PG.flatten()
        )

    def _roll_out(self, batch: Batch, prompts: list[str], seeds: list[int], context: StepContext) -> Rollout:
        return roll_out(
            context.family,
            context.encode(prompts),
            None,
            seeds=seeds,
            size=_size(batch, context),
            settings=SETTINGS,
            gradient_steps=0,
            device=context.device,
            temp_device=context.temp_device,
            on_step=context.check,
            stored_states=range(SETTINGS.num_steps + 1),
        )

    def loss(self, batch: PolicyBatch, context: StepContext) -> StepLoss:
        """Return the clipped surrogate over the steps that have a density."""
        family, sampled = context.family, batch.sampled
        prompts = [caption for caption in batch.batch.captions for _ in range(SAMPLES_PER_PROMPT)]
        conditioning = _whole(context.encode(prompts), batch.batch, context)
        advantages_B = move(sampled.advantages_B, context.device)
        losses = []
        for index, step in enumerate(
            ddim_steps(family.process, family.scheduler_config(), num_steps=2, eta=SETTINGS.eta)
        ):
            if step.sigma == 0:
                continue
            now, after = (move(sampled.latents_BSCHW[:, i], context.device) for i in (index, index + 1))
            timesteps_B = torch.full((len(prompts),), step.timestep, device=context.device.torch)
            log_prob_B = step.log_prob(after, step.mean(family.predict(now, timesteps_B, conditioning).float(), now))
            ratio_B = (log_prob_B - move(sampled.log_probs_BN[:, index], context.device)).exp()
            losses.append(-torch.minimum(ratio_B * advantages_B, ratio_B.clamp(0.8, 1.2) * advantages_B))
        return StepLoss(
            loss=torch.stack(losses).mean(),
            num_samples=len(prompts),
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.batch.is_last_micro_batch,
            zero_gradient_is_legal=True,  # a prompt's images may have equal scores, or all ratios be clipped
            metrics={"ratio": float((ratio_B.detach()).mean())},
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return a policy of its own, with no rollout yet."""
        return {"learning from samples": Policy(self.reward, self.inner_epochs)}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the rollout, if the run is inside one."""
        if not self.first_step < step < self.first_step + self.inner_epochs:
            return {}
        tensors = {f"{n}.{key}": getattr(s, key) for n, s in enumerate(self.sampled) for key in Sampled.__annotations__}
        return {"first_step": self.first_step, **tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the rollout of a state."""
        self.first_step = state.get("first_step", -1)
        count = sum(name.endswith(".advantages_B") for name in state)
        self.sampled = [Sampled(**{k: state[f"{n}.{k}"] for k in Sampled.__annotations__}) for n in range(count)]


def build(settings: ToyPolicy, training: Training, reward: CompositeReward | None) -> Policy:
    """Return the method of its settings."""
    assert reward is not None
    return Policy(reward, settings.inner_epochs)


def _groups(loader: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Yield the loader's batches by accumulation group."""
    group: list[Batch] = []
    for batch in loader:
        group.append(batch)
        if batch.is_last_micro_batch:
            yield group
            group = []


def _size(batch: Batch, context: StepContext) -> Size:
    height, width = (side * context.family.spec.latents.factor for side in batch.latents_BCHW.shape[-2:])
    return Size(width, height)


def _whole(conditioning: Conditioning, batch: Batch, context: StepContext) -> Conditioning:
    sizes = [SizeConditioning.whole(_size(batch, context))] * len(conditioning)
    return context.family.with_size_conditioning(conditioning, sizes)
