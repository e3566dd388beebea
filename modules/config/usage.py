"""How a run uses its config: the method and what it needs, the inputs of the model, and what is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.adapters.registry import ADAPTERS
from modules.config.schema import Config
from modules.config.sections.data import Data
from modules.config.sections.embeddings import EmbeddingSettings
from modules.config.sections.training import method_in_use
from modules.families.registry import families_with
from modules.families.spec import BASE_VARIANT, PartSpec
from modules.objectives.spec import LearnsFrom, MethodSpec
from modules.optim.scaling import rate_factor
from modules.optim.spec import is_fused
from modules.settings.conditions import USES_DENOISER
from modules.settings.edit import choose_variant
from modules.settings.shared_types import sides_of

if TYPE_CHECKING:  # the window draws no captions and reads no adapter
    from modules.data.captions.drawing import CaptionDropout
    from modules.data.inputs import ModelInput
    from modules.data.references import ReferenceFit
    from modules.estimate.step_passes import StepPasses
    from modules.formats.adapter_forms import FileForm
    from modules.objectives.rollout_facts import RolloutFacts
    from modules.rewards.in_use import ScorersInUse


def method_of(config: Config) -> MethodSpec:
    """Return the record of a config's method: the method of its training target, or the chosen one."""
    return method_in_use(config.training)[0]


def settings_of_method(config: Config) -> Any:
    """Return the settings of a config's method, which the callables of its record take."""
    return method_in_use(config.training)[1]


def trains_on_pixels(config: Config) -> bool:
    """Return whether the batches of the method are images: it needs no captions, and no cache."""
    return method_of(config).trains_on == "pixels"


def uses_denoiser(config: Config) -> bool:
    """Return whether the run denoises, with prompts, noise and caches; a run that trains the VAE does not."""
    return USES_DENOISER.holds(config.training.trains)


def uses_perceptual_distance(config: Config) -> bool:
    """Return whether the loss contains the perceptual distance of a VAE's reconstructions."""
    return trains_on_pixels(config) and config.training.vae.perceptual_strength > 0


def data_in_use(config: Config) -> Data:
    """Return the data settings with the caches that the run uses: none for a method that trains on pixels."""
    if not trains_on_pixels(config):
        return config.data
    return config.data.model_copy(update={"latent_cache": False, "text_cache": False})


def caption_dropout_of(data: Data, family: str) -> CaptionDropout:
    """Return the caption dropout of a family, which may have fewer text encoders than there are settings."""
    from modules.data.captions.drawing import CaptionDropout

    second, third = (family in families_with("text_encoder", at_least=number) for number in (2, 3))
    return CaptionDropout(
        data.caption_dropout, data.caption_dropout_2 if second else None, data.caption_dropout_3 if third else None
    )


def rollout_of(config: Config) -> RolloutFacts | None:
    """Return how the method samples during training, or None if it does not."""
    rollout = method_of(config).rollout
    return None if rollout is None else rollout(settings_of_method(config))


def scorers_of(config: Config) -> ScorersInUse | None:
    """Return the reward models of a run, or None if the method needs none."""
    held_out = method_of(config).held_out_reward
    if held_out is None:
        return None
    from modules.rewards.in_use import scorers_in_use

    return scorers_in_use(config.reward.models, held_out(settings_of_method(config)))


def learns_from(config: Config) -> LearnsFrom:
    """Return the kind of data that the method needs of a concept: images, pairs of images, or only prompts."""
    return method_of(config).learns_from(settings_of_method(config))


def images_per_pass(config: Config) -> int:
    """Return how many images of a sample of the batch a training pass contains: 2 for pairs."""
    rollout = rollout_of(config)
    return 2 if learns_from(config) == "pairs" else rollout.images_per_pass if rollout is not None else 1


def step_passes(config: Config) -> StepPasses:
    """Return the passes through the denoiser of an optimizer step with full batches."""
    from modules.estimate.step_passes import passes_of_step  # for estimates, which the window makes in the background

    method, training = method_of(config), config.training
    denoisers = config.family.names_of("denoiser")
    return passes_of_step(
        training.batch_size * training.accumulation_steps,
        rollout=rollout_of(config),
        sampled_share=method.sampled_share(settings_of_method(config)),
        images_per_pass=2 if learns_from(config) == "pairs" else 1,
        num_references=uses_prior(config) + keeps_reference_copy(config),
        steps_per_group=steps_per_group(config),
        repeats_forward=any(config.part(name).checkpointing != "off" for name in denoisers),
    )


def uses_prior(config: Config) -> bool:
    """Return whether training steps need predictions of the original model, before any training."""
    if method_of(config).needs_reference(settings_of_method(config)):
        return True
    if learns_from(config) == "prompts":  # its images are sampled: no mask and no concept needs the original model
        return False
    preserves = weighs_areas(config) and config.masks.preservation_weight > 0
    has_concept = any(c.enabled and c.kind == "prior_prediction" for c in config.concepts)
    return preserves or has_concept


def original_has_adapter(config: Config, *, has_start_weights: bool = False) -> bool:
    """Return whether the original model has the adapter as it is at the start of the run.

    An adapter that starts from a file, or from weights of another run, is part of the reference of preference methods:
    their reference is the model at the start of the run (Wallace et al. 2023: the fine-tuned model). The prior of other
    methods is the base model, without any adapter.
    """
    is_new = not config.adapter.start_from.strip() and not has_start_weights
    return not is_new and method_of(config).needs_reference(settings_of_method(config))


def copies_originals(config: Config) -> bool:
    """Return whether the original model needs a copy of the trained parts or adapters as they were before training.

    A new adapter is switched off instead. Embeddings are copied in any case; they are small.
    """
    if config.training.trains != "full":
        return original_has_adapter(config)
    return uses_prior(config)


def keeps_reference_copy(config: Config) -> bool:
    """Return whether training keeps a copy of the trained weights as they were at a later step."""
    return method_of(config).keeps_reference_copy(settings_of_method(config))


def trains_on_reward(config: Config) -> bool:
    """Return whether the method trains on the scores of reward models."""
    method = method_of(config)
    return method.needs_reward_models and method.trains_on_reward(settings_of_method(config))


def steps_per_group(config: Config) -> int:
    """Return how many optimizer steps are made from one accumulation group of the loader."""
    return method_of(config).steps_per_group(settings_of_method(config))


def rate_factor_of(config: Config) -> float:
    """Return the factor by which the learning rate scaler multiplies all learning rates."""
    training = config.training
    return rate_factor(
        training.learning_rate_scaler,
        batch_size=training.batch_size,
        accumulation_steps=training.accumulation_steps,
    )


def reports(config: Config, metric: str) -> bool:
    """Return whether the method reports a metric with its settings, such as "kl"."""
    return metric in method_of(config).reports(settings_of_method(config))


def seeds_per_measured_prompt(config: Config) -> int:
    """Return the least number of seeds per prompt of a reward measurement.

    It is 2 if the diversity is limited and the method's rollouts do not report it.
    """
    return 2 if config.reward.min_diversity is not None and not reports(config, "diversity") else 1


def updates_in_backward(config: Config) -> bool:
    """Return whether weights are updated inside the backward pass: the optimizer's setting, unless anything in the run
    needs all gradients at once.
    """
    training = config.training
    needs_all = training.accumulation_steps > 1 or method_of(config).splits_batches or training.precision == "float16"
    return is_fused(training.optimizer) and not needs_all


# The further inputs that the model variant gets besides the prompt. A run of the VAE uses no denoiser, so it has none.


def with_family(config: Config, family: str, variant: str) -> Config:
    """Return the config for another model family and variant, with the family's remembered settings."""
    config, _ = choose_variant(config, "model.family", family)
    return config.model_copy(update={"model": config.model.model_copy(update={"variant": variant})})


def is_variant(config: Config) -> bool:
    """Return whether the model is conditioned on an image besides the prompt."""
    return _has_denoiser(config) and config.model.variant != BASE_VARIANT


def inputs_of(config: Config) -> tuple[ModelInput, ...]:
    """Return the further inputs that the model gets with each image, in their order."""
    names = config.family.inputs.get(config.model.variant, ())
    if not (names and _has_denoiser(config)):
        return ()
    from modules.data.inputs import inputs_by_name  # of inpainting and editing, which few models do

    return inputs_by_name(names)


def inpaints(config: Config) -> bool:
    """Return whether the model gets an inpainting mask and a conditioning image with each image."""
    return any(i.is_mask for i in inputs_of(config))


def reads_depth(config: Config) -> bool:
    """Return whether the model gets a depth map with each image."""
    return any(i.name == "depth" for i in inputs_of(config))


def missing_data(config: Config) -> LearnsFrom | None:
    """Return the kind of data that a config without concepts lacks for its method; None if it has a concept."""
    return None if config.concepts else learns_from(config)


def reads_references(config: Config) -> bool:
    """Return whether the model gets a reference image with each image: the one that it edits."""
    return any(i.reference for i in inputs_of(config))


def fit_of_references(config: Config) -> ReferenceFit | None:
    """Return how reference images are resized; None for a model that gets none."""
    sizes = config.family.references
    if sizes is None or not reads_references(config):
        return None
    from modules.data.references import ReferenceFit  # an editing model's, whose record has imported it

    return ReferenceFit(sizes, follows_image=config.data.reference_size == "image")


def num_references(config: Config) -> int:
    """Return how many images of the trained size a sample's reference images amount to, for the memory estimate.

    That is the most that a concept's settings name, and more if the pipeline's size is larger than a resolution.
    """
    fit = fit_of_references(config)
    if fit is None:
        return 0
    concepts = [c.image for c in config.concepts if c.enabled]
    fixed = (config.data.fixed_width_px, config.data.fixed_height_px)
    usual = [fixed] if all(fixed) else [sides_of(r) for r in config.data.resolution_px]
    sizes = usual + [sides_of(r) for image in concepts for r in image.resolution_px]
    share = 1 if fit.follows_image else math.ceil(fit.sizes.area_px / min(map(math.prod, sizes)))
    return _most_references(config) * share


def seen_tokens(config: Config) -> int:
    """Return the tokens of the reference images that the text encoder reads with a caption, at most."""
    seen = config.family.seen_with_captions
    return 0 if seen is None else seen.num_tokens * _most_references(config)


def _most_references(config: Config) -> int:
    """Return the most reference images of an image that the settings of a concept name, at least one."""
    concepts = [c.image for c in config.concepts if c.enabled]
    columns = max((len([c for c in i.conditioning_columns.split(",") if c.strip()]) for i in concepts), default=0)
    folders = max((sum(f is not None for f in i.conditioning_folders) for i in concepts), default=0)
    return max(1, min(len(inputs_of(config)), max(columns, folders)))


def weighs_areas(config: Config) -> bool:
    """Return whether masks weigh the loss.

    They do not for an inpainting model, which learns the whole image from its unmasked areas: as in OneTrainer, its
    masks are the areas to inpaint.
    """
    return config.masks.enabled and not inpaints(config)


def _has_denoiser(config: Config) -> bool:
    return method_in_use(config.training)[0].trains_on == "latents"


def adapter_form(config: Config) -> FileForm:
    """Return the form of a run's adapter files: the one that was chosen, or the usual one of the family."""
    form = config.output.format
    return config.family.adapter_form if form == "auto" else form


# The parts and embeddings that a run trains.


def trained_parts(config: Config) -> list[PartSpec]:
    """Return the parts whose weights, or adapters, a run trains: none in a run that trains embeddings alone."""
    if config.training.trains == "embedding":
        return []
    return [p for p in config.family_parts if p.trainable and config.part(p.name).train]


def needs_autocast(config: Config) -> bool:
    """Return whether the passes of training steps run under autocast.

    An adapter's run does not if the weights of the denoiser and of all trained parts are bfloat16, as is its precision:
    then nothing has to be cast but the adapter's factors, and the model's own code computes in float32 what must be.
    float16 keeps autocast, in which norms and sums have the range of float32.
    """
    training = config.training
    if training.trains != "adapter" or training.precision != "bfloat16" or trained_embeddings(config):
        return True
    if not ADAPTERS[config.adapter.name].computes_in_input_dtype(config.adapter):
        return True
    from modules.config.quantized_parts import quantized_parts  # the formats, which the window has no need of

    quantized = quantized_parts(config)
    passed = {p.name for p in (config.family.denoiser, *trained_parts(config))}
    return any(quantized.plain_dtype(name, config.part(name).dtype) != training.precision for name in passed)


def guides_samples(config: Config) -> bool:
    """Return whether a run needs a part that guides samples (the role "guidance"): for them, or to save it."""
    if config.training.trains == "full" or method_of(config).samples_images or config.reward.models:
        return True
    return any(prompt.enabled and config.family.doubles_batch(prompt.guidance) for prompt in config.sampling.prompts)


def unread_parts(config: Config) -> tuple[str, ...]:
    """Return the parts whose weights a run does not need: all but the trained ones if it trains on pixels, and a part
    that guides samples if none is guided.
    """
    if not trains_on_pixels(config):
        return () if guides_samples(config) else config.family.names_of("guidance")
    trained = {p.name for p in trained_parts(config)}
    return tuple(p.name for p in config.family.parts if p.name not in trained)


def supports_embeddings(config: Config) -> bool:
    """Return whether the text encoders of the family can get embeddings."""
    return bool(config.family.text.embedding_tensors)


def embeddings_in_use(config: Config) -> tuple[EmbeddingSettings, ...]:
    """Return the embeddings of a run, trained or only used; a run that trains the VAE reads no text."""
    if config.training.trains == "vae" or not supports_embeddings(config):
        return ()
    return config.embeddings.words


def trained_encoders(config: Config) -> tuple[str, ...]:
    """Return the text encoders for which embeddings are trained."""
    return tuple(n for n in config.family.text.embedding_tensors if config.part(n).train_embedding)


def trained_embeddings(config: Config) -> tuple[EmbeddingSettings, ...]:
    """Return the embeddings that a run trains."""
    return tuple(w for w in embeddings_in_use(config) if w.train) if trained_encoders(config) else ()


def embedding_rates(config: Config) -> Mapping[str, float]:
    """Return the learning rate of each trained embedding by its placeholder, without the learning rate scaler."""
    general = config.embeddings.learning_rate
    fallback = config.training.learning_rate if general is None else general
    return {w.placeholder: fallback if w.learning_rate is None else w.learning_rate for w in trained_embeddings(config)}


def key_of_embedding(embedding: EmbeddingSettings) -> str:
    """Return the key of an embedding in backups: its UUID, so that the placeholder may change, or the placeholder."""
    return embedding.uuid.strip() or embedding.placeholder
