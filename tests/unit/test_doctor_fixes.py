"""The doctor's fixes: what they plan, that they lose nothing, and that they are undone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from modules.config.schema import Config
from modules.data.captions.sources import CaptionOrigin
from modules.data.concept import Concept
from modules.data.doctor.finding import Finding
from modules.data.doctor.fixes import FIXES, KEPT_FOLDER, Step, apply, undo
from modules.data.scan import scan_folder
from modules.data.source_image import SourceImage
from modules.system.errors import DarkroomError
from trainer.preflight.doctor import examine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.effect_noise((64, 64), 60).convert("RGB").save(tmp_path / "wrong.png", "JPEG")
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "right.png")
    Image.effect_noise((64, 64), 40).convert("RGB").save(tmp_path / "taken.jpg", "PNG")
    Image.effect_noise((64, 64), 30).convert("RGB").save(tmp_path / "taken.png")
    (tmp_path / "broken.png").write_bytes(b"not an image")
    (tmp_path / "wrong.txt").write_bytes("ein schöner Hut".encode("cp1252"))
    (tmp_path / "right.txt").write_bytes("a hat\r\na blue hat".encode("utf-16"))
    return tmp_path


def diagnosed(folder: Path) -> tuple[Sequence[Finding], Sequence[SourceImage]]:
    images = scan_folder(folder, include_subfolders=False, captions=CaptionOrigin()).images
    return examine(Config(concepts=(Concept(path=str(folder)),))).findings, images


def steps_of(name: str, folder: Path) -> list[Step]:
    return list(FIXES[name].steps(*diagnosed(folder)))


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_fix_changes_only_its_files_and_is_undone(folder: Path) -> None:
    before = contents(folder)
    wanted = {
        "rename": {"wrong.jpg": before["wrong.png"]},
        "set_aside": {f"{KEPT_FOLDER}/broken.png": before["broken.png"]},
        "utf_8": {
            "wrong.txt": "ein schöner Hut".encode(),
            "right.txt": b"a hat\r\na blue hat",
            f"{KEPT_FOLDER}/wrong.txt": before["wrong.txt"],
            f"{KEPT_FOLDER}/right.txt": before["right.txt"],
        },
    }
    findings, images = diagnosed(folder)
    for name, changed in wanted.items():
        steps = list(FIXES[name].steps(findings, images))
        assert all(step.sentence for step in steps)
        done = apply(steps)
        now = contents(folder)
        assert {path: now[path] for path in changed} == changed, name
        gone = before.keys() - now.keys()
        assert gone == {"rename": {"wrong.png"}, "set_aside": {"broken.png"}, "utf_8": set()}[name]
        assert sorted(before.values()) == sorted(v for p, v in now.items() if p not in ("wrong.txt", "right.txt")) or (
            name != "utf_8"
        )
        undo(done)
        assert contents(folder) == before, name
        assert not (folder / KEPT_FOLDER).exists()


def test_a_rename_never_takes_the_name_of_another_image(folder: Path) -> None:
    assert [step.target.name for step in steps_of("rename", folder)] == ["wrong.jpg"]
    (folder / "wrong.jpg").write_bytes(b"new")
    assert apply([Step(folder / "wrong.png", folder / "wrong.jpg")]) == ()
    assert (folder / "wrong.jpg").read_bytes() == b"new"


def test_the_wrong_suffix_is_found_and_kept_files_are_not_scanned(folder: Path) -> None:
    findings, _ = diagnosed(folder)
    wrong = [f.files[0].name for f in findings if f.check == "wrong_suffix"]
    assert wrong == ["taken.jpg", "wrong.png"]
    apply(steps_of("set_aside", folder))
    findings, images = diagnosed(folder)
    assert not [f for f in findings if f.check == "unreadable"]
    assert len(images) == 4


def test_a_second_file_of_the_same_name_is_kept_too(folder: Path) -> None:
    apply(steps_of("set_aside", folder))
    (folder / "broken.png").write_bytes(b"another broken one")
    apply(steps_of("set_aside", folder))
    assert sorted(p.name for p in (folder / KEPT_FOLDER).iterdir()) == ["broken 2.png", "broken.png"]


def test_a_fix_that_fails_midway_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(folder)
    steps = steps_of("utf_8", folder)
    assert len(steps) == 2
    calls: list[Path] = []

    def write_text(file: Path, text: str) -> None:
        calls.append(file)
        if len(calls) == 2:
            raise PermissionError(13, "Permission denied")
        file.write_text(text, encoding="utf-8")

    monkeypatch.setattr("modules.data.doctor.fixes.write_text", write_text)
    with pytest.raises(DarkroomError, match="Nothing was changed"):
        apply(steps)
    assert contents(folder) == before
