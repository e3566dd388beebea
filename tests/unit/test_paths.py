"""Where things are, and names that every system takes."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.system.paths import (
    PROGRAM_ROOT,
    folder_for_images,
    from_caller,
    from_root,
    log_dir,
    reason_if_of_other_system,
    safe_name,
    session_file,
    user_presets_dir,
)
from tests.unit.strategies import odd_texts


def test_a_config_s_paths_count_from_the_program() -> None:
    assert from_root("models/x.safetensors") == PROGRAM_ROOT / "models" / "x.safetensors"
    assert from_root("/data/x") == Path("/data/x").absolute()
    assert (PROGRAM_ROOT / "modules" / "system" / "paths.py").is_file()


def test_a_command_line_s_paths_count_from_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert from_caller("x") == Path.cwd() / "x"
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))
    assert from_caller("x") == tmp_path / "x"
    assert from_caller(tmp_path / "y") == tmp_path / "y"


def test_an_absolute_path_needs_no_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No verb could be used in a folder that another program had removed."""

    def gone() -> Path:
        raise FileNotFoundError

    monkeypatch.delenv("DARKROOM_CALLER_DIR", raising=False)
    monkeypatch.setattr(Path, "cwd", gone)
    assert from_caller(tmp_path / "a") == tmp_path / "a"


def test_more_images_are_looked_for_next_to_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pictures = tmp_path / "Bilder"
    monkeypatch.setattr(platformdirs, "user_pictures_path", lambda: pictures)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert folder_for_images([]) == tmp_path
    pictures.mkdir()
    assert folder_for_images(["", "/gone/away"]) == pictures
    assert folder_for_images([str(tmp_path / "sets" / "cats"), str(pictures / "dogs"), "/gone/x"]) == pictures
    assert folder_for_images([str(pictures / "dogs"), str(tmp_path / "cats")]) == tmp_path


def test_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert from_root("~/images") == tmp_path / "images"
    assert from_caller("~/images") == tmp_path / "images"


def test_the_home_of_an_unknown_user_is_an_ordinary_name() -> None:
    """It used to raise RuntimeError in the middle of a check."""
    assert from_root("~no such user/x") == PROGRAM_ROOT / "~no such user" / "x"
    assert from_caller("~no such user/x") == Path.cwd() / "~no such user" / "x"


def test_the_user_s_folders_are_the_user_s(home_dir: Path) -> None:
    for path in (user_presets_dir(), session_file(), log_dir()):
        assert home_dir in path.parents


@pytest.mark.parametrize(
    ("path", "is_windows", "reason"),
    [
        ("models/zog.safetensors", False, ""),
        ("/a/b:c?.safetensors", False, ""),
        ("C:\\runs\\x", False, "C: is a drive of Windows, which this machine does not have"),
        ("d:/runs", False, "d: is a drive of Windows, which this machine does not have"),
        ("\\\\server\\share", False, "folders are separated by / here, not by \\"),
        ("models\\zog.safetensors", False, "folders are separated by / here, not by \\"),
        ("C:\\runs\\..\\x.y\\zog.safetensors", True, ""),
        ("\\\\server\\share\\a b", True, ""),
        ("models/zog.safetensors", True, ""),
        ("models\\zog:2.safetensors", True, "it contains :, which no name on Windows does"),
        ("C:\\runs\\what?", True, "it contains ?, which no name on Windows does"),
        ("models/Con.safetensors", True, "Con.safetensors is the name of a device on Windows"),
    ],
)
def test_paths_of_the_other_system(path: str, is_windows: bool, reason: str) -> None:
    """A config that was made on Windows wrote into a folder named "C:\\runs\\x" elsewhere, without a word."""
    assert reason_if_of_other_system(path, is_windows=is_windows) == reason


@given(text=st.text(max_size=80) | odd_texts, max_chars=st.integers(8, 60))
def test_a_safe_name_is_one(text: str, max_chars: int) -> None:
    name = safe_name(text, max_chars=max_chars)
    assert name
    assert len(name) <= max_chars
    assert not set(name) & set('/\\:*?"<>|#\x00\n\r\t')
    assert name.strip(" .") == name
    assert safe_name(name, max_chars=max_chars) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a photo of a cat", "a photo of a cat"),
        ("a/b\\c:d", "a_b_c_d"),
        ("..", "unnamed"),
        ("", "unnamed"),
        (" .hidden. ", "hidden"),
        ("čistý 猫", "čistý 猫"),
        ("con", "_con"),
        ("NUL.txt", "_NUL.txt"),
        ("lpt1", "_lpt1"),
        ("com².png", "_com².png"),  # Windows counts these digits, too
        ("console", "console"),
    ],
)
def test_safe_names(text: str, name: str) -> None:
    assert safe_name(text) == name
