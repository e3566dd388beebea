"""Online DPO: Diffusion-DPO on pairs that the model samples itself, chosen by a reward or by a person.

Pairs of images as in Flow-GRPO's online baseline (Liu et al. 2025, arXiv 2505.05470), or of denoising steps as in SPO
(Liang et al. 2024, arXiv 2406.04314).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Interval

from modules.objectives import rollout_fields as fields
from modules.objectives.rollout_facts import RolloutFacts
from modules.objectives.spec import MethodGuide, MethodSpec, MethodStart
from modules.sampling.registry import SAMPLERS
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import CountTo1000, PositiveFraction, UpTo100, UpTo1000
from modules.system.problem import Problem

_OF_IMAGES = When("pairs", ("images",))
_OF_STEPS = When("pairs", ("steps",))


class OnlineDpo(Section):
    """Samples images of each prompt, and learns to prefer the best of them to the worst."""

    name: Literal["online_dpo"] = "online_dpo"
    chosen_by: Annotated[
        Literal["reward", "person"],
        Setting(
            "Chosen by",
            "Who chooses the best and the worst image of a prompt: the reward models, or a person. The run then waits "
            "until the choices are made, on the page Choose or by any program that writes the answers into the run's "
            "folder choices. Reward models are then only logged, and none is needed.",
            choice_labels={"reward": "Reward models", "person": "A person"},
        ),
    ] = "reward"
    candidates: Annotated[
        int,
        *Interval(ge=2, le=256),
        Setting(
            "Candidates",
            "How many images of each prompt are sampled, or how many next latents of a denoising step; the best and "
            "the worst become a pair. More make clearer pairs and take longer. Published: 24 images, 4 latents.",
            applies_when=When("chosen_by", ("reward",)),
        ),
    ] = 8
    shown_candidates: Annotated[
        int,
        *Interval(ge=2, le=4),
        Setting(
            "Candidates shown",
            "How many images of each prompt a person sees at once.",
            unit="images",
            applies_when=When("chosen_by", ("person",)),
        ),
    ] = 2
    pairs: Annotated[
        Literal["images", "steps"],
        Setting(
            "Pairs of",
            "The best and the worst of the finished images, or of the candidates for the next denoising step, by the "
            "images that they would lead to (SPO). The latter teaches details and does not change the layout.",
            choice_labels={"images": "Images", "steps": "Denoising steps (SPO)"},
        ),
    ] = "images"
    steps: fields.DenoisingSteps = 20
    guidance: Annotated[
        UpTo100,
        Setting(
            "Guidance",
            "Guidance scale: how closely the sampled images follow their prompts. The loss on pairs of images has no "
            "guidance, the loss on pairs of denoising steps has this one; 1 or less turns it off and is twice as fast.",
        ),
    ] = 5.0
    sampler: Annotated[str, *fields.SAMPLER_CHOICES, replace(fields.SAMPLER, applies_when=_OF_IMAGES)] = "ddim"
    size: fields.SampleSize = ""
    loss: Annotated[
        Literal["sigmoid", "ipo"],
        Setting(
            "Preference loss",
            "Diffusion-DPO prefers the chosen image more than the reference does. IPO also keeps the preference from "
            "growing without limit.",
            choice_labels={"sigmoid": "Diffusion-DPO (sigmoid)", "ipo": "IPO"},
            choice_help={
                "sigmoid": "Prefers the better image more than the reference does.",
                "ipo": "The same, and keeps the preference from growing without limit.",
            },
            applies_when=_OF_IMAGES,
        ),
    ] = "sigmoid"
    beta: Annotated[
        float,
        *Interval(gt=0, le=1_000_000),
        Setting(
            "Beta",
            "How strongly the model is kept close to the reference: a larger beta keeps it closer. Published values "
            "are 2000 for Stable Diffusion 1.5 and 5000 for SDXL. A small beta can ruin the images.",
            applies_when=_OF_IMAGES,
        ),
    ] = 2000.0
    target_margin: Annotated[fields.TargetMargin, replace(fields.TARGET_MARGIN, applies_when=_OF_IMAGES)] = 0.0
    loss_noise: Annotated[
        Literal["fresh", "generated"],
        Setting(
            "Noise in the loss",
            "The noise that the images of a pair get in the loss: new noise in each step, the same for both, or for "
            "each image the noise that it was sampled from, which is kept with the pair (PNAPO). The latter suits flow "
            "models, whose path from the noise to the image is nearly straight.",
            choice_labels={"fresh": "Fresh noise", "generated": "The image's own (PNAPO)"},
            applies_when=_OF_IMAGES,
        ),
    ] = "fresh"
    label_smoothing: Annotated[
        float,
        *Interval(ge=0, le=0.5),
        advanced_setting(
            "Label smoothing",
            "The assumed share of pairs that are chosen the wrong way round.",
            applies_when=_OF_IMAGES,
        ),
    ] = 0.0
    sft_weight: Annotated[
        UpTo1000,
        advanced_setting(
            "SFT weight",
            "The weight of the denoising loss on the chosen images, which is added. It keeps their quality from "
            "falling together with the rejected images' probability.",
            applies_when=_OF_IMAGES,
        ),
    ] = 0.0
    timestep_share: Annotated[
        PositiveFraction,
        Setting(
            "Timestep share",
            "The share of the denoising steps below the highest timestep that are compared and trained, chosen at "
            "random for each batch.",
            applies_when=_OF_STEPS,
        ),
    ] = 0.5
    max_timestep: Annotated[
        CountTo1000,
        advanced_setting(
            "Highest timestep",
            "Only denoising steps up to this timestep are compared: before, the images are too blurred to be scored. "
            "Published: 750.",
            applies_when=_OF_STEPS,
        ),
    ] = 750
    step_beta: Annotated[
        float,
        *Interval(gt=0, le=1_000_000),
        Setting(
            "Beta of steps",
            "How strongly the model is kept close to the reference. Published: 10.",
            applies_when=_OF_STEPS,
        ),
    ] = 10.0
    ratio_clip: Annotated[
        float,
        *Interval(gt=0, le=0.99),
        advanced_setting(
            "Ratio clip",
            "How far the probability ratio of the model and the reference may move before it is not trained further. "
            "Published: 0.1.",
            applies_when=_OF_STEPS,
        ),
    ] = 0.1
    updates_per_rollout: Annotated[
        int,
        *Interval(ge=1, le=64),
        Setting(
            "Steps per rollout",
            "How many optimizer steps train on the same pairs, each with other noise.",
        ),
    ] = 4
    pairs_per_update: Annotated[
        int,
        *Interval(ge=0, le=100_000),
        advanced_setting(
            "Pairs per step", "How many of a rollout's pairs an optimizer step trains on, in turn. 0 is all of them."
        ),
    ] = 0
    reference: Annotated[
        Literal["original", "refreshed"],
        Setting(
            "Reference",
            "What the model is kept close to: the model before training, or a copy of it that is refreshed from time "
            "to time, which lets it move further away. A fine-tune needs memory for the copy.",
            choice_labels={"original": "Original model", "refreshed": "Refreshed copy"},
        ),
    ] = "original"
    refresh_every: Annotated[
        int,
        *Interval(ge=1, le=100_000),
        Setting(
            "Refresh every",
            "After this many optimizer steps the reference becomes the model as it is then.",
            unit="steps",
            applies_when=When("reference", ("refreshed",)),
        ),
    ] = 40
    reward_sum: fields.RewardSum = "advantages"
    held_out_reward: fields.HeldOutReward = "none"

    @property
    def samples_per_prompt(self) -> int:
        """The number of images sampled for each prompt."""
        if self.chosen_by == "person":
            return self.shown_candidates
        return 1 if self.pairs == "steps" else self.candidates


def _problems(settings: OnlineDpo) -> Iterator[Problem]:
    """Yield problems of the sample size, of the sampler for the noise in the loss, and of a person who would choose
    among denoising steps.
    """
    yield from fields.size_problems(settings.size)
    if settings.pairs == "images" and settings.loss_noise == "generated" and SAMPLERS[settings.sampler].adds_noise:
        label = SAMPLERS[settings.sampler].label
        yield Problem(
            "training.method.loss_noise",
            f"The sampler {label} adds new noise in its steps, so an image does not follow from the noise that it was "
            "sampled from.",
            "warning",
            advice="Choose a sampler without new noise, such as DDIM, or fresh noise in the loss.",
        )
    if settings.chosen_by == "person" and settings.pairs == "steps":
        yield Problem(
            "training.method.pairs",
            "A person chooses among finished images, not among denoising steps.",
            advice="Set the pairs to images, or choose by reward models.",
        )


def _rollout(settings: OnlineDpo) -> RolloutFacts:
    """Return how it samples. A pair of a denoising step needs one pass, because both begin with the same latents."""
    is_of_steps = settings.pairs == "steps"
    trained = fields.trained_steps(settings.steps, settings.timestep_share) if is_of_steps else 0
    return RolloutFacts(
        settings.steps,
        settings.guidance,
        samples_per_prompt=settings.samples_per_prompt,
        trained_steps=trained,
        images_per_pass=1 if is_of_steps else 2,
        size=fields.known_size(settings.size),
        sampling_passes=settings.steps + trained * (settings.candidates - 1),
        sampler="" if is_of_steps else settings.sampler,
    )


ONLINE_DPO = MethodSpec(
    "online_dpo",
    "Online DPO",
    "Samples images of each prompt, and learns to prefer the best of them to the worst. Reward models or a person "
    "choose them.",
    OnlineDpo,
    "trainer.methods.image_pairs:build",
    rollout=_rollout,
    held_out_reward=lambda settings: settings.held_out_reward,
    trains_on_reward=lambda settings: settings.chosen_by == "reward",
    learns_from=lambda settings: "prompts",
    needs_reference=lambda settings: settings.reference == "original",
    keeps_reference_copy=lambda settings: settings.reference == "refreshed",
    steps_per_group=lambda settings: settings.updates_per_rollout,
    adds_noise=lambda settings: settings.pairs == "images",
    reports=lambda settings: fields.reports(kl_weight=0.0, samples_per_prompt=settings.samples_per_prompt),
    splits_batches=True,
    is_shareable=lambda settings: settings.chosen_by == "reward",
    ddpm_only=lambda settings: "Online DPO on denoising steps (SPO)" if settings.pairs == "steps" else "",
    problems=_problems,
    guide=MethodGuide(
        needs=(
            "One or more reward models, of any kind; or a person: then the run waits for choices on the page Choose.",
            fields.NEEDS_PROMPTS,
            "At least 8 images of each prompt for reward models; a person sees 2 to 4.",
        ),
        watch={
            "reward": "Rises over tens of steps, and is noisy.",
            "held_out": fields.HELD_OUT_FALLS,
            "implicit_accuracy": "Starts at 0.5 and rises above it. Close to 1 a rollout is used for too many steps.",
            "negative_margins": fields.NEGATIVE_MARGINS,
            "chosen_error": fields.CHOSEN_ERROR,
            "equal_rewards": "Near 1 nothing is learned: use a finer reward, more candidates or other prompts.",
            "diversity": fields.DIVERSITY_HALVES,
        },
    ),
    sources={
        "person": MethodStart(
            "Here the person is you, while it trains.",
            {"chosen_by": "person"},
            is_usual=True,
            needs=(
                "You: the run shows two to four images of a prompt on the page Choose, and waits for your choice.",
                fields.NEEDS_PROMPTS,
                "No reward model, no download besides the base model. A few hundred choices show a direction.",
            ),
        ),
        "rewards": MethodStart(
            "Only the order of the images counts, not the scale of their scores.",
            {"chosen_by": "reward"},
            needs=(fields.NEEDS_REWARDS, fields.NEEDS_PROMPTS, "At least 8 images of each prompt."),
        ),
    },
)
