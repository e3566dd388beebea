"""Comparing the losses of images: which stand out, and the files of the report."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trainer.run_folder.image_report import (
    VERDICTS,
    ImageLoss,
    ImageReport,
    compare_images,
    newest_report,
    page_of,
    thumbnail_of,
    write_report,
)

TIMESTEPS = (125, 500, 875)
TIMES_OF_PHOTOS = (125, 375, 625, 875)
TYPICAL = (0.3, 0.05, 0.004)


def image(name: str, times: float = 1.0, *, concept: str = "cat", kind: str = "training") -> ImageLoss:
    """Return an image whose losses are about so many times the typical ones; at the last timestep they vary most."""
    draw = random.Random(name)
    losses = (
        loss * times * draw.lognormvariate(0, sigma) for loss, sigma in zip(TYPICAL, (0.1, 0.1, 0.8), strict=True)
    )
    return ImageLoss(f"/images/{name}.png", concept, kind, "a cat", 4, tuple(losses))


def compared(*images: ImageLoss) -> ImageReport:
    return compare_images(30, TIMESTEPS, images)


def outliers(report: ImageReport) -> dict[str, str]:
    return {Path(i.path).stem: i.verdict for i in report.outliers}


def test_images_that_do_not_fit_the_others_are_found_in_both_directions() -> None:
    usual = [image(f"cat {n}") for n in range(30)]
    report = compared(*usual, image("dog", 2.5), image("blank", 0.3))
    assert outliers(report) == {"dog": "high", "blank": "low"}
    assert report.images[0].path == "/images/dog.png"
    assert report.images[0].times == pytest.approx(2.5, rel=0.3)
    assert report.summary.startswith("2 of 32 images stand out after step 30: blank.png (0.3")
    assert outliers(compared(*usual)) == {}
    nearly = compared(*usual, image("dog", 1.3))
    assert outliers(nearly) == {}
    assert nearly.summary.endswith("Least like the others, but perhaps by chance: dog.png (high loss).")
    assert compared(*usual).summary == (
        "The losses of 30 images after step 30: none stands out. The hardest are cat 23.png, cat 13.png and cat 9.png, "
        "with 1.1 times the usual loss."
    )
    assert compared(*usual[:5], image("dog", 2.5)).summary == (
        "The losses of 6 images after step 30: with fewer than 12 none can stand out. The hardest are dog.png, "
        "cat 2.png and cat 3.png, with 1 to 3.1 times the usual loss."
    )
    assert compared(usual[0]).summary.endswith("none can stand out.")


# Measured on the demo model after 180 steps, at timesteps 125, 375, 625 and 875: twenty photos of a toy dog, and images
# of other things that were among them.
PHOTOS = (
    (0.1735, 0.0729, 0.0305, 0.0063),
    (0.1710, 0.0758, 0.0251, 0.0051),
    (0.1612, 0.0768, 0.0301, 0.0049),
    (0.2031, 0.0987, 0.0364, 0.0066),
    (0.2750, 0.1037, 0.0295, 0.0054),
    (0.1470, 0.0649, 0.0220, 0.0048),
    (0.1686, 0.0718, 0.0220, 0.0041),
    (0.1857, 0.0701, 0.0272, 0.0041),
    (0.1782, 0.0607, 0.0202, 0.0038),
    (0.1824, 0.0740, 0.0336, 0.0064),
    (0.2123, 0.1044, 0.0350, 0.0060),
    (0.1801, 0.0610, 0.0257, 0.0036),
    (0.1777, 0.0781, 0.0313, 0.0048),
    (0.2367, 0.1089, 0.0309, 0.0054),
    (0.1561, 0.0783, 0.0345, 0.0060),
    (0.1743, 0.0777, 0.0242, 0.0060),
    (0.2141, 0.0990, 0.0342, 0.0060),
    (0.1451, 0.0786, 0.0243, 0.0053),
    (0.1678, 0.0719, 0.0269, 0.0050),
    (0.2237, 0.0879, 0.0287, 0.0043),
)
PLANTED = {
    "mosaic": (0.8310, 0.2674, 0.0728, 0.0092),
    "drawing": (0.1286, 0.0917, 0.0434, 0.0123),
    "fine mosaic": (0.2647, 0.0660, 0.0214, 0.0027),
    "noise": (0.1433, 0.0345, 0.0135, 0.0019),
    "black": (0.0384, 0.0134, 0.0293, 0.0140),
    "grey noise": (0.0889, 0.0206, 0.0125, 0.0019),
}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("black", "composition"), ("grey noise", "low"), ("mosaic", "high"), ("drawing", "composition"), ("noise", "")],
)
def test_a_bad_image_among_photos_is_found_and_named(name: str, verdict: str) -> None:
    photos = [ImageLoss(f"{n}.jpg", "dog", "training", "", 1, losses) for n, losses in enumerate(PHOTOS)]
    assert outliers(compare_images(180, TIMES_OF_PHOTOS, photos)) == {}
    planted = ImageLoss(f"{name}.png", "dog", "training", "", 1, PLANTED[name])
    report = compare_images(180, TIMES_OF_PHOTOS, [*photos, planted])
    assert outliers(report) == ({name: verdict} if verdict else {}), "by its losses alone, only what is far from others"
    if not verdict:
        return
    odd = ", odd" in report.summary
    assert f"1 of 21 images stands out after step 180: {name}.png (" in report.summary
    assert odd == (verdict in ("details", "composition"))
    assert VERDICTS[report.outliers[0].verdict] in page_of(report, lambda path: b"").partition("<table>")[2]


# Of LoRAs on the demo model after 90 steps, of zogs and of known shapes: twenty images, and bad ones among 36 such.
# For each the losses at four timesteps, those before training, and those before training without the caption.
MEASURED: dict[str, dict[str, list[list[float]]]] = json.loads(
    Path(__file__).with_name("image_losses.json").read_text(encoding="utf-8")
)


def measured_in(folder: str) -> dict[str, ImageLoss]:
    return {
        n: ImageLoss(f"{n}.png", "dog", "training", "", 1, tuple(now), before=tuple(b), without_caption=tuple(w))
        for n, (now, b, w) in MEASURED[folder].items()
    }


@pytest.mark.parametrize(
    ("folder", "name", "verdict"),
    [
        ("zogs", "black0", "unlearned"),
        ("zogs", "other0", "unlearned"),  # a star under the caption of a zog
        ("scenes", "black0", "caption"),
        ("scenes", "other0", "high"),  # a photo of a cat
        ("scenes", "wrongcaption0", "caption"),
        ("scenes", "wrongcaption2", "caption"),
    ],
)
def test_what_training_and_captions_change_shows_bad_images(folder: str, name: str, verdict: str) -> None:
    """Their loss alone shows one of the six."""
    images = measured_in(folder)
    good = [image for n, image in images.items() if n.startswith("ok")]
    assert outliers(compare_images(90, TIMES_OF_PHOTOS, good)) == {}
    assert outliers(compare_images(90, TIMES_OF_PHOTOS, [*good, images[name]])) == {name: verdict}
    alone = [replace(i, before=(), without_caption=()) for i in [*good, images[name]]]
    assert bool(compare_images(90, TIMES_OF_PHOTOS, alone).outliers) == (name == "other0" and folder == "scenes")


@pytest.mark.parametrize(("name", "verdict"), [("wrongcaption2", "caption"), ("other0", "high"), ("black0", "caption")])
def test_noise_does_not_hide_another_bad_image(name: str, verdict: str) -> None:
    images = {n: replace(image, correlation=0.7) for n, image in measured_in("scenes").items()}
    good = [image for n, image in images.items() if n.startswith("ok")]
    noise = replace(images["noise0"], correlation=0.05)
    found = outliers(compare_images(90, TIMES_OF_PHOTOS, [*good, noise, images[name]]))
    assert found == {"noise0": "noise", name: verdict}


def test_a_concept_of_harder_images_is_compared_to_itself() -> None:
    cats = [image(f"cat {n}") for n in range(20)]
    cities = [image(f"city {n}", 4, concept="city") for n in range(20)]
    unseen = [image(f"new {n}", 8, kind="validation") for n in range(20)]
    assert outliers(compared(*cats, *cities, *unseen)) == {}
    assert outliers(compared(*cats, *cities, *unseen, image("bad city", 12, concept="city"))) == {"bad city": "high"}


def test_a_few_images_of_a_concept_are_compared_to_all_and_very_few_not_at_all() -> None:
    cats = [image(f"cat {n}") for n in range(20)]
    cars = [image(f"car {n}", 1, concept="car") for n in range(4)]
    many = compared(*cats, *cars, image("strange car", 5, concept="car"))
    assert outliers(many) == {}, "five cars, and cats are compared to cats"
    few_of_each = [image(f"{name} {n}", concept=name) for name in ("cat", "car", "cup") for n in range(4)]
    assert outliers(compared(*few_of_each, image("strange cup", 5, concept="cup"))) == {"strange cup": "high"}
    assert outliers(compared(image("a"), image("b"), image("c", 9))) == {}


def test_a_loss_of_exactly_zero_is_far_below_the_others() -> None:
    black = ImageLoss("/images/black.png", "cat", "training", "", 4, (0.0, 0.0, 0.0))
    assert outliers(compared(*(image(f"cat {n}") for n in range(20)), black)) == {"black": "low"}


Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
SHAPES: dict[str, Draw] = {
    "normal": lambda draw, number: draw.standard_normal(number),
    "gamma": lambda draw, number: (draw.gamma(2, 1, number) - 2) / math.sqrt(2),
    "gamma, to the low side": lambda draw, number: (2 - draw.gamma(2, 1, number)) / math.sqrt(2),
    "lognormal": lambda draw, number: (np.exp(0.5 * draw.standard_normal(number)) - 1) / 0.6,
    "exponential": lambda draw, number: draw.exponential(1, number),
    "long tails": lambda draw, number: draw.standard_t(3, number) / 1.2,
    "Laplace": lambda draw, number: draw.laplace(0, 0.7, number),
    "two kinds of subject": lambda draw, number: draw.standard_normal(number) + 6 * (draw.random(number) < 0.5),
}


def photos_of(shape: str, number: int, draw: np.random.Generator, *, with_base: bool = False) -> list[ImageLoss]:
    """Return photos that spread as much as `PHOTOS`; the logarithms of their losses have a distribution of a shape.

    With `with_base` also the changes of the logarithms by training and by captions have it.
    """

    def noise_NT() -> NDArray[np.float64]:
        return draw.standard_normal((number, 4)) * (0.116, 0.07, 0.086, 0.116)

    logarithms_NT = np.log(np.median(PHOTOS, axis=0)) + 0.14 * SHAPES[shape](draw, number)[:, None] + noise_NT()
    before_NT = logarithms_NT + 0.5 - 0.14 * SHAPES[shape](draw, number)[:, None] + noise_NT()
    without_NT = before_NT + 0.2 - 0.14 * SHAPES[shape](draw, number)[:, None] + noise_NT()
    rows = zip(*(np.exp(values_NT).tolist() for values_NT in (logarithms_NT, before_NT, without_NT)), strict=True)
    images = [
        ImageLoss(f"{n}.jpg", "dog", "training", "", 1, tuple(now), before=tuple(b), without_caption=tuple(w))
        for n, (now, b, w) in enumerate(rows)
    ]
    return images if with_base else [replace(i, before=(), without_caption=()) for i in images]


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("number", [10, 12, 20, 40, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_folders_without_a_bad_image_seldom_have_a_false_alarm(shape: str, number: int, with_base: bool) -> None:
    draw, sets = np.random.default_rng(number), 60
    clean = (photos_of(shape, number, draw, with_base=with_base) for _ in range(sets))
    alarms = sum(bool(compare_images(9, TIMES_OF_PHOTOS, images).outliers) for images in clean)
    share = 0.13 if number == 12 or shape == "long tails" else 0.1
    assert alarms <= share * sets * (number > 10), "5 % (twelve images and long tails: up to 10 %), and chance"


def test_several_bad_images_are_found_together() -> None:
    draw, bad = np.random.default_rng(1), ("black", "mosaic")
    planted = [ImageLoss(f"{name}.png", "dog", "training", "", 1, PLANTED[name]) for name in bad]
    for _ in range(2):
        report = compare_images(9, TIMES_OF_PHOTOS, [*photos_of("normal", 20, draw), *planted])
        assert outliers(report).keys() == set(bad)


def test_the_farthest_of_a_thousand_images_do_not_stand_out() -> None:
    draw = np.random.default_rng(2)
    for shape in ("normal", "two kinds of subject"):
        assert compare_images(9, TIMES_OF_PHOTOS, photos_of(shape, 1_000, draw)).outliers == []


@pytest.mark.parametrize("number", [20, 300])
def test_noise_is_found_by_its_latents_though_its_loss_is_usual(number: int) -> None:
    draw = random.Random(number)
    photos = [replace(image(f"cat {n}"), correlation=draw.gauss(0.6, 0.08)) for n in range(number)]
    assert outliers(compared(*photos)) == {}
    report = compared(*photos, replace(image("white noise"), correlation=0.05))
    assert outliers(report) == {"white noise": "noise"}
    assert "white noise.png (" in report.summary
    assert "times the usual loss, like noise)" in report.summary
    plain = compared(*photos, replace(image("smooth"), correlation=0.9))
    assert outliers(plain) == {}
    stars = [replace(image(f"stars {n}"), correlation=draw.gauss(0.1, 0.04)) for n in range(number)]
    assert outliers(compared(*stars)) == {}
    assert outliers(compared(*stars[:5], replace(image("noise"), correlation=-0.5))) == {}, "too few to tell"


def test_a_plain_image_is_called_so_and_not_like_noise() -> None:
    """The latents of such an image differ only by rounding errors, which look like noise."""
    photos = [replace(image(f"cat {n}"), correlation=0.6) for n in range(20)]
    black = replace(image("black", 0.3), correlation=0.05, is_plain=True)
    report = compared(*photos, black)
    assert outliers(report) == {"black": "plain"}
    assert report.summary.endswith("times the usual loss, one plain colour).")
    assert outliers(compared(*photos[:4], black)) == {"black": "plain"}, "among a few, too"
    assert outliers(compared(*(replace(photo, is_plain=True) for photo in photos))) == {}, "a folder of colours"


def test_a_plain_image_does_not_hide_another_bad_one() -> None:
    images = measured_in("scenes")
    good = [image for n, image in images.items() if n.startswith("ok")]
    black = replace(images["black0"], is_plain=True)
    found = outliers(compare_images(90, TIMES_OF_PHOTOS, [*good, black, images["wrongcaption2"]]))
    assert found == {"black0": "plain", "wrongcaption2": "caption"}


def test_near_duplicates_are_named(tmp_path: Path) -> None:
    images = [image(f"cat {n}") for n in range(4)]
    images[1] = replace(images[1], same_as=images[3].path)
    images[3] = replace(images[3], same_as=images[1].path)
    report = compared(*images)
    assert report.summary.endswith("Near duplicates, which count twice: cat 1.png and cat 3.png.")
    assert "near duplicate of cat 3.png" in page_of(report, lambda path: b"")
    write_report(tmp_path, report, lambda path: b"")
    assert newest_report(tmp_path) == report
    many = [replace(image(str(n)), same_as="/images/first.png") for n in range(7)]
    assert compared(*many).summary.endswith("; and 2 more.")
    images[3] = replace(images[3], kind="validation")
    assert compared(*images).summary.endswith("Near duplicates in training and validation: cat 1.png and cat 3.png.")


def test_a_report_is_written_and_read_again(tmp_path: Path) -> None:
    report = compared(*(image(f"cat {n}") for n in range(9)), image("<b>&", 3))
    page = write_report(tmp_path, report, lambda path: b"jpeg")
    assert page == tmp_path / "report" / "step-00000030" / "images.html"
    assert newest_report(tmp_path) == report
    nearly = compared(*(image(f"cat {n}") for n in range(30)), image("dog", 1.3))
    write_report(tmp_path / "other", nearly, lambda path: b"jpeg")
    assert newest_report(tmp_path / "other") == nearly
    text = page.read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;.png" in text
    assert "<b>&" not in text.replace("<b>&lt;", "")
    assert text.count("data:image/jpeg;base64,") == 10
    assert text.count("<tr") == 11
    assert json.loads(page.with_name("images.json").read_text(encoding="utf-8"))["summary"] == report.summary
    page.with_name("images.json").write_text("{", encoding="utf-8")
    assert newest_report(tmp_path) is None


def test_only_the_first_images_of_the_page_have_pictures() -> None:
    report = compared(*(image(f"cat {n}") for n in range(450)))
    asked: list[str] = []

    def thumbnail(path: str) -> bytes:
        asked.append(path)
        return b""

    assert "data:" not in page_of(report, thumbnail)
    assert asked == [i.path for i in report.images[:400]]


def test_a_thumbnail_is_a_small_jpeg() -> None:
    from io import BytesIO

    from PIL import Image

    with Image.open(BytesIO(thumbnail_of(Image.new("RGB", (600, 300), "red")))) as small:
        assert (small.format, small.size) == ("JPEG", (112, 56))
