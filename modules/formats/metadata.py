"""The metadata of LoRA files and checkpoints, as A1111, Forge, ComfyUI and ModelSpec readers expect it.

All values are strings.
`ss_*` keys are kohya's (sd-scripts) and are shown on the model's card; `modelspec.*` is Stability's ModelSpec 1.0.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LoraFacts:
    """The facts that a LoRA file's metadata describes."""

    title: str
    base_model: str
    base_version: str
    architecture: str
    rank: int
    alpha: float
    resolution_px: int
    clip_skip: int
    num_images: int
    epochs: int
    steps: int
    seed: int
    created: datetime
    network_module: str = "networks.lora"
    network_args: Mapping[str, str] = field(default_factory=dict)
    prediction: str = "epsilon"
    tag_frequency: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    config_json: str = ""
    trigger_phrase: str = ""
    is_v2: bool = False
    thumbnail: str = ""
    """An image of up to 256x256 as a data URL."""


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """The facts that a checkpoint's metadata describes.

    `architecture` is ModelSpec's id, `implementation` the code base whose layout the file has, `dtype` the plain name
    of its dtype.
    """

    title: str
    architecture: str
    implementation: str
    prediction: str
    resolution_px: int
    dtype: str
    created: datetime


def checkpoint_metadata(facts: CheckpointFacts, *, payload_sha256: str) -> dict[str, str]:
    """Return the metadata of a single-file checkpoint (ModelSpec 1.0.1).

    The prediction type is stored under the spec's key and under ComfyUI's, which differs.
    """
    prediction = "v" if facts.prediction == "v_prediction" else "epsilon"
    return {
        "format": "pt",
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": facts.architecture,
        "modelspec.implementation": facts.implementation,
        "modelspec.title": facts.title,
        "modelspec.date": facts.created.isoformat(timespec="seconds"),
        "modelspec.resolution": f"{facts.resolution_px}x{facts.resolution_px}",
        "modelspec.prediction_type": prediction,
        "modelspec.predict_key": prediction,
        "modelspec.unet_dtype": facts.dtype,
        "modelspec.vae_dtype": facts.dtype,
        "modelspec.hash_sha256": f"0x{payload_sha256}",
        "software": "Darkroom",
    }


def lora_metadata(facts: LoraFacts, *, payload_sha256: str) -> dict[str, str]:
    """Return the metadata of a LoRA file; only `modelspec.date` differs between two saves of the same weights."""
    metadata = {
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
        "ss_num_train_images": str(facts.num_images),
        "ss_num_epochs": str(facts.epochs),
        "ss_steps": str(facts.steps),
        "ss_seed": str(facts.seed),
        "ss_tag_frequency": json.dumps(facts.tag_frequency, ensure_ascii=False),
        "sshs_model_hash": payload_sha256,
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{facts.architecture}/lora",
        "modelspec.implementation": "diffusers",
        "modelspec.title": facts.title,
        "modelspec.date": facts.created.isoformat(timespec="seconds"),
        "modelspec.resolution": f"{facts.resolution_px}x{facts.resolution_px}",
        "modelspec.prediction_type": "v" if facts.prediction == "v_prediction" else "epsilon",
        "modelspec.hash_sha256": f"0x{payload_sha256}",
        "software": "Darkroom",
    }
    optional = {
        "darkroom_config": facts.config_json,
        "modelspec.trigger_phrase": facts.trigger_phrase,
        "modelspec.thumbnail": facts.thumbnail,
    }
    return metadata | {name: text for name, text in optional.items() if text}


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
