"""The images of the newest rollouts as files in the run's folder, for the window."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image

from modules.system.atomic import write_bytes
from trainer.methods.rollouts import Chunk, SampledGroup
from trainer.rollout_events import Mark, RolloutSampled, SampledImage

_KEPT = 2  # the newest rollout and the one before it, which a window may still show


@dataclass(eq=False)
class RolloutImages:
    """Writes the images of the rollout before an optimizer step; `save` is an `OnImages`."""

    run_dir: Path
    step: int
    _paths: dict[tuple[int, int, int], Path] = field(default_factory=dict)

    def save(self, chunk: Chunk, images_B3PP: torch.Tensor) -> None:
        """Write the images (P, 3, H, W) of a chunk as JPEG files. Raises OSError."""
        bytes_BPP3 = (images_B3PP.detach() * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        for row, pixels in enumerate(bytes_BPP3):
            place = (chunk.prompts.micro_batch, row, chunk.sample)
            path = self._folder / f"{place[0]:02d}-{row:02d}-{chunk.sample:02d}.jpg"
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, format="JPEG", quality=90)
            write_bytes(path, buffer.getvalue())
            self._paths[place] = path

    def event(self, sampled: SampledGroup) -> RolloutSampled:
        """Return the event of a rollout, the images of a prompt one after another, and remove older rollouts."""
        images: dict[tuple[int, int], list[SampledImage]] = {}
        for chunk in sampled.chunks:
            for row, prompt in enumerate(chunk.prompts.captions):
                place = (chunk.prompts.micro_batch, row)
                scores = {n: own[row] for n, own in chunk.scores.items() if math.isfinite(own[row])}
                reward = chunk.rewards[row] if math.isfinite(chunk.rewards[row]) else None
                path = str(self._paths[(*place, chunk.sample)])
                images.setdefault(place, []).append(SampledImage(path, prompt, reward, scores))
        self._remove_older()
        return RolloutSampled(self.step, tuple(image for own in images.values() for image in _marked(own)))

    @property
    def _folder(self) -> Path:
        return self.run_dir / "rollouts" / f"{self.step:06d}"

    def _remove_older(self) -> None:
        folders = sorted(f for f in self._folder.parent.iterdir() if f.is_dir() and f.name.isdecimal())
        older = [f for f in folders if int(f.name) <= self.step]
        for folder in older[:-_KEPT]:
            shutil.rmtree(folder, ignore_errors=True)


def _marked(images: Sequence[SampledImage]) -> list[SampledImage]:
    """Return the images of a prompt with the best and the worst marked, if their rewards differ."""
    rewards = [image.reward for image in images if image.reward is not None]
    if not rewards or min(rewards) == max(rewards):
        return list(images)
    marks: dict[float | None, Mark] = {max(rewards): "best", min(rewards): "worst"}
    marked = []
    for image in images:
        mark = marks.pop(image.reward, "")  # one of each
        marked.append(SampledImage(image.path, image.prompt, image.reward, image.by_reward_model, mark))
    return marked
