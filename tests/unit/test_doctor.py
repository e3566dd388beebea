"""The dataset doctor: it finds each planted fault, and nothing at images without one."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from modules.config.codec import export_file
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.doctor.dataset_checks import MAX_DISTANCE, _near_hashes, similar_groups
from modules.data.doctor.finding import Finding, printable
from modules.data.doctor.measure import Bars, Measurement, find_bars
from modules.data.doctor.page import as_html, thumbnail
from modules.data.doctor.report import CHECKS, as_json, as_table, find_all
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.faulty_images import (
    draw_good_images,
    draw_scene,
    plant_faulty_captions,
    plant_faulty_images,
    write_caption,
)
from trainer.__main__ import main
from trainer.preflight.doctor import examine, look_at

Found = dict[str, set[str]]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good images, images with planted faults, a small concept, and a validation concept with a training image."""
    root = tmp_path_factory.mktemp("doctor")
    draw_good_images(root / "images")
    plant_faulty_images(root / "images")
    plant_faulty_captions(root / "images")
    draw_scene(302).save(root / "images" / "misnamed.png", "JPEG")
    write_caption(root / "images" / "misnamed.png", 302)
    for text in (root / "images").glob("*.txt"):  # a tag in all captions, and not at their start
        content = text.read_bytes()
        if content.strip():
            text.write_bytes(content.replace(b"zog, ", b"zog, masterpiece, ", 1))  # not that in UTF-16
    for folder, number in (("few", 300), ("validation", 301)):
        (root / folder).mkdir()
        draw_scene(number).save(root / folder / f"{folder}.png")
        write_caption(root / folder / f"{folder}.png", number)
    for suffix in (".jpg", ".txt"):
        shutil.copy(root / "images" / f"good-01{suffix}", root / "validation" / f"seen{suffix}")
    return root


def config_of(root: Path, **changes: object) -> Config:
    concepts = [
        {"path": str(root / "images")},
        {"path": str(root / "few"), "repeats": 3},
        {"path": str(root / "validation"), "kind": "validation"},
    ]
    settings = {"data": {"resolution_px": [256], "bucket_step_px": 64}, "concepts": concepts, **changes}
    return small_config(root, model=root / "no model", images=root / "images", **settings)


def by_file(findings: tuple[Finding, ...]) -> Found:
    found: Found = defaultdict(set)
    for finding in findings:
        for file in finding.files:
            found[file.name].add(finding.check)
    return dict(found)


def test_it_finds_each_planted_fault_and_nothing_else(drawn: Path) -> None:
    report = examine(config_of(drawn))
    assert by_file(report.findings) == {
        "broken.jpg": {"unreadable"},
        "letter.png": {"unreadable"},
        "good-00.jpg": {"near_duplicate"},
        "copy.jpg": {"near_duplicate"},
        "good-01.jpg": {"near_duplicate"},
        "seen.jpg": {"near_duplicate"},
        "tiny.png": {"tiny"},
        "blurred.jpg": {"blurred"},
        "noise.png": {"only_noise"},
        "dark.png": {"dark"},
        "pale.png": {"blown_out"},
        "plain.png": {"low_variance"},
        "bars.jpg": {"letterbox"},
        "strip.png": {"extreme_aspect", "bucket_waste", "small_bucket"},
        "few": {"concept_imbalance"},
        "missing.jpg": {"missing_caption"},
        "empty.jpg": {"missing_caption"},
        "utf16.jpg": {"missing_caption", "constant_tag"},
        "same-1.jpg": {"duplicate_caption"},
        "same-2.jpg": {"duplicate_caption"},
        "long.jpg": {"long_caption"},
        "misspelled.jpg": {"rare_tag"},
        "hole.png": {"surprising_format"},
        "adobe.png": {"surprising_format"},
        "animation.gif": {"surprising_format"},
        "misnamed.png": {"wrong_suffix"},
    }
    assert {f.check for f in report.findings} == set(CHECKS)
    assert {f.files[0].name for f in report.findings if f.severity == "error"} == {"broken.jpg", "letter.png"}
    for finding in report.findings:
        assert finding.reason.endswith((".", '"')) or finding.check in ("duplicate_caption", "long_caption")
        assert finding.fix.endswith(".")
        assert finding.unit


def test_good_images_alone_have_no_finding(tmp_path: Path) -> None:
    draw_good_images(tmp_path / "images", 12)
    config = small_config(
        tmp_path, model=tmp_path, images=tmp_path / "images", data={"resolution_px": [256], "bucket_step_px": 64}
    )
    report = examine(config)
    assert report.findings == ()
    assert report.num_images == 12
    assert not (tmp_path / "cache").exists()


def test_a_default_caption_was_not_copied_to_a_wrong_image(tmp_path: Path) -> None:
    """Who had left the captions of a few images to the default was told to check whether one was copied to them."""
    draw_good_images(tmp_path / "images", 12)
    for number in (1, 2, 3):
        (tmp_path / "images" / f"good-{number:02d}.txt").unlink()
    default = "A  Zog on plain ground " + "which is described at some length " * 3
    concept = {"path": str(tmp_path / "images"), "default_caption": default}
    config = small_config(tmp_path, model=tmp_path, images=tmp_path / "images", data={"resolution_px": [256]})
    findings = examine(laid_over(config, {"concepts": [concept]})).findings
    (same,) = [f for f in findings if f.check == "duplicate_caption"]
    assert len(same.files) == 3
    assert same.severity == "info"
    assert same.fix == (
        "Nothing, if the default caption is meant for all of them; else write captions for these images."
    )


def test_prompts_have_no_image_checks(tmp_path: Path) -> None:
    """Equal prompts and long ones are found; nothing is said of sizes, pixels and tags."""
    file = tmp_path / "prompts.txt"
    lines = ["a dog", "a cat", "A  dog", " ".join(["word"] * 300), *(f"tag {i}, always, twice" for i in range(20))]
    file.write_text("\n".join(lines), encoding="utf-8")
    concept = {"path": str(file), "kind": "prompts", "image": {"resolution_px": ["512x64"]}}
    report = examine(laid_over(small_config(tmp_path, model=tmp_path, images=file), {"concepts": [concept]}))
    assert (report.num_images, report.num_validation_images, report.num_prompts) == (0, 0, 24)
    assert {f.check for f in report.findings} == {"duplicate_caption", "long_caption"}
    (same,) = [f for f in report.findings if f.check == "duplicate_caption"]
    assert same.files == (file / "line 1", file / "line 3")
    assert "Several prompts are the same" in same.reason
    numbers = {"num_images": 0, "num_validation_images": 0, "num_prompts": 24}
    assert as_table(report.findings, **numbers).startswith("24 prompts: ")
    assert json.loads(as_json(report.findings, **numbers))["num_prompts"] == 24


def test_the_checks_are_ordered_and_their_json_is_stable(drawn: Path) -> None:
    first, second = (examine(config_of(drawn)) for _ in range(2))
    texts = [as_json(r.findings, num_images=r.num_images, num_validation_images=2) for r in (first, second)]
    assert texts[0] == texts[1]
    data = json.loads(texts[0])
    assert data["counts"]["error"] == 2
    assert [f["check"] for f in data["findings"]] == sorted(
        (f["check"] for f in data["findings"]), key=list(CHECKS).index
    )
    assert set(data["findings"][0]) == {"check", "severity", "files", "reason", "figure", "unit", "fix"}


def test_figures_and_fixes_say_what_was_measured(drawn: Path) -> None:
    found = {(f.check, f.files[0].name): f for f in examine(config_of(drawn)).findings}
    assert found["tiny", "tiny.png"].figure == 4
    assert found["bucket_waste", "strip.png"].figure == pytest.approx(
        100 * (1 - 320 / 785), abs=0.1
    )  # 785x192 to 320x192
    assert found["letterbox", "bars.jpg"].figure == pytest.approx(
        100 * 76 / 256, abs=4
    )  # ringing of the JPEG at its edges
    assert found["extreme_aspect", "strip.png"].figure == pytest.approx(900 / 220)
    assert found["surprising_format", "hole.png"].figure == pytest.approx(100 * 0.12, abs=1)
    assert "validation loss" in found["near_duplicate", "good-01.jpg"].reason
    assert found["near_duplicate", "copy.jpg"].files[1].name == "good-00.jpg"
    assert '"bleu haus"' in found["rare_tag", "misspelled.jpg"].reason
    assert "repeats of few by" in found["concept_imbalance", "few"].fix


@pytest.mark.parametrize("fixed", ["concept", "resolution", "width and height"])
def test_the_advice_fits_fixed_sizes(drawn: Path, fixed: str) -> None:
    """It used to speak of buckets and aspect ratios, which a fixed size does not have."""
    data = {"resolution_px": [256, "512x256"] if fixed == "resolution" else [256], "bucket_step_px": 64}
    if fixed == "width and height":
        data |= {"fixed_width_px": 512, "fixed_height_px": 256}
    image = {"resolution_px": ["512x256"]} if fixed == "concept" else {}
    concept = {"path": str(drawn / "few"), "image": image, "repeats": 2}  # one at each resolution
    config = config_of(drawn, data=data, concepts=[concept], training={"batch_size": 4})
    found = {f.check: f for f in examine(config).findings if "512x256" in f.reason}
    assert found.keys() == {"bucket_waste", "small_bucket", "tiny"}
    for finding in found.values():
        assert "the fixed size 512x256" in finding.reason.replace("The", "the")
        assert "bucket" not in finding.reason + finding.fix.replace("turn on aspect ratio bucketing", "")
    assert "choose a size nearer to its shape" in found["bucket_waste"].fix
    assert "lower the batch size" in found["small_bucket"].fix
    assert "choose a smaller size" in found["tiny"].fix
    bucketed = examine(config_of(drawn, concepts=[{"path": str(drawn / "few")}], training={"batch_size": 4})).findings
    assert ["bucket" in f.reason for f in bucketed if f.check == "small_bucket"] == [True]


def test_dropped_partial_batches_are_a_warning(drawn: Path) -> None:
    examined = replace(look_at(config_of(drawn)), bucket_samples={Size(384, 128): 1, Size(256, 256): 50})
    severities = {}
    for mode in ("keep", "drop"):
        [small] = [f for f in find_all(replace(examined, partial_batches=mode)) if f.check == "small_bucket"]
        severities[mode] = small.severity
    assert severities == {"keep": "info", "drop": "warning"}


def test_shared_captions_are_no_duplicates(tmp_path: Path) -> None:
    draw_good_images(tmp_path / "images", 4)
    concept = {"path": str(tmp_path / "images"), "caption_source": "fixed_text", "fixed_caption": "a zog"}
    data = {"resolution_px": [256], "bucket_step_px": 64}
    assert (
        examine(small_config(tmp_path, model=tmp_path, images=tmp_path, data=data, concepts=[concept])).findings == ()
    )


@pytest.mark.parametrize("is_upright", [False, True])
def test_bars_are_found_and_plain_backgrounds_are_not(is_upright: bool) -> None:
    def bars_of(pixels_HWC: np.ndarray) -> Bars:
        return find_bars(pixels_HWC.transpose(1, 0, 2) if is_upright else pixels_HWC)

    scene = np.asarray(draw_scene(1)).copy()
    assert bars_of(scene).area == 0
    with_bars = scene.copy()
    with_bars[:30] = with_bars[-20:] = (0, 0, 0)
    assert bars_of(with_bars).area == pytest.approx(50 / 256)
    one_sided = scene.copy()
    one_sided[:30] = 0
    assert bars_of(one_sided).area == 0
    paper = np.full((256, 256, 3), 250, dtype=np.uint8)
    paper[60:200, 80:160] = scene[60:200, 80:160]
    assert bars_of(paper).area == 0
    sky = np.repeat(np.linspace(90, 250, 256, dtype=np.uint8)[:, None, None], 256, axis=1).repeat(3, axis=2)
    assert bars_of(sky).area == 0


HOSTILE = '"><script>alert(1)</script>\x1b[31m\n\u202egpj.png'


def test_the_page_escapes_names_and_loads_nothing() -> None:
    path = Path("images") / HOSTILE.replace("/", "∕")
    undecodable = Path("images") / "\udcff.png"
    finding = Finding((path, undecodable), f"<b>{HOSTILE}</b>", 3.0, "% of white", "Remove it.", check="dark")
    page = as_html([finding], {path: b"\xff\xd8"}, title=HOSTILE, num_images=2, num_validation_images=0)
    assert page.encode("utf-8")
    assert "<script" not in page
    assert "<b>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "\\u202egpj.png" in page
    assert "&quot;&gt;&lt;script&gt;alert(1)&lt;" in page
    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count('src="') == page.count('src="data:image/jpeg;base64,') == 1


def test_the_table_shows_no_control_characters_and_cuts_long_lists() -> None:
    paths = [Path(f"{HOSTILE}{i}") for i in range(30)]
    findings = [Finding((path,), "Dark.", 1.0, "% of white", "Remove it.", check="dark") for path in paths]
    table = as_table(findings, num_images=30, num_validation_images=0)
    assert "\x1b" not in table
    assert "and 10 more; --json and --html list all" in table
    assert printable("a\nb\x00") == "a\\nb\\x00"


def test_a_thumbnail_is_small_and_without_metadata(drawn: Path) -> None:
    content = thumbnail(drawn / "images" / "adobe.png")
    assert content is not None
    assert len(content) < 30_000
    (drawn / "thumbnail.jpg").write_bytes(content)
    with Image.open(drawn / "thumbnail.jpg") as image:
        assert max(image.size) == 160
        assert "icc_profile" not in image.info
    assert thumbnail(drawn / "images" / "letter.png") is None


def test_the_verb_prints_and_writes(drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export_file(config_of(drawn), tmp_path / "config.json")
    before = sorted((p, p.stat().st_mtime_ns) for p in drawn.rglob("*"))
    assert main(["doctor", str(tmp_path / "config.json"), "--html", str(tmp_path / "page.html")]) == 1
    shown = capsys.readouterr()
    assert "Near-duplicates (2)" in shown.out
    assert "examining" in shown.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<figure") == page.count("</figure>") > 20
    assert page.count("data:image/jpeg;base64,") > 15
    assert sorted((p, p.stat().st_mtime_ns) for p in drawn.rglob("*")) == before
    assert main(["doctor", str(tmp_path / "config.json"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["num_validation_images"] == 2
    assert main(["doctor", str(tmp_path / "config.json"), "--set", "concepts.0.path=nowhere"]) == 2


def test_stop_leaves_nothing(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export_file(config_of(drawn), tmp_path / "config.json")
    measurements = []

    def interrupted(path: Path) -> bytes:
        measurements.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.preflight.doctor.thumbnail", interrupted)
    assert main(["doctor", str(tmp_path / "config.json"), "--html", str(tmp_path / "page.html")]) == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json"]
    assert "Stopped. Nothing was written." in capsys.readouterr().err
    assert measurements


def test_progress_can_stop_the_examination(drawn: Path) -> None:
    class StoppedError(Exception):
        pass

    calls = []

    def progress(name: str, done: int, total: int) -> None:
        calls.append((name, done, total))
        if name == "examining":
            raise StoppedError

    with pytest.raises(StoppedError):
        examine(config_of(drawn), progress)
    assert [c[0] for c in calls].count("examining") == 1


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DarkroomError, match="does not exist"):
        examine(small_config(tmp_path, model=tmp_path, images=tmp_path / "nowhere"))


def test_similar_images_form_groups() -> None:
    """Near hashes with the same colours, over the blocks in which they are compared; other colours are other images."""
    plain = measurements(hash_=0)
    draw = random.Random(0)
    images = [replace(plain, hash=draw.getrandbits(64)) for _ in range(1200)]
    images[1100] = replace(plain, hash=images[3].hash ^ 0b11)
    images[600] = replace(plain, hash=images[1100].hash ^ 0b11111 << 30)
    images[601] = replace(images[3], colours=np.full((16, 16, 3), 255, dtype=np.uint8))
    assert list(similar_groups(images)) == [([3, 600, 1100], 5)]


def test_all_near_hashes_are_found_without_a_comparison_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the six different bits are; a folder of 100,000 images has five billion pairs."""
    draw = np.random.default_rng(0)
    hashes_N = draw.integers(0, 1 << 64, 6_000, dtype=np.uint64)
    for copy, num_bits in zip(range(3_000), [*range(10)] * 300, strict=True):
        bits = draw.choice(64, num_bits, replace=False)
        hashes_N[copy + 3_000] = hashes_N[copy] ^ np.bitwise_or.reduce(np.uint64(1) << bits.astype(np.uint64))
    expected = {
        (int(row), int(other))
        for row in range(6_000)
        for other in np.flatnonzero(np.bitwise_count(hashes_N[row] ^ hashes_N) <= MAX_DISTANCE)
        if row < other
    }
    compared, count = [], np.bitwise_count
    monkeypatch.setattr("numpy.bitwise_count", lambda hashes: compared.append(len(hashes)) or count(hashes))
    blocks = list(_near_hashes(hashes_N))
    assert {pair for one, other, _ in blocks for pair in zip(*np.sort([one, other], axis=0).tolist(), strict=True)} == (
        expected
    )
    assert len(expected) == 2_100
    assert sum(compared) < 6_000**2 / 2 / 100


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_the_search_for_similar_images_can_be_stopped(drawn: Path, calls: int) -> None:
    """Before a check, and within the comparison."""
    left = iter(range(calls))

    class StoppedError(Exception):
        pass

    def progress(done: int, total: int) -> None:
        if next(left, None) is None:
            raise StoppedError
        reported.append(done)

    reported: list[int] = []
    with pytest.raises(StoppedError):
        find_all(look_at(config_of(drawn)), progress)
    assert reported == [0, 1, 1, 1, 1][:calls]


def measurements(hash_: int) -> Measurement:
    return Measurement(1.0, 1.0, 0.0, 1.0, 60.0, Bars(), hash_, np.zeros((16, 16, 3), dtype=np.uint8))


class Balance(HTMLParser):
    """Follows the tags of a page that need an end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_tag_of_the_page_is_closed(drawn: Path) -> None:
    report = examine(config_of(drawn))
    page = as_html(report.findings, {}, title="config.json", num_images=report.num_images, num_validation_images=2)
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert page.count("<section") == len(CHECKS)


def line_drawing(pen: ImageDraw.ImageDraw) -> None:
    for i in range(12):
        pen.line((30 + 15 * i, 40, 215 - 15 * i, 210), fill=(70, 70, 70), width=2)


def product(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((25, 25, 230, 220), fill=(200, 30, 30))


def yellow_drawing(pen: ImageDraw.ImageDraw) -> None:
    pen.ellipse((50, 60, 170, 190), fill=(255, 230, 60))


def night(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, 256, 256), fill=(6, 6, 14))
    pen.ellipse((110, 60, 150, 100), fill=(255, 240, 200))


@pytest.mark.parametrize("draw", [line_drawing, product, yellow_drawing, night])
def test_plain_backgrounds_and_dark_scenes_are_not_faulty(draw: Callable[..., None], tmp_path: Path) -> None:
    image = Image.new("RGB", (256, 256), "white")
    draw(ImageDraw.Draw(image))
    image.save(tmp_path / "image.png")
    assert findings_of_folder(tmp_path) == []


@pytest.mark.parametrize("size", [(64, 64), (300, 400), (1600, 1200)])
def test_noise_is_found_at_every_size_and_grass_is_not_noise(size: tuple[int, int], tmp_path: Path) -> None:
    Image.effect_noise(size, 120).save(tmp_path / "image.png")
    assert [f.check for f in findings_of_folder(tmp_path) if f.check not in ("tiny", "bucket_waste")] == ["only_noise"]
    blades = Image.effect_noise(size, 120).filter(ImageFilter.GaussianBlur(max(size) / 400 + 0.6))
    blades.save(tmp_path / "image.png")
    assert "only_noise" not in [f.check for f in findings_of_folder(tmp_path)]


def test_a_small_sharp_subject_before_a_blurred_background_is_sharp(tmp_path: Path) -> None:
    scene = draw_scene(1, 512, 512)
    image = scene.filter(ImageFilter.GaussianBlur(12))
    image.paste(scene.crop((200, 200, 300, 300)), (200, 200))
    image.save(tmp_path / "image.png")
    assert findings_of_folder(tmp_path) == []


def findings_of_folder(folder: Path) -> list[Finding]:
    concept = {"path": str(folder), "caption_source": "fixed_text", "fixed_caption": "a zog"}
    data = {"resolution_px": [256], "bucket_step_px": 64}
    config = small_config(folder, model=folder, images=folder, data=data, concepts=[concept])
    return [f for f in examine(config).findings if f.check != "small_bucket"]
