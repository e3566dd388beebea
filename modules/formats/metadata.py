"""The metadata of LoRA files and checkpoints, as A1111, Forge, ComfyUI and ModelSpec readers expect it.

All values are strings. `ss_*` keys are kohya's (sd-scripts) and are shown on the model's card; `modelspec.*` is
Stability's ModelSpec 1.0.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from modules.system.regular_files import json_object_in

FOLDED_KEY = "darkroom_model_metadata"
"""The key of a model's metadata in the header of a folder's denoiser, as JSON."""

# ModelSpec knows these two alone; a model that predicts a velocity by flow matching states none.
_PREDICTION_WORDS = {"epsilon": "epsilon", "v_prediction": "v"}


@dataclass(frozen=True, slots=True)
class ConceptFacts:
    """A concept in a file's metadata: its name, how often each image is used per epoch, and its number of images."""

    name: str
    repeats: float
    num_images: int


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The images of a run, as far as a file's metadata may describe them.

    `buckets` are the samples of the first epoch by width and height in pixels, and by the number of frames of clips;
    `mean_aspect_error` is the mean difference between the aspect ratios of the images and of their buckets.
    `tag_frequency` contains pieces of the captions, by concept; it is empty where the user does not want that.
    """

    concepts: Sequence[ConceptFacts]
    buckets: Mapping[tuple[int, ...], int]
    mean_aspect_error: float
    tag_frequency: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoraFacts:
    """The facts that a LoRA file's metadata describes.

    `started` is when its training started. `settings` are more of sd-scripts' keys, without their prefix "ss_", with
    their values as text.
    """

    title: str
    base_model: str
    base_version: str
    architecture: str
    rank: int
    alpha: float
    resolution_px: int
    clip_skip: int
    seed: int
    created: datetime
    started: datetime | None = None
    dataset: DatasetFacts | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    network_module: str = "networks.lora"
    network_args: Mapping[str, str] = field(default_factory=dict)
    prediction: str = "epsilon"
    is_v2: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """The facts that a checkpoint's metadata describes.

    `architecture` is ModelSpec's id, `implementation` the code base whose layout the file has, `dtypes` the plain names
    of its denoiser's and its VAE's dtype, empty for a file of the denoiser alone. `created` is when the model was made,
    None if that is not known.
    """

    title: str
    architecture: str
    implementation: str
    prediction: str
    resolution_px: int
    dtypes: tuple[str, str]
    created: datetime | None


def checkpoint_metadata(
    facts: CheckpointFacts, kept: Mapping[str, str] | None = None, *, payload_sha256: str
) -> dict[str, str]:
    """Return the metadata of a single-file checkpoint (ModelSpec 1.0.1).

    `kept` is more metadata, such as from the file it was converted from; its title, date and resolution stay, and
    entries that describe the file itself are replaced. The prediction type is stored under the spec's key and under
    ComfyUI's, which differs.
    """
    prediction = _PREDICTION_WORDS.get(facts.prediction)
    unet_dtype, vae_dtype = facts.dtypes
    of_the_model = {
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.implementation": facts.implementation,
        "modelspec.title": facts.title,
        "modelspec.resolution": f"{facts.resolution_px}x{facts.resolution_px}",
        "software": "Darkroom",
    }
    if facts.created is not None:
        of_the_model["modelspec.date"] = facts.created.isoformat(timespec="seconds")
    of_the_file = {
        "format": "pt",
        "modelspec.architecture": facts.architecture,
        **({"modelspec.prediction_type": prediction, "modelspec.predict_key": prediction} if prediction else {}),
        **({"modelspec.unet_dtype": unet_dtype} if unet_dtype else {}),
        **({"modelspec.vae_dtype": vae_dtype} if vae_dtype else {}),
        "modelspec.hash_sha256": f"0x{payload_sha256}",
    }
    lasting = lasting_metadata(kept or {})
    if lasting.get("modelspec.implementation") == "diffusers":  # the layout that the model had elsewhere
        del lasting["modelspec.implementation"]
    return of_the_model | lasting | of_the_file


def lasting_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a model that stay true in another file of it: all but the hashes of the file itself."""
    return {n: text for n, text in metadata.items() if n != "modelspec.hash_sha256" and not n.startswith("sshs_")}


def fold_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a model as one entry for the header of its denoiser in a diffusers folder.

    Header entries are ignored by diffusers and, unlike a separate file, vanish when another program replaces the
    weights they describe. A single entry, because a `modelspec.*` key there would describe the denoiser alone.
    """
    lasting = lasting_metadata(metadata)
    return {FOLDED_KEY: json.dumps(lasting, sort_keys=True, ensure_ascii=False)} if lasting else {}


def unfold_metadata(header: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata that `fold_metadata` stored in a header; empty if it is missing or not valid."""
    stored = json_object_in(header.get(FOLDED_KEY, "{}")) or {}
    return {name: str(text) for name, text in stored.items()}


def lora_metadata(facts: LoraFacts, of_result: Mapping[str, str], *, payload_sha256: str) -> dict[str, str]:
    """Return the metadata of a LoRA file, including what every result of a run has, such as steps and thumbnail.

    Only the dates differ between two saves of the same weights.
    """
    metadata = {
        **{f"ss_{name}": text for name, text in facts.settings.items()},
        "ss_base_model_version": facts.base_version,
        "ss_v2": str(facts.is_v2),
        "ss_network_module": facts.network_module,
        "ss_network_dim": str(facts.rank),
        "ss_network_alpha": f"{facts.alpha:g}",
        "ss_network_args": json.dumps(facts.network_args),
        "ss_output_name": facts.title,
        "ss_sd_model_name": facts.base_model,
        "ss_resolution": f"({facts.resolution_px}, {facts.resolution_px})",
        "ss_clip_skip": str(facts.clip_skip + 1),
        "ss_seed": str(facts.seed),
        "ss_training_finished_at": str(facts.created.timestamp()),
        "sshs_model_hash": payload_sha256,
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{facts.architecture}/lora",
        "modelspec.implementation": "diffusers",
        "modelspec.title": facts.title,
        "modelspec.date": facts.created.isoformat(timespec="seconds"),
        "modelspec.resolution": f"{facts.resolution_px}x{facts.resolution_px}",
        "modelspec.hash_sha256": f"0x{payload_sha256}",
        "software": "Darkroom",
    }
    thumbnail = of_result.get("modelspec.thumbnail", "")
    optional = {
        "ss_training_started_at": "" if facts.started is None else str(facts.started.timestamp()),
        "modelspec.prediction_type": _PREDICTION_WORDS.get(facts.prediction, ""),
        "ssmd_cover_images": json.dumps([thumbnail.partition(",")[2]]) if thumbnail else "",
    }
    metadata |= {**of_result, **{name: text for name, text in optional.items() if text}}
    return metadata if facts.dataset is None else metadata | dataset_metadata(facts.dataset)


def dataset_metadata(facts: DatasetFacts) -> dict[str, str]:
    """Return the metadata of a run's images in sd-scripts' shapes, which A1111 and Forge show on a LoRA's card.

    As in sd-scripts, the number of images and the counts of buckets refer to an epoch, with repeats.
    """
    buckets = {
        str(index): {"resolution": list(size), "count": samples}
        for index, (size, samples) in enumerate(sorted(facts.buckets.items()))
    }
    concepts = {c.name: {"n_repeats": _plain(c.repeats), "img_count": c.num_images} for c in facts.concepts}
    metadata = {
        "ss_num_train_images": str(sum(facts.buckets.values())),
        "ss_dataset_dirs": json.dumps(concepts, ensure_ascii=False),
        "ss_bucket_info": json.dumps({"buckets": buckets, "mean_img_ar_error": facts.mean_aspect_error}),
    }
    if facts.tag_frequency:
        metadata["ss_tag_frequency"] = json.dumps(facts.tag_frequency, ensure_ascii=False)
    return metadata


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def tag_frequency(captions_by_folder: Mapping[str, list[str]]) -> dict[str, dict[str, int]]:
    """Return how often each comma-separated tag occurs in a folder's captions, the most frequent first."""
    counts: dict[str, dict[str, int]] = {}
    for folder, captions in captions_by_folder.items():
        tags: dict[str, int] = {}
        for caption in captions:
            for tag in filter(None, (t.strip() for t in caption.split(","))):
                tags[tag] = tags.get(tag, 0) + 1
        counts[folder] = dict(sorted(tags.items(), key=lambda item: (-item[1], item[0])))
    return counts
