"""Comparing the losses of images: which stand out, and the files of the report."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from trainer.run_folder.image_report import (
    ImageLoss,
    ImageReport,
    compare_images,
    newest_report,
    page_of,
    thumbnail_of,
    write_report,
)

TIMESTEPS = (125, 500, 875)
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
    assert compared(*usual).summary == "The losses of 30 images after step 30: none stands out."


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


@pytest.mark.parametrize("number", [12, 40])
def test_few_data_sets_without_a_bad_image_have_a_false_alarm(number: int) -> None:
    """The median deviation of a dozen images is often small by chance: two of the demo's own images stood out."""

    def usual(name: str) -> ImageLoss:
        return image(name, random.Random(f"of {name}").lognormvariate(0, 0.35))

    alarms = [
        bool(outliers(compared(*(usual(f"{n} in {data_set}") for n in range(number))))) for data_set in range(100)
    ]
    assert sum(alarms) <= 6


def test_a_report_is_written_and_read_again(tmp_path: Path) -> None:
    report = compared(*(image(f"cat {n}") for n in range(9)), image("<b>&", 3))
    page = write_report(tmp_path, report, lambda path: b"jpeg")
    assert page == tmp_path / "report" / "step-00000030" / "images.html"
    assert newest_report(tmp_path) == report
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
