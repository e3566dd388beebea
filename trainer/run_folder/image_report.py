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
from modules.system.problem import agree, count, join_words, list_first

Verdict = Literal["", "high", "low", "details", "composition", "unlearned", "memorized", "caption", "noise", "plain"]
VERDICTS: Mapping[Verdict, str] = {
    "high": "high loss",
    "low": "low loss",
    "details": "odd details",
    "composition": "odd composition",
    "unlearned": "learned less",
    "memorized": "learned more",
    "caption": "odd caption",
    "noise": "like noise",
    "plain": "one plain colour",
}

FOLDER, DATA_FILE, PAGE_FILE = "report", "images.json", "images.html"
_FEWEST = 12  # images of a kind: the deviation of fewer is often small by chance
_TIMES_FARTHER = 2.7
"""Than the farthest other image. If values have tails as heavy as Student's t with three degrees, the largest is that
far beyond the next one in 2.7^-3 of all sets, 5 %, however many they are; with lighter tails, in fewer."""
_TIMES_APART = 1.5  # where none stands out: worth a look, and by chance in at most 1.5^-3, 30 % of sets
_MAX_SHARE = 1 / 6  # of the images that stand out: more are another kind of image, not bad ones
_LIKE_NOISE = 0.25  # correlation of neighbouring latents: 0 to 0.2 for noise; photographs have 0.3 to 0.8
_FAR_FROM_OTHERS = 4.0  # standard deviations: a correlation has no long tails, and there is a limit of its own
_TIMES = 1.3  # times the typical loss: less is not worth looking at, however equal the others are
_MIN_LOSS = 1e-12  # one of exactly 0 has no logarithm
_MIN_DEVIATION = 0.02  # of logarithms; smaller where a few images happen to have nearly the same loss
_MAX_PAIRED = 1_000  # losses, of which each pair is compared
_THUMBNAIL_PX = 112
_MAX_THUMBNAILS = 400  # on the page, about 4 kB each
_MAX_NAMED = 5
_NUM_HARDEST = 3


@dataclass(frozen=True, slots=True)
class ImageLoss:
    """An image: `losses` are plain ones by timestep, `times` is their typical ratio to the losses of the other images.

    `uses` counts its uses in full epochs. `before` are its losses in the model without the trained adapter, and
    `without_caption` those in that model with the empty prompt; empty if they are not known. `correlation` is how much
    its latents are like their neighbours. `is_plain`: its pixels have one colour. `same_as` is the path of another
    image that looks the same, empty if there is none. `tendency` is like the verdict, for an image that is farther from
    the others than all of them, but not by enough to stand out. `verdict` states how it differs from the other images:

    - "high", "low": its loss is far above or far below theirs
    - "details", "composition": it is unusually high at little or at much noise for its mean
    - "unlearned", "memorized": training lowered its loss far less or far more than theirs
    - "caption": in the model before training its caption raises its loss, compared to what captions do for theirs
    - "noise": its latents are far less like their neighbours than in the others
    - "plain": it has one colour, and most others have not
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
    before: tuple[float, ...] = ()
    without_caption: tuple[float, ...] = ()
    is_plain: bool = False
    same_as: str = ""
    tendency: Verdict = ""


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
        """The report as a sentence, and another one if images look the same."""
        return " ".join(part for part in (self._losses, describe_duplicates(self.images)) if part)

    @property
    def advice(self) -> str:
        """How to get a report that finds more; empty if this one compares the losses to those before training."""
        if not self.images or any(image.before for image in self.images):
            return ""
        return (
            "While a fine-tune trains there is no memory to spare for the model before training, so this report "
            "compares only the losses and finds fewer bad images. Compare the images again after the run, from its "
            "backup."
        )

    @property
    def _losses(self) -> str:
        outliers, total = self.outliers, count(len(self.images), "image")
        if not outliers:
            found = "none stands out" if _are_compared(self.images) else f"with fewer than {_FEWEST} none can stand out"
            words = f"The losses of {total} after step {self.step:,}: {found}. {describe_hardest(self.images)}"
            odd = [f"{Path(i.path).name} ({VERDICTS[i.tendency]})" for i in self.images if i.tendency]
            least = f" Least like the others, but perhaps by chance: {list_first(odd, _MAX_NAMED)}." if odd else ""
            return f"{words}{least}".strip()
        named = list_first([f"{Path(i.path).name} ({_describe(i)})" for i in outliers], _MAX_NAMED)
        verb = agree(len(outliers), "stands")
        return f"{len(outliers):,} of {total} {verb} out after step {self.step:,}: {named}."


def _describe(image: ImageLoss) -> str:
    odd = f", {VERDICTS[image.verdict]}" if image.verdict not in ("", "high", "low") else ""
    return f"{image.times:.2g} times the usual loss{odd}"


def describe_duplicates(images: Sequence[ImageLoss]) -> str:
    """Return which images look the same as another one, as sentences; empty if none do."""
    validation = {image.path for image in images if image.kind == "validation"}
    pairs = dict.fromkeys(tuple(sorted((image.path, image.same_as))) for image in images if image.same_as)
    twice = [pair for pair in pairs if len(validation.intersection(pair)) != 1]
    leaks = [pair for pair in pairs if len(validation.intersection(pair)) == 1]
    found = (("Near duplicates, which count twice", twice), ("Near duplicates in training and validation", leaks))
    return " ".join(f"{what}: {_list_pairs(of_kind)}." for what, of_kind in found if of_kind)


def _list_pairs(pairs: Sequence[tuple[str, ...]]) -> str:
    return list_first([join_words([Path(path).name for path in pair]) for pair in pairs], _MAX_NAMED, separator="; ")


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
    noise, where its composition is. For images with losses before the training there are two more values, which show a
    wrong caption or subject much better: by how much training changed the loss, and by how much the caption did before.
    Both compare an image to itself, with the same noise, so how hard it is cancels out. (The loss given a caption, as a
    measure of its fit: Li et al. 2023, "Your Diffusion Model is Secretly a Zero-Shot Classifier".)

    An image stands out if one of these values is clearly separated from all values of the others of its folder
    (`_find_outliers`), and one that is like noise: its loss may be as high as theirs. Losses must be finite.
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
    values = _values_of(images)
    points_ND = np.column_stack([values_N / _deviation(values_N) for values_N in values.values()])
    for column, (_, below) in zip(points_ND.T, values, strict=True):
        if not below:
            np.maximum(column, 0.0, out=column)
    plain = {number for number, image in enumerate(images) if image.is_plain}
    plain = plain if len(plain) <= len(images) / 2 else set()
    noisy = _find_noise(images)
    others = sorted(set(range(len(images))) - plain - noisy)  # plain and noisy ones would hide the rest
    outliers = {others[place] for place in _find_outliers(points_ND[others])}
    apart = {others[place] for place in _find_farthest(points_ND[others])} - outliers

    def verdict_on(number: int) -> Verdict:
        if number in plain:
            return "plain"
        if number in noisy:
            return "noise"
        return worst_of(number) if number in outliers else ""

    def worst_of(number: int) -> Verdict:
        worst = {
            (above if values_N[number] > 0 else below): abs(float(point))
            for point, ((above, below), values_N) in zip(points_ND[number], values.items(), strict=True)
            if abs(values_N[number]) > math.log(_TIMES)
        }
        return max(worst, key=lambda verdict: worst[verdict], default="")

    return [
        replace(
            image,
            times=math.exp(mean),
            verdict=verdict_on(number),
            tendency=worst_of(number) if number in apart else "",
        )
        for number, (image, mean) in enumerate(zip(images, values["high", "low"].tolist(), strict=True))
    ]


def _values_of(images: Sequence[ImageLoss]) -> dict[tuple[Verdict, Verdict], NDArray[np.float64]]:
    """Return values of the images (N,), with median 0, by the verdicts on one far above 0 and on one far below it."""
    losses_NT = _logarithms([image.losses for image in images])
    distances_NT, weights_T = _distances(losses_NT)
    places_T = np.linspace(0.5, -0.5, len(weights_T))
    places_T -= weights_T @ places_T
    slopes_N = distances_NT @ (weights_T * places_T) / max(float(weights_T @ places_T**2), _MIN_LOSS)
    values: dict[tuple[Verdict, Verdict], NDArray[np.float64]] = {
        ("high", "low"): _centred(distances_NT @ weights_T),
        ("details", "composition"): _centred(slopes_N),
    }
    if all(image.before and image.without_caption for image in images):
        before_NT = _logarithms([image.before for image in images])
        without_NT = _logarithms([image.without_caption for image in images])
        changes_NT, weights_T = _distances(losses_NT - before_NT)
        values["unlearned", "memorized"] = _centred(changes_NT @ weights_T)
        effects_NT, weights_T = _distances(before_NT - without_NT)
        values["caption", ""] = _centred(effects_NT @ weights_T)  # one that fits better than the others is not odd
    return values


def _logarithms(losses: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    return np.log(np.maximum(losses, _MIN_LOSS))


def _distances(values_NT: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distances from the medians of the timesteps (N, T), and the weights of the timesteps (T,)."""
    distances_NT = values_NT - np.median(values_NT, axis=0)
    weights_T = 1 / np.array([_deviation(distances_N) for distances_N in distances_NT.T]) ** 2
    return distances_NT, weights_T / weights_T.sum()


def _centred(values_N: NDArray[np.float64]) -> NDArray[np.float64]:
    return values_N - np.median(values_N)


def _find_outliers(points_ND: NDArray[np.float64]) -> frozenset[int]:
    """Return which points are clearly separated from the others, of D values each in standard deviations from 0.

    The value that is farthest out counts. Skewed values and values with long tails are far out, too, but then others
    are nearly as far: so it has to be several times as far out as every value of any other point. Several outliers are
    looked for together: otherwise the second of two bad images would hide the first.
    """
    number = len(points_ND)
    if number < _FEWEST:
        return frozenset()
    distances_N = np.abs(points_ND).max(axis=1)
    order_N = np.argsort(-distances_N, kind="stable")
    largest_N = distances_N[order_N]
    gaps = (n for n in range(int(_MAX_SHARE * number), 0, -1) if largest_N[n - 1] > _TIMES_FARTHER * largest_N[n])
    return frozenset(order_N[: next(gaps, 0)].tolist())


def _find_farthest(points_ND: NDArray[np.float64]) -> frozenset[int]:
    """Return which point is farther out than all others, by less than an outlier; none where the next one is near."""
    if len(points_ND) < _FEWEST:
        return frozenset()
    distances_N = np.abs(points_ND).max(axis=1)
    next_one, farthest = np.argsort(distances_N, kind="stable")[-2:].tolist()
    is_apart = distances_N[farthest] > _TIMES_APART * distances_N[next_one]
    return frozenset({farthest} if is_apart else ())


def _find_noise(images: Sequence[ImageLoss]) -> frozenset[int]:
    """Return which images are like noise, among others that are not."""
    if len(images) < _FEWEST:
        return frozenset()
    correlations_N = np.array([image.correlation for image in images])
    limit = np.median(correlations_N) - _FAR_FROM_OTHERS * _deviation(correlations_N)
    return frozenset(np.flatnonzero(correlations_N < min(limit, _LIKE_NOISE)).tolist())


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
    tendency: Verdict = data["tendency"] if data.get("tendency") in VERDICTS else ""
    path, concept, kind, caption = (str(data[name]) for name in ("path", "concept", "kind", "caption"))
    losses = tuple(float(loss) for loss in data["losses"])
    # A report of an earlier version lacks some.
    correlation = float(data.get("correlation", 1.0))
    before, without = (tuple(map(float, data.get(name, ()))) for name in ("before", "without_caption"))
    return ImageLoss(
        path,
        concept,
        kind,
        caption,
        int(data["uses"]),
        losses,
        float(data["times"]),
        verdict,
        correlation,
        before,
        without,
        bool(data.get("is_plain", False)),
        str(data.get("same_as", "")),
        tendency,
    )


def thumbnail_of(image: Any) -> bytes:
    """Return a PIL image as a small JPEG; `image` is changed."""
    image.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX))
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=75)
    return buffer.getvalue()


_ADVICE = (
    "High loss: far above the other images', as of a wrong caption, an image of something else, a broken file, text or "
    "borders. Low loss: a nearly empty image, or one that is seen so often that the model has memorized it. Odd "
    "details: a high loss at little noise, as of grain or patterns. Odd composition: at much noise, as of an image of "
    "something else. Learned less: training helped the other images far more, so it shows something else. Learned "
    "more: the model memorized what does not follow from the other images, such as a wrong caption. Odd caption: "
    "before training the model expected something else from its caption. Like noise: its latents have no structure. "
    "Losses differ for good reasons, too: detailed images have higher ones."
)
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;background:Canvas;"
    "color:CanvasText}:root{color-scheme:light dark}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.35em .7em;text-align:left;vertical-align:top;border-top:1px solid #8884}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".high,.details,.composition,.unlearned,.memorized,.caption,.noise,.plain{background:#d9480f33}.low{background:#1971c233}"
    f"img{{display:block;max-width:{_THUMBNAIL_PX}px;max-height:{_THUMBNAIL_PX}px}}"
    "small{opacity:.75;overflow-wrap:anywhere}"
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
        f"<p>{html.escape(f'{report.summary} {report.advice}'.strip())}</p><p>{_ADVICE}</p>"
        f"<table><tr><th><th>image<th>times the usual loss<th>uses{heads}</tr>\n{rows}\n</table></html>\n"
    )


def _row(image: ImageLoss, thumbnail: bytes) -> str:
    shown = f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(thumbnail).decode()}">' if thumbnail else ""
    losses = "".join(f'<td class="n">{loss:.4f}' for loss in image.losses)
    text = "<br>".join(html.escape(t) for t in (f"{image.concept} ({image.kind})", image.caption, image.path) if t)
    marks = [VERDICTS[image.verdict]] if image.verdict else []
    marks += [f"near duplicate of {html.escape(Path(image.same_as).name)}"] if image.same_as else []
    verdict = f"<br><small>{'<br>'.join(marks)}</small>" if marks else ""
    name = html.escape(Path(image.path).name)
    return (
        f'<tr class="{image.verdict}"><td>{shown}<td><b>{name}</b><br><small>{text}</small>'
        f'<td class="n">{image.times:.2f}{verdict}<td class="n">{image.uses:,}{losses}</tr>'
    )
