"""Scores of the images of checkpoints: by the reward models on this computer, and by their similarity to the training
images. Nothing is downloaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from modules.config.schema import Config
from modules.data.images import BrokenImageError, open_image, upright
from modules.formats.published_files import FileRequest, PublishedFile, file_request, find_file
from modules.rewards.composite import build_rewards
from modules.rewards.protocol import RewardContext
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer, wanted_files
from modules.rewards.similarity import CLIP_SIMILARITY, DINO_SIMILARITY, SIMILARITIES, ImageEncoder, SimilaritySpec
from modules.system.devices import Device, move
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import plain_reason
from trainer.data.datasets import datasets_of
from trainer.job import Job
from trainer.jobs.checkpoints import score_label
from trainer.run.machine import machine_of
from trainer.run_folder.checkpoints import Comparison, images_dir, write_comparison

_MAX_TRAINING_IMAGES = 64
_LONGEST_SIDE_PX = 768  # of a training image: the encoders read 224 px

Score = Callable[[torch.Tensor, str], float]
"""Returns the score of an image (1, 3, P, P) in [0, 1] and its prompt."""


def score_comparisons(
    comparisons: Sequence[Comparison],
    configs: Sequence[Config],
    job: Job,
    *,
    similarities: Collection[str] = tuple(SIMILARITIES),
    dino_model: str = "",
) -> list[Comparison]:
    """Return comparisons with the scores of their images; what cannot be measured is in their notes.

    A score that an image has already is kept. The models are loaded one after another, each once for all runs.
    """
    config = configs[0]
    device = machine_of(config.general, config.training.precision).train_device
    scorers, notes = scorers_here(config)
    folders, lacking = similarity_folders(config, similarities, dino_model)
    scored = [comparison.with_notes([*notes, *lacking]) for comparison in comparisons]
    for scorer in scorers:
        reward = cache(partial(_load_reward, scorer, config, device, job))
        scored = [_with_scores(c, scorer.kind, reward, device, job) for c in scored]
    for spec, folder in folders.items():
        encoder = cache(partial(load_factory(spec.factory), folder, RewardContext(device)))
        for number, of_run in enumerate(configs):
            similarity = partial(_load_similarity, of_run, encoder, device, job)
            scored[number] = _with_scores(scored[number], spec.score, similarity, device, job)
    return scored


def scorers_here(config: Config) -> tuple[list[Scorer], list[str]]:
    """Return the reward models that are on this computer, with the files that a config names for them, and a note about
    the others.

    Simple measures count if the config uses them; the user's own code is never run, and nothing is sent to servers.
    """
    by_kind = {scorer.kind: scorer for scorer in reversed(config.reward.models) if scorer.enabled}
    here, lacking = [], []
    for kind, spec in REWARDS.items():
        is_elsewhere = spec.runs_code or spec.client
        if is_elsewhere or not (spec.files or kind in by_kind) or not all(p.is_installed for p in spec.packages):
            continue
        scorer = by_kind.get(kind, Scorer(kind=kind))
        if all(_is_here(wanted, config) for wanted in wanted_files(scorer)):
            here.append(scorer)
        else:
            lacking.append(spec.label)
    note = f"Not on this computer, so nothing is scored by: {', '.join(lacking)}."
    return here, [note] if lacking else []


def similarity_folders(
    config: Config, names: Collection[str], dino_model: str = ""
) -> tuple[dict[SimilaritySpec, Path], list[str]]:
    """Return the folders on this computer of the encoders of some similarities, and a note about each missing one.

    A CLIP model that a config names goes before the published one, and so does `dino_model`.
    """
    folders, notes = {}, []
    for spec in (SIMILARITIES[name] for name in SIMILARITIES if name in names):
        requests = [file_request(spec.published, dino_model if spec is DINO_SIMILARITY else "")]
        if spec is CLIP_SIMILARITY:
            own = (wanted for scorer in config.reward.models for wanted in wanted_files(scorer))
            requests[:0] = [w for w in own if _is_clip(w.published) and _is_here(w, config)]
        try:
            folder = next(
                filter(None, (find_file(w, hub_cache_dir=config.model.hub_cache_dir) for w in requests)), None
            )
        except DarkroomError as error:
            notes.append(f"{spec.label} is not measured: {error}")
            continue
        if folder is None:
            needs = f"{requests[-1].description}, about {requests[-1].published.size_text}"
            notes.append(f"The similarity to the {spec.label[:1].lower()}{spec.label[1:]} needs {needs}.")
        else:
            folders[spec] = folder
    return folders, notes


def _is_clip(published: PublishedFile) -> bool:
    """Return whether a reward model's file is a folder with CLIP; a language model's folder has its tokenizer, too."""
    return not (published.name or published.further)


def _is_here(wanted: FileRequest, config: Config) -> bool:
    try:
        return find_file(wanted, hub_cache_dir=config.model.hub_cache_dir) is not None
    except DarkroomError:  # the user's own file is gone
        return False


def _load_reward(scorer: Scorer, config: Config, device: Device, job: Job) -> Score:
    """Return the score of a single reward model, with a weight of 1."""
    alone = scorer.model_copy(update={"weight": 1.0})
    context = RewardContext(device, offline=True, hub_cache_dir=config.model.hub_cache_dir, check=job.desk.check)
    reward = build_rewards([alone], context)
    return lambda image_13PP, prompt: reward(image_13PP, [prompt]).total_B.item()


def _load_similarity(config: Config, encoder: Callable[[], ImageEncoder], device: Device, job: Job) -> Score:
    """Return the mean cosine similarity of an image's embedding to the embeddings of a run's training images.

    At most `_MAX_TRAINING_IMAGES` of them are read, spread evenly. Raises DarkroomError without any, and OSError.
    """
    examples = datasets_of(config).training.examples
    paths = [e.image.path for e in examples[:: -(-len(examples) // _MAX_TRAINING_IMAGES) or 1] if e.image.has_image]
    if not paths:
        raise DarkroomError("The run has no training images.")
    embeddings_D: list[torch.Tensor] = []
    for number, path in enumerate(paths):
        job.progress("reading the training images", number, len(paths))
        with open_image(path) as raw:
            image = upright(raw).convert("RGB")
        image.thumbnail((_LONGEST_SIDE_PX, _LONGEST_SIDE_PX))
        embeddings_D.append(encoder().images(_as_tensor(image, device))[0])
    mean_D = torch.stack(embeddings_D).mean(dim=0)
    return lambda image_13PP, _prompt: (encoder().images(image_13PP)[0] @ mean_D).item()


@torch.no_grad()
def _with_scores(comparison: Comparison, name: str, load: Callable[[], Score], device: Device, job: Job) -> Comparison:
    """Return a comparison with a score for each of its images, or with a note about why it has none; also write it.

    The score is loaded if an image has none yet.
    """
    prompts = {cell.image: comparison.columns[cell.column].prompt for cell in comparison.cells}
    missing = [image for image in prompts if name not in comparison.scores.get(image, {})]
    try:
        if missing:
            job.progress(f"loading {score_label(name)}", 0, 1)
            score = load()
        for number, image in enumerate(missing):
            job.progress(f"scoring: {score_label(name)}", number, len(missing))
            try:
                with open_image(images_dir(comparison.run_dir) / image) as stored:
                    pixels_13PP = _as_tensor(stored.convert("RGB"), device)
            except BrokenImageError as error:
                comparison = comparison.with_notes([f"An image has no scores: {error}"])
                continue
            value = score(pixels_13PP, prompts[image])
            if math.isfinite(value):  # a reward may not apply to a prompt
                comparison = comparison.with_scores(image, {name: value})
    except (DarkroomError, OSError) as error:
        comparison = comparison.with_notes(
            [f"Not everything is scored by {score_label(name)}: {plain_reason(error, names_file=True)}."]
        )
    finally:
        write_comparison(comparison)
    return comparison


def _as_tensor(image: Image.Image, device: Device) -> torch.Tensor:
    """Return an RGB image as a tensor (1, 3, P, P) in [0, 1]."""
    unit_PP3 = torch.from_numpy(np.array(image, dtype=np.float32)) / 255
    return move(unit_PP3.permute(2, 0, 1)[None].contiguous(), device)
