"""A person as the reward: the run asks which images of a prompt are the best and the worst, and waits for the answers.

The folder `choices` of the run is the protocol (`trainer/run_folder/choices.py`), so that the window or any other
program can answer.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image

from modules.system.problem import count
from trainer.commands import StopRequested
from trainer.events import PhaseChanged, WarningRaised
from trainer.methods.protocol import StepContext
from trainer.methods.rollout_images import Extremes, as_images
from trainer.methods.rollouts import Chunk
from trainer.rollout_events import ChoicesWanted
from trainer.run_folder.choices import (
    SKIP,
    Answer,
    Request,
    all_requests,
    answer,
    answer_of,
    ask,
    choices_dir,
    drop_pair,
    keep_pair,
    kept_answer,
    request_named,
    withdraw,
    wrong_answer,
)

_SECONDS = 0.25  # between two checks of the folder


def wait_a_moment() -> None:
    """Wait until the next check of the folder."""
    time.sleep(_SECONDS)


class Candidates:
    """Collects the images of a rollout as PNG bytes while it is sampled, in their full size."""

    def __init__(self, *, keeps_seeds: bool = True) -> None:
        """With `keeps_seeds` an image follows from the seed of its noise, which is kept with it."""
        self._keeps_seeds = keeps_seeds
        # By the batch's number and the row in it: the prompt, the images, and the seeds of their noises.
        self._by_prompt: dict[tuple[int, int], tuple[str, list[bytes], list[int]]] = {}

    def add(self, chunk: Chunk, images_B3PP: torch.Tensor) -> None:
        """Add the images of a chunk (`OnImages`)."""
        for row, (prompt, image) in enumerate(zip(chunk.prompts.captions, as_images(images_B3PP), strict=True)):
            key = (chunk.prompts.micro_batch, row)
            _, pngs, seeds = self._by_prompt.setdefault(key, (prompt, [], []))
            pngs.append(_png_of(image))
            if self._keeps_seeds:
                seeds.append(chunk.seeds[row])

    def ask(self, run_dir: Path, step: int) -> list[Request]:
        """Write a request for each prompt of the rollout before a step, in order, and return them.

        A request has the same name only if it has the same images, so that pairs of a run that is resumed with other
        settings do not replace each other. What is already in the dataset of pairs is answered by it.
        """
        requests = []
        for number, (prompt, pngs, seeds) in enumerate(self._by_prompt.values()):
            digest = hashlib.blake2b(b"".join(pngs), digest_size=4).hexdigest()
            name = f"step-{step:08d}-{number + 1:03d}-{digest}"
            request = ask(run_dir, name, prompt, pngs, seeds)
            kept = kept_answer(run_dir, name, pngs)
            if kept is not None and answer_of(request) is None:
                answer(request, kept)
            requests.append(request)
        return requests


def requests_of(run_dir: Path, names: Sequence[str]) -> list[Request] | None:
    """Return the requests of a rollout by their names; None if some do not exist any more."""
    requests = [request_named(run_dir, name) for name in names]
    return None if None in requests else [request for request in requests if request is not None]


def wait_for_choices(
    requests: Sequence[Request], step: int, context: StepContext, *, wait: Callable[[], None]
) -> list[Extremes | None]:
    """Wait until all requests are answered, and return the best and the worst image of each; None without one.

    An answer may be changed or taken back until the last one is there; then every choice is kept as a pair. The run
    can be paused or stopped while it waits: then the requests and their answers stay, and a stop keeps the choices
    that were made as pairs, in case that the run is not resumed. A request whose folder was removed counts as
    skipped. Requests of another rollout are withdrawn: a run that was resumed from an older backup, or with other
    images, does not wait for their answers.
    """
    _withdraw_others(requests, context.run_dir)
    for request in requests:
        drop_pair(context.run_dir, request)  # a stop has kept it, but it can still be changed
    context.emit(PhaseChanged("choosing", f"{count(len(requests), 'choice')} to make"))
    num_open, answers = -1, list[Answer | None]()
    wrong: set[tuple[str, str]] = set()
    while num_open:
        answers = [_answer_now(request) for request in requests]
        if answers.count(None) != num_open:
            num_open = answers.count(None)
            context.emit(ChoicesWanted(step, str(choices_dir(context.run_dir)), num_open))
        if num_open:
            _warn_of_wrong(requests, wrong, context)
            try:
                context.check()
            except StopRequested:
                _keep_pairs(requests, answers, context.run_dir)
                raise
            wait()
    given = [SKIP if one is None else one for one in answers]
    _keep_pairs(requests, given, context.run_dir)
    for request in requests:
        withdraw(request)
    return [_extremes(one) for one in given]


def _keep_pairs(requests: Sequence[Request], answers: Sequence[Answer | None], run_dir: Path) -> None:
    for request, given in zip(requests, answers, strict=True):
        if given is not None:
            keep_pair(run_dir, request, given)


def _withdraw_others(requests: Sequence[Request], run_dir: Path) -> None:
    """Withdraw the requests that the run does not wait for; the choices that were made among them are kept as pairs."""
    names = {request.name for request in requests}
    for other in all_requests(run_dir):
        if other.name in names:
            continue
        given = answer_of(other)
        if given is not None:
            keep_pair(run_dir, other, given)
        withdraw(other)


def _answer_now(request: Request) -> Answer | None:
    return answer_of(request) if request.folder.exists() else SKIP


def _warn_of_wrong(requests: Sequence[Request], former: set[tuple[str, str]], context: StepContext) -> None:
    """Warn once of each answer that is not valid, when it is seen for the second time: it may still be being written.

    `former` are the answers seen at former looks, by their requests and texts; those seen now are added.
    """
    for request in requests:
        text = wrong_answer(request)
        if not text:
            continue
        seen, warned = (request.name, text), (request.name, f"warned: {text}")
        if seen in former and warned not in former:
            former.add(warned)
            context.emit(
                WarningRaised(
                    f"The answer to {request.name} is not valid, so the run still waits for it: {text}",
                    'Write {"best": 0, "worst": 1} with the numbers of two images from 0 to '
                    f'{len(request.images) - 1}, {{"verdict": "tie"}} or {{"verdict": "skip"}}.',
                )
            )
        former.add(seen)


def _extremes(given: Answer) -> Extremes | None:
    return None if given.best is None or given.worst is None else (given.best, given.worst)


def _png_of(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()
