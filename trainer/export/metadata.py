"""The metadata of a run's result: facts about its images and settings, the embedded config, and a thumbnail.

The keys and shapes of the facts are sd-scripts', which A1111, Forge and Civitai show on a model's card. A fact that
does not hold for a run is left out.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from modules.adapters.training_settings import max_norm_of
from modules.config.codec import encode
from modules.config.schema import Config
from modules.config.sections.noise import Noise
from modules.config.usage import method_of, rate_factor_of
from modules.data.buckets import Size
from modules.data.dataset import Dataset, concept_repeats_of
from modules.data.images import open_image
from modules.diffusion.weightings import WEIGHTINGS
from modules.formats.metadata import ConceptFacts, DatasetFacts, tag_frequency
from modules.objectives.loss_mix import LossMix, loss_mix_of
from modules.objectives.losses import LOSSES, DeltaSettings
from modules.optim.registry import OPTIMIZERS
from modules.optim.schedule_registry import warmup_length
from modules.settings.field import FieldRecord, Section, records_of
from modules.system.paths import from_root

_MIXED = {"bfloat16": "bf16", "float16": "fp16"}
_HASHED_FROM, _HASHED_BYTES, _HASH_CHARS = 0x100000, 0x10000, 8
_THUMBNAIL_PX = 256
_NOT_SHARED = ("concepts", "concepts_file", "unknown", "remembered")
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_WEIGHTS = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")


def dataset_facts(
    dataset: Dataset, amount: Literal["none", "counts", "names", "tags"], *, run_seed: int
) -> DatasetFacts | None:
    """Return the facts about a run's images that the user wants in the file; None for no facts, or no images.

    "counts" numbers the concepts, "names" names them, and "tags" adds the tags of their captions.
    """
    if amount == "none" or not dataset.examples:
        return None
    names = _names(dataset, is_numbered=amount == "counts")
    captions: dict[str, list[str]] = {name: [] for name in names}
    for example in dataset.examples if amount == "tags" else ():
        captions[names[example.concept]] += example.image.captions
    errors = [
        abs(crop.bucket.aspect - example.image.width_px / example.image.height_px)
        for example in dataset.examples
        for crop in example.resize_crops
    ]
    return DatasetFacts(
        concepts=[
            ConceptFacts(name, float(repeats.exact_repeats), repeats.num_examples)
            for name, repeats in zip(names, concept_repeats_of(dataset.concepts, run_seed=run_seed), strict=True)
        ],
        buckets={_shape_of(size): n for size, n in dataset.samples_by_size(run_seed).items()},
        mean_aspect_error=math.fsum(errors) / len(errors),
        tag_frequency=tag_frequency(captions) if amount == "tags" else {},
    )


def _shape_of(bucket: Size) -> tuple[int, ...]:
    """Return the width and the height of a bucket, and the number of a clip's frames."""
    return bucket.sides_px if bucket.num_frames == 1 else (*bucket.sides_px, bucket.num_frames)


def _names(dataset: Dataset, *, is_numbered: bool) -> list[str]:
    """Return a unique name for every concept."""
    seen: Counter[str] = Counter()
    names = []
    for index, concept in enumerate(dataset.concepts, start=1):
        name = f"concept {index}" if is_numbered else concept.name
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def training_settings(config: Config, dataset: Dataset, *, trained: Iterable[str], total_steps: int) -> dict[str, str]:
    """Return a run's settings under sd-scripts' names; `trained` are the parts that have an adapter.

    `total_steps` is 0 where the length of the run is unknown.
    """
    training, data = config.training, config.data
    facts: dict[str, object] = {
        "learning_rate": training.learning_rate * rate_factor_of(config),
        **_rates(config, list(trained)),
        "lr_scheduler": training.schedule.name,
        "lr_warmup_steps": warmup_length(training.schedule, total_steps),
        "optimizer": OPTIMIZERS[training.optimizer.name].label,
        "batch_size_per_device": training.batch_size,
        "total_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.accumulation_steps,
        "mixed_precision": _MIXED.get(training.precision, "no"),
        "max_grad_norm": training.clip_grad_norm or 0.0,
        "enable_bucket": data.aspect_ratio_bucketing,
    }
    if (norm := max_norm_of(config.adapter)) is not None:
        facts["scale_weight_norms"] = norm
    if total_steps:
        facts["max_train_steps"] = total_steps
    if config.output.embed_dataset != "none" and dataset.examples:
        batches = (math.ceil(n / training.batch_size) for n in dataset.samples_by_size(config.general.seed).values())
        facts["num_batches_per_epoch"] = sum(batches)
    if not method_of(config).samples_images:  # otherwise there is no noise to add, and no caption to drop
        facts |= _denoising(config)
    if model_hash := short_hash(from_root(config.model.base_model)):
        facts["sd_model_hash"] = model_hash
    return {name: str(value) for name, value in facts.items()}


def _rates(config: Config, trained: Sequence[str]) -> dict[str, object]:
    """Return the learning rates of the denoiser and of the text encoders, as far as they are trained."""
    spec = config.family

    def rates_of(names: Iterable[str]) -> list[float]:
        of_parts = (config.part(name).learning_rate for name in names if name in trained)
        factor = rate_factor_of(config)
        return [(config.training.learning_rate if rate is None else rate) * factor for rate in of_parts]

    rates: dict[str, object] = {}
    if denoiser := rates_of(spec.names_of("denoiser")):
        rates["unet_lr"] = denoiser[0]
    if texts := rates_of(spec.names_of("text_encoder")):
        rates["text_encoder_lr"] = texts[0] if len(set(texts)) == 1 else json.dumps(texts)
    return rates


def _denoising(config: Config) -> dict[str, object]:
    noise, loss, weighting = config.training.noise, config.training.loss, WEIGHTINGS[config.training.loss.weighting]
    facts: dict[str, object] = {"caption_dropout_rate": config.data.caption_dropout}
    facts |= _noise(noise)
    if weighting.kohya_gamma:
        facts[weighting.kohya_gamma] = loss.gamma
    if weighting.kohya_flag:
        facts[weighting.kohya_flag] = True
    return facts | _huber(loss_mix_of(loss.mix))


def _huber(mix: LossMix) -> dict[str, object]:
    """Return the loss in sd-scripts' terms, if it is one of theirs: a single pseudo-Huber loss."""
    if len(mix.terms) != 1:
        return {}
    [(name, loss)] = mix.terms
    if loss.strength != 1.0 or not isinstance(loss, DeltaSettings) or loss.form != "pseudo_huber":
        return {}
    return {"loss_type": LOSSES[name].kohya_type, "huber_schedule": loss.schedule, "huber_c": loss.delta}


def _noise(noise: Noise) -> dict[str, object]:
    """Return the noise settings that are on, under the names of sd-scripts."""
    facts: dict[str, object] = {}
    if noise.offset_weight:
        facts["noise_offset"] = noise.offset_weight
        facts["noise_offset_random_strength"] = noise.offset_random_strength
        facts["adaptive_noise_scale"] = noise.offset_adaptive_scale or None
    if noise.pyramid_iterations:
        facts["multires_noise_iterations"] = noise.pyramid_iterations
        facts["multires_noise_discount"] = noise.pyramid_discount
    if noise.input_perturbation:
        facts["ip_noise_gamma"] = noise.input_perturbation
        facts["ip_noise_gamma_random_strength"] = noise.input_perturbation_random_strength
    return facts


def short_hash(file: Path) -> str:
    """Return the short hash by which A1111 and sd-scripts (`ss_sd_model_hash`) name a checkpoint: of 64 KB at 1 MB.

    Empty for a folder, and for a file that cannot be read.
    """
    try:
        with file.open("rb") as opened:
            opened.seek(_HASHED_FROM)
            return hashlib.sha256(opened.read(_HASHED_BYTES)).hexdigest()[:_HASH_CHARS]
    except (OSError, ValueError):
        return ""


def thumbnail_of(samples: Path) -> str:
    """Return the newest sample of the first prompt in a run's samples folder as a data URL of a JPEG, at most 256 px a
    side (ModelSpec 1.0.1, `modelspec.thumbnail`); empty if there is no sample, or if it cannot be read.
    """
    prompts = sorted(f for f in samples.glob("*") if f.is_dir())
    sampled = sorted(f for folder in prompts[:1] for f in folder.glob("step-*") if not f.name.startswith("."))
    if not sampled:
        return ""
    try:
        with open_image(sampled[-1]) as image:
            small = image.convert("RGB")
    except OSError:
        return ""
    small.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def embedded_config(config: Config) -> str:
    """Return the settings to embed, as JSON.

    "settings" leaves out the concepts, the sample prompts and the notes; folders get their defaults, and files keep
    their names alone. "all" embeds everything. Empty where the user wants none.
    """
    if config.output.embed_config == "none":
        return ""
    tree = encode(config)
    if config.output.embed_config == "settings":
        sampling = config.sampling.model_copy(update={"prompts": (), "prompts_file": ""})
        general = config.general.model_copy(update={"notes": ""})
        shared = config.model_copy(update={"concepts": (), "sampling": sampling, "general": general})
        tree = {k: v for k, v in encode(shared).items() if k not in _NOT_SHARED}
        _hide_paths(shared, tree)
    return json.dumps(tree, sort_keys=True, ensure_ascii=False)


def _hide_paths(section: Section, tree: dict[str, Any]) -> None:
    """Replace every path in `tree`, the JSON data of `section`; settings that it does not contain are skipped."""
    for record in records_of(type(section)):
        holder, place = _holder(section, record.path), _holder_in(tree, record.path)
        if place is None or record.name not in place:
            continue
        value = getattr(holder, record.name)
        if record.setting.path_kind:
            place[record.name] = _public_path(str(value), record)
        elif isinstance(value, Section):
            _hide_paths(value, place[record.name])
        elif record.kind == "list" and record.item:
            for item, inner in zip(value, place[record.name], strict=True):
                _hide_paths(item, inner)
        elif record.kind == "map" and record.item:
            for key, item in value.items():
                _hide_paths(item, place[record.name][key])


def _holder(section: Section, path: str) -> Any:
    node: Any = section
    for name in path.split(".")[:-1]:
        node = getattr(node, name)
    return node


def _holder_in(tree: dict[str, Any], path: str) -> dict[str, Any] | None:
    node: Any = tree
    for name in path.split(".")[:-1]:
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else None


def _public_path(value: str, record: FieldRecord) -> str:
    """Return a path as it may be shared: a file's name, a Hugging Face repository, or a folder's default."""
    default = str(record.default)
    if not value or value == default:
        return value
    name = re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    match record.setting.path_kind:
        case "folder":
            return default
        case "save":
            return str(PurePosixPath(default).parent / name)
        case _:
            return value if _is_repository(value) else name


def _is_repository(value: str) -> bool:
    is_named_so = bool(_REPOSITORY.fullmatch(value)) and not value.lower().endswith(_WEIGHTS)
    return is_named_so and not from_root(value).exists()
