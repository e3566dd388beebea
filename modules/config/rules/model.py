"""The model variants and the training of a VAE: what they cannot be combined with, and settings that only they use."""

from __future__ import annotations

from collections.abc import Iterator

from modules.adapters.registry import ADAPTERS, adapter_labels
from modules.adapters.settings import decomposition_axis
from modules.config import usage
from modules.config.schema import Config
from modules.data.inputs import EDITED_IMAGE
from modules.families.registry import files_of
from modules.families.spec import BASE_VARIANT
from modules.system.problem import Problem


def model_variant(config: Config) -> Iterator[Problem]:
    """Yield problems with a variant that the family does not have, and with methods that need the base model."""
    spec, name = config.family, config.model.variant
    if name not in (BASE_VARIANT, *spec.variants, *spec.inputs):
        yield Problem(
            "model.variant",
            f"{spec.label} has no {name} models.",
            advice="Choose another model variant, or another model family.",
        )
    whats = {"depth": "depth map", EDITED_IMAGE: "reference image"}
    what = next((whats[i.name] for i in usage.inputs_of(config) if i.name in whats), "mask and no conditioning image")
    method = usage.method_of(config)
    if usage.is_variant(config) and (method.samples_images or usage.learns_from(config) != "images"):
        yield Problem(
            "training.method",
            f"{method.label} cannot train {name} models: its images have no {what}.",
            advice="Choose Denoising, or the base model.",
        )
    output = config.output
    if usage.reads_depth(config) and config.training.trains == "full" and output.model_format == "single_file":
        yield Problem(
            "output.model_format",
            "A single file of a depth model also contains its depth estimator, which a run does not load.",
            advice="Save the model as a diffusers folder.",
        )


def single_file_of_family(config: Config) -> Iterator[Problem]:
    """Yield an error if a fine-tune is to be a single file of a family that has no such form."""
    if config.training.trains != "full" or config.output.model_format != "single_file":
        return
    if all(model.single_file is None for model in files_of(config.family.name).models):
        yield Problem(
            "output.model_format",
            f"{config.family.label} models cannot be saved as a single file.",
            advice="Save the model as a diffusers folder.",
        )


def scaled_float8_file(config: Config) -> Iterator[Problem]:
    """Yield an error if the result has no form in scaled float8: only the single file of a denoiser alone has one."""
    if config.output.dtype != "scaled_float8" or config.training.trains == "vae":  # `autoencoder` refuses float8 of it
        return
    label = config.family.label
    if config.training.trains != "full":
        yield Problem(
            "output.dtype",
            "Float8 with scales is a form of whole models: adapters and embeddings have none.",
            advice="Choose float8, which scales a LoRA by its alpha, or float16.",
        )
    elif not files_of(config.family.name).has_denoiser_alone:
        yield Problem(
            "output.dtype",
            f"Float8 with scales is for single files with a transformer alone; files of {label} contain all parts.",
            advice="Choose float8 or float16.",
        )
    elif config.output.model_format != "single_file":
        yield Problem(
            "output.dtype",
            "A diffusers folder has no scales for float8.",
            advice="Set the model format to a single file, or choose float8 or float16.",
        )


def masks_of_variant(config: Config) -> Iterator[Problem]:
    """Yield notes about settings of masks that have no effect with the model variant."""
    masks = config.masks
    if masks.enabled and usage.inpaints(config):
        yield Problem(
            "masks.enabled",
            "Masked training has no effect on an inpainting model: its masks are what it inpaints, and its loss counts "
            "everywhere.",
            "info",
        )


def training_adapter(config: Config) -> Iterator[Problem]:
    """Yield an error if the training adapter would stay in the result."""
    path, name = "model.training_adapter", config.model.training_adapter.strip()
    if not name or not usage.uses_denoiser(config):
        return
    if config.training.trains == "full":
        yield Problem(
            path,
            "A fine-tune cannot use a training adapter: it trains the weights that the adapter is merged into, so the "
            "result would contain it.",
            advice="Train a LoRA, or fine-tune a model that is not distilled.",
        )
    spec = ADAPTERS[config.adapter.name]
    is_dora = bool(decomposition_axis(config.adapter))
    if config.training.trains == "adapter" and (is_dora or spec.files.depends_on_weight):
        yield Problem(
            path,
            f"{'DoRA' if is_dora else spec.label} depends on the weights of the model, which contain the training "
            "adapter while it trains: without it, the result would be different.",
            advice=f"Choose {adapter_labels(needs_model=False)} without DoRA, or remove the training adapter.",
        )


def sampling_model(config: Config) -> Iterator[Problem]:
    """Yield an error if the model that samples are drawn with lacks the weights that a run trains."""
    if config.sampling.model.strip() and config.training.trains == "full":
        yield Problem(
            "sampling.model",
            "A fine-tune cannot be sampled with another model: its trained weights are the base model's own, and the "
            "sampling model has others in their place.",
            advice="Train a LoRA, or leave the sampling model empty.",
        )


def sample_images(config: Config) -> Iterator[Problem]:
    """Yield problems with samples that inpaint."""
    for index, prompt in enumerate(config.sampling.prompts):
        path = f"sampling.prompts.{index}"
        if not prompt.enabled or not prompt.inpainting:
            continue
        if not usage.inpaints(config):
            yield Problem(
                f"{path}.inpainting",
                f"Sample {index + 1} inpaints, but the model is not an inpainting model: it is sampled from the prompt "
                "alone.",
                "warning",
                "Switch Inpaint off, or choose an inpainting model.",
            )
            continue
        for name, label in (("base_image", "base image"), ("mask_image", "mask image")):
            if not getattr(prompt, name).strip():
                yield Problem(
                    f"{path}.{name}",
                    f"Sample {index + 1} inpaints, but has no {label}.",
                    advice=f"Choose its {label}, or switch Inpaint off.",
                )


def text_encoders(config: Config) -> Iterator[Problem]:
    """Yield an error if all text encoders of a family are left out."""
    encoders = [part for part in config.family_parts if part.role == "text_encoder"]
    if encoders and not config.family.names_of("text_encoder"):
        yield Problem(
            f"parts.{encoders[0].name}.include",
            f"All text encoders of {config.family.label} are switched off, so that the model would read no prompt.",
            advice=f"Switch on at least one of them: {', '.join(part.label for part in encoders)}.",
        )


_DENOISE = "denoise"


def autoencoder(config: Config) -> Iterator[Problem]:
    """Yield an error for each setting that a run of the VAE cannot have."""
    if not usage.trains_on_pixels(config):
        return
    family = config.family
    if not family.names_of("vae"):
        yield Problem(
            "training.trains", f"{family.label} has no VAE to train.", advice="Choose another training target."
        )
    for part in family.parts:
        if part.role == "vae" and part.published_in:
            message = f"The {part.label.lower()} of {family.label} cannot be trained."
            yield Problem("training.trains", message, advice="Choose another training target.")
        elif part.role == "vae" and part.model.vae_file is None and config.output.model_format == "single_file":
            message = f"The VAE of {family.label} has no single-file form here."
            yield Problem("output.model_format", message, advice="Choose the diffusers format, a folder.")
    if config.training.method.name != _DENOISE:
        yield Problem(
            "training.method",
            "A VAE is trained by reconstructing images. The method set here trains the denoiser.",
            advice="Set the method to Denoising: with the training target VAE it is not used.",
        )
    yield from _dtypes(config)
    yield from _masks_and_concepts(config)


def _dtypes(config: Config) -> Iterator[Problem]:
    family = config.family
    if config.training.precision == "float16" and family.latents.overflows_in_float16:
        yield Problem(
            "training.precision",
            f"The VAE of {family.label} overflows in float16, so it cannot be trained in it.",
            advice="Set the precision to bfloat16 or float32.",
        )
    for part in usage.trained_parts(config):
        settings = config.part(part.name)
        if settings.dtype == "float16" and family.latents.overflows_in_float16:
            yield Problem(
                f"parts.{part.name}.dtype",
                f"The VAE of {family.label} overflows in float16, so it cannot be trained with float16 weights.",
                advice="Set the weight dtype to float32 or bfloat16. The result can still be written in float16.",
            )
        if settings.offload_fraction > 0:
            yield Problem(
                f"parts.{part.name}.offload_fraction",
                "The layers of a VAE that is trained cannot be offloaded.",
                advice="Set the layer offload fraction to 0 and switch on gradient checkpointing.",
            )
    if config.output.dtype in ("float8", "scaled_float8"):
        yield Problem(
            "output.dtype",
            "A VAE cannot be saved in float8: its images would be visibly coarse.",
            advice="Set the output dtype to float32, bfloat16 or float16.",
        )


def _masks_and_concepts(config: Config) -> Iterator[Problem]:
    if config.masks.enabled and config.masks.prior_preservation_weight > 0:
        yield Problem(
            "masks.prior_preservation_weight",
            "Masked prior preservation needs predictions of the denoiser, which a run of the VAE does not make.",
            advice="Set it to 0.",
        )
    for index, concept in enumerate(config.concepts):
        if concept.enabled and concept.kind == "prior_prediction":
            yield Problem(
                f"concepts.{index}.kind",
                "A concept of the type Prior prediction needs predictions of the denoiser, which a run of the VAE does "
                "not make.",
                advice="Set its concept type to Training or Regularization, or switch it off.",
            )
