"""The report on the images of a run: how far the loss of each is from the others', as JSON and as a page."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from modules.system.atomic import write_text
from modules.system.problem import count, join_words

Verdict = Literal["", "high", "low", "details", "composition", "noise"]
VERDICTS: Mapping[Verdict, str] = {
    "high": "high loss",
    "low": "low loss",
    "details": "odd details",
    "composition": "odd composition",
    "noise": "like noise",
}

FOLDER, DATA_FILE, PAGE_FILE = "report", "images.json", "images.html"
_FEWEST = 12  # images of a kind: the deviation of fewer is often small by chance (two of the demo's eight stood out)
_FAR = 4.0  # standard deviations from the middle
_TIMES_FARTHER = 2.6
"""Than the farthest other image, at most. If values have tails as heavy as Student's t with three degrees, the largest
is that far beyond the next one in 2.6^-3 of all sets, 6 %, however many they are."""
_MIN_TIMES_FARTHER = 1.5
_TIMES_FARTHER_OF_NOISE = 2.0  # a correlation has no long tails, and there is a limit of its own
_HEAVIEST_TAIL = 1 / 3  # the inverse of these degrees
_NUM_IN_TAIL = 1.6  # times the root of the number of images
_UNSURE_OF_TAIL = 3.0  # standard deviations of the estimate
_ON_SIDE = 1.25  # times that, if only its own side is compared
_FEWEST_FOR_SIDES = 60  # images: a side of fewer shows too little of its tail
_OF_FEW = 6.6  # images: with so few neither the deviation nor the farthest is certain
_MAX_OUTLIERS = 1 / 6, 100  # of the images, and at most: more are another kind of image, not bad ones
_LIKE_NOISE = 0.25  # correlation of neighbouring latents: 0 to 0.2 for noise; photographs have 0.3 to 0.8
_MIN_LOSS = 1e-12  # one of exactly 0 has no logarithm
_MIN_DEVIATION = 0.02  # of logarithms; smaller where a few images happen to have nearly the same loss
_MAX_PAIRED = 1_000  # losses, of which each pair is compared
_TIMES = 1.3  # times the typical loss: less is not worth looking at, however equal the others are
_MAX_THUMBNAILS = 400  # on the page, about 4 kB each
_MAX_NAMED = 5
_NUM_HARDEST = 3


@dataclass(frozen=True, slots=True)
class ImageLoss:
    """An image: `losses` are plain ones by timestep, `times` is their typical ratio to the losses of the other images.

    `uses` counts its uses in full epochs. `verdict`: "high" for a loss far above the other images', "low" for one far
    below them, "details" and "composition" for one that is unusually high at little or at much noise for its mean,
    "noise" for an image whose latents are far less like their neighbours than in the others: `correlation`.
    """

    path: str
    concept: str
    kind: str
    caption: str
    uses: int
    losses: tuple[float, ...]
    times: float = 1.0
    verdict: Verdict = ""
    correlation: float = 1.0


@dataclass(frozen=True, slots=True)
class ImageReport:
    """The images of a run after a step, the highest losses first; `timesteps` are the timesteps of the losses."""

    step: int
    timesteps: tuple[int, ...]
    images: tuple[ImageLoss, ...]

    @property
    def outliers(self) -> list[ImageLoss]:
        """The images that stand out, those that do most first."""
        return sorted((i for i in self.images if i.verdict), key=lambda i: -abs(math.log(i.times)))

    @property
    def summary(self) -> str:
        """The report as a sentence."""
        outliers, total = self.outliers, count(len(self.images), "image")
        if not outliers:
            found = "none stands out" if _are_compared(self.images) else f"with fewer than {_FEWEST} none can stand out"
            return f"The losses of {total} after step {self.step:,}: {found}. {describe_hardest(self.images)}".strip()
        named = ", ".join(f"{Path(i.path).name} ({_describe(i)})" for i in outliers[:_MAX_NAMED])
        more = f" and {len(outliers) - _MAX_NAMED:,} more" if len(outliers) > _MAX_NAMED else ""
        verb = "stands" if len(outliers) == 1 else "stand"
        return f"{len(outliers):,} of {total} {verb} out after step {self.step:,}: {named}{more}."


def _describe(image: ImageLoss) -> str:
    odd = f", {VERDICTS[image.verdict]}" if image.verdict in ("details", "composition", "noise") else ""
    return f"{image.times:.2g} times the usual loss{odd}"


def describe_hardest(images: Iterable[ImageLoss]) -> str:
    """Return which images have the highest losses, as a sentence; empty for a single image."""
    hardest = sorted(images, key=lambda i: (-i.times, i.path))[:_NUM_HARDEST]
    if len(hardest) < 2:
        return ""
    most, least = (f"{i.times:.2g}" for i in (hardest[0], hardest[-1]))
    times = most if most == least else f"{least} to {most}"
    return f"The hardest are {join_words([Path(i.path).name for i in hardest])}, with {times} times the usual loss."


def compare_images(step: int, timesteps: Sequence[int], images: Sequence[ImageLoss]) -> ImageReport:
    """Return the report: each image compared to the others of its concept; small concepts of a kind count as one.

    A loss depends more on its timestep than on its image, so its logarithm is compared to the median of its timestep.
    The mean of an image's distances counts a timestep the less, the more its losses vary: by their squared deviation.
    The slope is how much larger they are at little noise, where the details of an image are learned, than at much
    noise, where its composition is. An image stands out if it is clearly separated from all others of the folder by
    mean and slope (`_outliers`), and one that is like noise: its loss may be as high as theirs. Losses must be finite.
    """
    rated = [image for group in _groups(images) for image in _rate(group)]
    return ImageReport(step, tuple(timesteps), tuple(sorted(rated, key=lambda i: (-i.times, i.path))))


def _groups(images: Sequence[ImageLoss]) -> Collection[list[ImageLoss]]:
    """Return the images that are compared to each other."""
    large = {place for place, number in Counter((i.kind, i.concept) for i in images).items() if number >= _FEWEST}
    groups: defaultdict[tuple[str, str], list[ImageLoss]] = defaultdict(list)
    for image in images:
        place = (image.kind, image.concept)
        groups[place if place in large else (image.kind, "")].append(image)
    return groups.values()


def _are_compared(images: Sequence[ImageLoss]) -> bool:
    return any(len(group) >= _FEWEST for group in _groups(images))


def _rate(images: Sequence[ImageLoss]) -> list[ImageLoss]:
    logarithms_NT = np.log(np.maximum([image.losses for image in images], _MIN_LOSS))
    distances_NT = logarithms_NT - np.median(logarithms_NT, axis=0)
    weights_T = 1 / np.array([_deviation(distances_N) for distances_N in distances_NT.T]) ** 2
    weights_T /= weights_T.sum()
    places_T = np.linspace(0.5, -0.5, len(weights_T))
    places_T -= weights_T @ places_T
    means_N = distances_NT @ weights_T
    slopes_N = distances_NT @ (weights_T * places_T) / max(float(weights_T @ places_T**2), _MIN_LOSS)
    means_N -= np.median(means_N)
    slopes_N -= np.median(slopes_N)
    correlations_N = np.array([image.correlation for image in images])
    above_N = (correlations_N - np.median(correlations_N)) / _deviation(correlations_N)
    noisy = _outliers(above_N[:, None], _TIMES_FARTHER_OF_NOISE)
    points_N2 = np.column_stack((means_N / _deviation(means_N), slopes_N / _deviation(slopes_N)))
    outliers = _outliers(points_N2, _TIMES_FARTHER)

    def verdict_on(number: int) -> Verdict:
        if number in noisy and correlations_N[number] < min(_LIKE_NOISE, np.median(correlations_N)):
            return "noise"
        if number not in outliers:
            return ""
        return _verdict(float(means_N[number]), float(slopes_N[number]), *points_N2[number].tolist())

    return [
        replace(image, times=math.exp(mean), verdict=verdict_on(number))
        for number, (image, mean) in enumerate(zip(images, means_N.tolist(), strict=True))
    ]


def _verdict(mean: float, slope: float, by_mean: float, by_slope: float) -> Verdict:
    """Return how an image stands out by its mean distance or by its slope, both also in standard deviations."""
    worth = math.log(_TIMES)
    if abs(mean) > worth and abs(by_mean) >= min(abs(by_slope), _FAR):
        return "high" if mean > 0 else "low"
    if abs(slope) <= worth:
        return ""
    return "details" if slope > 0 else "composition"


def _outliers(points_ND: NDArray[np.float64], times_farther: float) -> frozenset[int]:
    """Return which points are far from the middle, 0, and clearly separated from the others, in standard deviations.

    Skewed values and values with long tails are far out, too, but then others are nearly as far. So an outlier has to
    be several times as far out as every other point in its direction and in the opposite one. Among many points it may
    also be `_ON_SIDE` times that far in its direction, and only clearly farther than those in the opposite one. Up to
    `_MAX_OUTLIERS` are looked for together: otherwise the second of two bad images would hide the first.
    """
    number = len(points_ND)
    if number < _FEWEST:
        return frozenset()
    of_few = 1 + 20 * (_OF_FEW / number) ** 6  # 1.55 for 12, 1.03 for 20
    num_in_tail = round(_NUM_IN_TAIL * math.sqrt(number))
    distances_N = np.linalg.norm(points_ND, axis=1)
    order_N = np.argsort(-distances_N, kind="stable")
    share, most = _MAX_OUTLIERS
    found = 0
    for num_out in range(1, min(most, int(share * number)) + 1):
        out_K, rest_R = order_N[:num_out], order_N[num_out:]
        if distances_N[out_K[-1]] <= _FAR:
            break
        along_RK = points_ND[rest_R] @ (points_ND[out_K] / distances_N[out_K, None]).T
        ahead_K, behind_K = along_RK.max(axis=0), -along_RK.min(axis=0)
        farthest_K = np.maximum(ahead_K, behind_K)
        limit_K = _needed_factor(distances_N[rest_R[: num_in_tail + 1]], times_farther) * farthest_K
        if number >= _FEWEST_FOR_SIDES:
            on_side_K = np.maximum(_ON_SIDE * times_farther * ahead_K, _MIN_TIMES_FARTHER * farthest_K)
            limit_K = np.minimum(limit_K, on_side_K)
        if (distances_N[out_K] > of_few * limit_K).all():
            found = num_out
    return frozenset(order_N[:found].tolist())


def _needed_factor(largest_M: NDArray[np.float64], times_farther: float) -> float:
    """Return how many times as far as the largest value another one has to be; `largest_M` are in descending order.

    By how many times the largest values exceed each other estimates how heavy their tail is (Hill 1975): the factor is
    `times_farther` for the heaviest tails and less for lighter ones.
    """
    exceeded_M = np.log(np.maximum(largest_M[:-1], _MIN_LOSS) / max(float(largest_M[-1]), _MIN_LOSS))
    tail = float(exceeded_M.mean()) * (1 + _UNSURE_OF_TAIL / math.sqrt(len(exceeded_M)))
    return max(_MIN_TIMES_FARTHER, math.pow(times_farther, min(tail, _HEAVIEST_TAIL) / _HEAVIEST_TAIL))


def _deviation(values_N: NDArray[np.float64]) -> float:
    """Return the standard deviation of values of which up to half may be outliers: Qn (Rousseeuw and Croux 1993).

    It is a quartile of the differences of all pairs, with their correction for few values, which the median deviation
    needs more of: it varies more than twice as much. Of many values an even selection is taken.
    """
    values_N = np.sort(values_N)[:: max(1, len(values_N) // _MAX_PAIRED)]
    number = len(values_N)
    if number < 2:
        return _MIN_DEVIATION
    half = number // 2 + 1
    rank = half * (half - 1) // 2 - 1
    first, second = np.triu_indices(number, 1)
    quartile = float(np.partition(values_N[second] - values_N[first], rank)[rank])
    few = number / (number + (1.4 if number % 2 else 3.8))
    return max(2.2219 * few * quartile, _MIN_DEVIATION)


def write_report(run_dir: Path, report: ImageReport, thumbnail: Callable[[str], bytes]) -> Path:
    """Write a report into the folder of a run, and return the path of its page.

    `thumbnail(path)` returns a JPEG of an image, empty if it cannot be read. Raises OSError.
    """
    folder = run_dir / FOLDER / f"step-{report.step:08d}"
    write_text(folder / DATA_FILE, json.dumps({**asdict(report), "summary": report.summary}, indent=1))
    write_text(folder / PAGE_FILE, page_of(report, thumbnail))
    return folder / PAGE_FILE


def newest_report(run_dir: Path) -> ImageReport | None:
    """Return the report of a run's latest step; None if there is none that can be read."""
    for file in sorted((run_dir / FOLDER).glob(f"step-*/{DATA_FILE}"), reverse=True):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            return ImageReport(int(data["step"]), tuple(data["timesteps"]), tuple(map(_image, data["images"])))
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            continue
    return None


def _image(data: dict[str, Any]) -> ImageLoss:
    verdict: Verdict = data["verdict"] if data["verdict"] in VERDICTS else ""
    path, concept, kind, caption = (str(data[name]) for name in ("path", "concept", "kind", "caption"))
    losses = tuple(float(loss) for loss in data["losses"])
    correlation = float(data.get("correlation", 1.0))  # a report of an earlier version has none
    return ImageLoss(
        path, concept, kind, caption, int(data["uses"]), losses, float(data["times"]), verdict, correlation
    )


def thumbnail_of(image: Any, side_px: int = 112) -> bytes:
    """Return a PIL image as a small JPEG; `image` is changed."""
    image.thumbnail((side_px, side_px))
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=75)
    return buffer.getvalue()


_ADVICE = (
    "A loss far above the other images': a wrong caption, an image of something else, a broken file, text or borders. "
    "Far below: a nearly empty image, or one that is seen so often that the model has memorized it. Odd details: a "
    "high loss at little noise, as of grain or patterns. Odd composition: at much noise, as of an image of something "
    "else. Like noise: neighbouring places of the image have nothing in common. Losses differ for good reasons, too: "
    "detailed images have higher ones."
)
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;background:Canvas;"
    "color:CanvasText}:root{color-scheme:light dark}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.35em .7em;text-align:left;vertical-align:top;border-top:1px solid #8884}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".high,.details,.composition,.noise{background:#d9480f33}.low{background:#1971c233}"
    "img{display:block;max-width:112px;max-height:112px}small{opacity:.75;overflow-wrap:anywhere}"
)


def page_of(report: ImageReport, thumbnail: Callable[[str], bytes]) -> str:
    """Return a report as a page of HTML that needs no other file; `thumbnail` is as in `write_report`."""
    heads = "".join(f"<th>at {t}</th>" for t in report.timesteps)
    rows = "\n".join(
        _row(image, thumbnail(image.path) if number < _MAX_THUMBNAILS else b"")
        for number, image in enumerate(report.images)
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Images after step {report.step:,}</title>'
        f"<style>{_STYLE}</style><h1>Losses of the images after step {report.step:,}</h1>"
        f"<p>{html.escape(report.summary)}</p><p>{_ADVICE}</p>"
        f"<table><tr><th><th>image<th>times the usual loss<th>uses{heads}</tr>\n{rows}\n</table></html>\n"
    )


def _row(image: ImageLoss, thumbnail: bytes) -> str:
    shown = f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(thumbnail).decode()}">' if thumbnail else ""
    losses = "".join(f'<td class="n">{loss:.4f}' for loss in image.losses)
    text = "<br>".join(html.escape(t) for t in (f"{image.concept} ({image.kind})", image.caption, image.path) if t)
    verdict = f"<br><small>{VERDICTS[image.verdict]}</small>" if image.verdict else ""
    name = html.escape(Path(image.path).name)
    return (
        f'<tr class="{image.verdict}"><td>{shown}<td><b>{name}</b><br><small>{text}</small>'
        f'<td class="n">{image.times:.2f}{verdict}<td class="n">{image.uses:,}{losses}</tr>'
    )
