"""The report on the images of a run: how far the loss of each is from the others', as JSON and as a page."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from modules.system.atomic import write_text
from modules.system.problem import count

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
_FALSE_ALARMS = 0.03  # of all sets of images, whatever their number
_OF_FEW = 6.6  # images: with so few the deviation itself is uncertain
_TAIL = 1.6  # times the root of the number of images: the largest of them, which decide how far others may lie
_LIKE_NOISE = 0.25  # correlation of neighbouring latents: 0 to 0.2 for noise; photographs have 0.3 to 0.8
_LEAST_LOSS = 1e-12  # one of exactly 0 has no logarithm
_LEAST_DEVIATION = 0.02  # of logarithms; smaller where a few images happen to have nearly the same loss
_MOST_PAIRED = 1_000  # losses, of which each pair is compared
_TIMES = 1.3  # times the typical loss: less is not worth looking at, however equal the others are
_MOST_THUMBNAILS = 400  # on the page, about 4 kB each
_MOST_NAMED = 5


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
            return f"The losses of {total} after step {self.step:,}: none stands out."
        named = ", ".join(f"{Path(i.path).name} ({_describe(i)})" for i in outliers[:_MOST_NAMED])
        more = f" and {len(outliers) - _MOST_NAMED:,} more" if len(outliers) > _MOST_NAMED else ""
        verb = "stands" if len(outliers) == 1 else "stand"
        return f"{len(outliers):,} of {total} {verb} out after step {self.step:,}: {named}{more}."


def _describe(image: ImageLoss) -> str:
    odd = f", {VERDICTS[image.verdict]}" if image.verdict in ("details", "composition", "noise") else ""
    return f"{image.times:.2g} times the usual loss{odd}"


def compare_images(step: int, timesteps: Sequence[int], images: Sequence[ImageLoss]) -> ImageReport:
    """Return the report: each image compared to the others of its concept; small concepts of a kind count as one.

    A loss depends more on its timestep than on its image, so its logarithm is compared to the median of its timestep.
    The mean of an image's distances counts a timestep the less, the more its losses vary: by their squared deviation.
    The slope is how much larger they are at little noise, where the details of an image are learned, than at much
    noise, where its composition is. An image whose mean or slope is far from the others' stands out, and one that is
    like noise: its loss may be as high as theirs. Losses must be finite.
    """
    large = {name for name, number in Counter((i.kind, i.concept) for i in images).items() if number >= _FEWEST}
    groups: defaultdict[tuple[str, str], list[ImageLoss]] = defaultdict(list)
    for image in images:
        place = (image.kind, image.concept)
        groups[place if place in large else (image.kind, "")].append(image)
    rated = [image for group in groups.values() for image in _rate(group)]
    return ImageReport(step, tuple(timesteps), tuple(sorted(rated, key=lambda i: (-i.times, i.path))))


def _rate(images: Sequence[ImageLoss]) -> list[ImageLoss]:
    logarithms_NT = np.log(np.maximum([image.losses for image in images], _LEAST_LOSS))
    distances_NT = logarithms_NT - np.median(logarithms_NT, axis=0)
    weights_T = 1 / np.array([_deviation(distances_N) for distances_N in distances_NT.T]) ** 2
    weights_T /= weights_T.sum()
    places_T = np.linspace(0.5, -0.5, len(weights_T))
    places_T -= weights_T @ places_T
    means_N = distances_NT @ weights_T
    slopes_N = distances_NT @ (weights_T * places_T) / max(float(weights_T @ places_T**2), _LEAST_LOSS)
    means_N -= np.median(means_N)
    slopes_N -= np.median(slopes_N)
    correlations_N = np.array([image.correlation for image in images])
    below_N = (np.median(correlations_N) - correlations_N) / _deviation(correlations_N)
    are_enough = len(images) >= _FEWEST
    is_noise_N = (below_N > _normal_limit(len(images))) & (correlations_N < _LIKE_NOISE) & are_enough
    deviations_N2 = np.column_stack((means_N / _deviation(means_N), slopes_N / _deviation(slopes_N)))
    limit = _limit(np.hypot(*deviations_N2.T)) if are_enough else math.inf
    return [
        replace(
            image,
            times=math.exp(mean),
            verdict="noise" if is_noise else _verdict(mean, slope, *deviations, limit=limit),
        )
        for image, mean, slope, deviations, is_noise in zip(
            images, means_N.tolist(), slopes_N.tolist(), deviations_N2.tolist(), is_noise_N.tolist(), strict=True
        )
    ]


def _verdict(mean: float, slope: float, by_mean: float, by_slope: float, *, limit: float) -> Verdict:
    """Return how an image stands out by its mean distance or by its slope, both also in standard deviations."""
    worth = math.log(_TIMES)
    if math.hypot(by_mean, by_slope) <= limit or max(abs(mean), abs(slope)) <= worth:
        return ""
    if abs(mean) > worth and abs(by_mean) >= min(abs(by_slope), limit):
        return "high" if mean > 0 else "low"
    return "details" if slope > 0 else "composition"


def _normal_limit(number: int) -> float:
    """Return the distance that the farthest of some images rarely exceeds, if it is the distance of two normal values.

    Half the square of such a distance is exponentially distributed, so the limit grows with the number: the chance that
    any image of a set exceeds it stays `_FALSE_ALARMS`.
    """
    return math.sqrt(2 * math.log(number / _FALSE_ALARMS)) * (1 + (_OF_FEW / number) ** 2)


def _limit(distances_N: NDArray[np.float64]) -> float:
    """Return the limit for these distances, which is wider where more of them than usual are far out.

    The largest squares exceed one of them by exponentially distributed amounts in any case (Pickands 1975, with shape
    0): their median gives the scale, which a few outliers do not change.
    """
    number = len(distances_N)
    num_largest = round(_TAIL * math.sqrt(number))
    squares_N = np.sort(distances_N**2)[::-1]
    start = float(squares_N[num_largest])
    scale = (float(np.median(squares_N[:num_largest])) - start) / math.log(2)
    return max(_normal_limit(number), math.sqrt(start + scale * math.log(num_largest / _FALSE_ALARMS)))


def _deviation(values_N: NDArray[np.float64]) -> float:
    """Return the standard deviation of values of which up to half may be outliers: Qn (Rousseeuw and Croux 1993).

    It is a quartile of the differences of all pairs, with their correction for few values, which the median deviation
    needs more of: it varies more than twice as much. Of many values an even selection is taken.
    """
    values_N = np.sort(values_N)[:: max(1, len(values_N) // _MOST_PAIRED)]
    number = len(values_N)
    if number < 2:
        return _LEAST_DEVIATION
    half = number // 2 + 1
    rank = half * (half - 1) // 2 - 1
    first, second = np.triu_indices(number, 1)
    quartile = float(np.partition(values_N[second] - values_N[first], rank)[rank])
    few = number / (number + (1.4 if number % 2 else 3.8))
    return max(2.2219 * few * quartile, _LEAST_DEVIATION)


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
        _row(image, thumbnail(image.path) if number < _MOST_THUMBNAILS else b"")
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
