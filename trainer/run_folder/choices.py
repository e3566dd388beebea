"""Choices between images by a person: the folder is the protocol, so that any program can make them.

    choices/
      open/<request>/     0.png 1.png ... request.json    the request; answer.json next to it is the answer
      pairs/chosen/       <request>.png <request>.txt     every choice made, as a dataset of preference pairs
      pairs/rejected/     <request>.png
      pairs/noise/        <request>.json                  the seeds of the noises that both were sampled from

A run writes a request and waits for its answer, which the window or another program writes: `{"best": 0, "worst": 1}`
with the numbers of the images, `{"verdict": "tie"}` or `{"verdict": "skip"}`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.data.pair_noise import CHOSEN, REJECTED, is_seed, noise_file
from modules.system.atomic import atomic_folder, write_bytes, write_text
from modules.system.problem import shorten
from modules.system.regular_files import read_json_object, read_regular

Verdict = Literal["chosen", "tie", "skip"]

REQUEST_FILE, ANSWER_FILE = "request.json", "answer.json"
_MAX_BYTES = 1 << 20  # of either: other programs may write them


@dataclass(frozen=True, slots=True)
class Request:
    """A question to a person: which of these images of a prompt is the best, and which the worst.

    `seeds` are the seeds of the noises that the images were sampled from; empty if an image does not follow from its
    noise.
    """

    folder: Path
    prompt: str
    images: tuple[Path, ...]
    seeds: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the request, unique in its run."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer. `best` and `worst` are the numbers of images; both are None for a tie or a skipped request."""

    verdict: Verdict
    best: int | None = None
    worst: int | None = None


TIE, SKIP = Answer("tie"), Answer("skip")


def choices_dir(run_dir: Path) -> Path:
    """Return the folder of the choices of a run."""
    return run_dir / "choices"


def pairs_dir(run_dir: Path) -> Path:
    """Return the folder of the pairs that were chosen in a run: a dataset for Diffusion-DPO."""
    return choices_dir(run_dir) / "pairs"


def ask(run_dir: Path, name: str, prompt: str, pngs: Sequence[bytes], seeds: Sequence[int] = ()) -> Request:
    """Write a request with images as PNG bytes, and the seeds of their noises, and return it.

    An answered request with the same images stays answered. `name` must be the same when a resumed run repeats the
    request. Raises OSError.
    """
    folder = choices_dir(run_dir) / "open" / name
    earlier = _read(folder)
    if earlier is not None and earlier.prompt == prompt and _same(earlier.images, pngs):
        return earlier
    with atomic_folder(folder) as unfinished:
        for number, png in enumerate(pngs):
            (unfinished / f"{number}.png").write_bytes(png)
        content = {"prompt": prompt, "images": [f"{n}.png" for n in range(len(pngs))], "seeds": list(seeds)}
        (unfinished / REQUEST_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return Request(folder, prompt, tuple(folder / f"{n}.png" for n in range(len(pngs))), tuple(seeds))


def all_requests(run_dir: Path) -> list[Request]:
    """Return the requests of a run that were not withdrawn, with or without an answer, in the order of their names."""
    folder = choices_dir(run_dir) / "open"
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    # A hidden one is still being written, or its writer was killed.
    requests = (_read(path) for path in folders if path.is_dir() and not path.name.startswith("."))
    return [request for request in requests if request is not None]


def open_requests(run_dir: Path) -> list[Request]:
    """Return the requests of a run without an answer, in the order of their names."""
    return [request for request in all_requests(run_dir) if answer_of(request) is None]


def answer(request: Request, given: Answer) -> None:
    """Write the answer to a request.

    Raises ValueError for numbers that are not two different images of it, and FileNotFoundError if it was withdrawn.
    """
    if given.verdict == "chosen" and not _is_valid(given.best, given.worst, len(request.images)):
        raise ValueError(f"{given.best} and {given.worst} are not two of the {len(request.images)} images.")
    if not (request.folder / REQUEST_FILE).is_file():
        raise FileNotFoundError(f"The request {request.name} is not open any more.")
    content = {"best": given.best, "worst": given.worst} if given.verdict == "chosen" else {"verdict": given.verdict}
    write_text(request.folder / ANSWER_FILE, json.dumps(content) + "\n")


def take_back(request: Request) -> bool:
    """Remove the answer to a request, so that it is open again.

    Returns False if the run has already used the answer: it is kept as a pair, or the request was withdrawn.
    """
    kept = request.folder.parent.parent / "pairs" / "chosen" / f"{request.name}.png"
    if kept.exists() or _read(request.folder) is None:
        return False
    (request.folder / ANSWER_FILE).unlink(missing_ok=True)
    return True


def answer_of(request: Request) -> Answer | None:
    """Return the answer to a request; None until a valid one has been written."""
    content = read_json_object(request.folder / ANSWER_FILE, _MAX_BYTES)
    if content is None:
        return None
    if content.get("verdict") in ("tie", "skip"):
        return Answer(content["verdict"])
    best, worst = content.get("best"), content.get("worst")
    return Answer("chosen", best, worst) if _is_valid(best, worst, len(request.images)) else None


def wrong_answer(request: Request) -> str:
    """Return the text, shortened, of an invalid answer to a request; empty if there is no answer or a valid one."""
    try:
        given = read_regular(request.folder / ANSWER_FILE, _MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return shorten(given.strip() or "(empty)", max_chars=80) if answer_of(request) is None else ""


def keep_pair(run_dir: Path, request: Request, given: Answer) -> None:
    """Add an answered request to the run's dataset of pairs; a tie or a skipped request adds none. Raises OSError."""
    if given.best is None or given.worst is None:
        return
    folder = pairs_dir(run_dir)
    write_text(folder / CHOSEN / f"{request.name}.txt", request.prompt + "\n")
    if request.seeds:
        seeds = {CHOSEN: request.seeds[given.best], REJECTED: request.seeds[given.worst]}
        write_text(noise_file(folder / CHOSEN / f"{request.name}.png"), json.dumps(seeds) + "\n")
    for side, number in ((REJECTED, given.worst), (CHOSEN, given.best)):
        write_bytes(folder / side / f"{request.name}.png", request.images[number].read_bytes())


def drop_pair(run_dir: Path, request: Request) -> None:
    """Remove a request from the run's dataset of pairs, if it is there. Raises OSError."""
    chosen, rejected = (pairs_dir(run_dir) / side / f"{request.name}.png" for side in (CHOSEN, REJECTED))
    for file in (chosen, rejected, noise_file(chosen), chosen.with_suffix(".txt")):
        file.unlink(missing_ok=True)


def kept_answer(run_dir: Path, name: str, pngs: Sequence[bytes]) -> Answer | None:
    """Return the answer that the dataset of pairs has for a request with these images; None if it has none.

    So a run that is resumed from an older backup does not repeat requests that were answered since.
    """
    numbers = []
    for side in ("chosen", "rejected"):
        try:
            kept = (pairs_dir(run_dir) / side / f"{name}.png").read_bytes()
        except OSError:
            return None
        numbers.append(next((number for number, png in enumerate(pngs) if png == kept), None))
    best, worst = numbers
    return Answer("chosen", best, worst) if _is_valid(best, worst, len(pngs)) else None


def request_named(run_dir: Path, name: str) -> Request | None:
    """Return a request of a run that was neither withdrawn nor removed; None if it cannot be read."""
    return _read(choices_dir(run_dir) / "open" / name)


def withdraw(request: Request) -> None:
    """Remove a request that is answered or not needed any more."""
    shutil.rmtree(request.folder, ignore_errors=True)


def _read(folder: Path) -> Request | None:
    content = read_json_object(folder / REQUEST_FILE, _MAX_BYTES)
    if content is None:
        return None
    names, prompt = content.get("images"), content.get("prompt")
    if not isinstance(names, list) or not isinstance(prompt, str):
        return None
    seeds = content.get("seeds")
    is_valid = isinstance(seeds, list) and len(seeds) == len(names) and all(map(is_seed, seeds))
    # Only names: a request cannot point out of its folder.
    images = tuple(folder / Path(str(name)).name for name in names)
    return Request(folder, prompt, images, tuple(seeds) if is_valid and seeds else ())


def _same(files: Sequence[Path], pngs: Sequence[bytes]) -> bool:
    if len(files) != len(pngs):
        return False
    try:
        return all(file.read_bytes() == png for file, png in zip(files, pngs, strict=True))
    except OSError:
        return False


def _is_valid(best: object, worst: object, num_images: int) -> bool:
    numbers = range(num_images)
    return type(best) is int and type(worst) is int and best in numbers and worst in numbers and best != worst
