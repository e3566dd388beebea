"""What the command line prints changes nothing in a terminal, whatever a file or a config is called."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from modules.system.paths import PROGRAM_ROOT
from trainer.__main__ import main
from trainer.cli.program import PlainStream, plain

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mcat\x9b31m\x00\x08\u202etxt\rgone"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred", "\\u001b[31mred"),
        ("\x9b31m", "\\u009b31m"),
        ("a\x07\x00\x7f", "a\\u0007\\u0000\\u007f"),
        ("a\u202eb", "a\\u202eb"),
        ("invalid\udcff", "invalid\\udcff"),
        ("hidden\rshown", "hidden\\u000dshown"),
        ("\rbar\r", "\rbar\r"),
        ("\r", "\r"),
        ("one\r\ntwo\n", "one\ntwo\n"),
        ("Ünïcödé 猫 🐈", "Ünïcödé 猫 🐈"),
        ("", ""),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_json_stays_json() -> None:
    values = {HOSTILE: [HOSTILE]}
    assert json.loads(plain(json.dumps(values, ensure_ascii=False, indent=2))) == values


def test_a_progress_bar_is_as_before() -> None:
    ways = []
    for wrap in (lambda stream: stream, PlainStream):
        stream = io.StringIO()
        with tqdm(total=3, file=wrap(stream), ncols=60, bar_format="{l_bar}{bar}", mininterval=0) as bar:
            bar.update(3)
        ways.append(stream.getvalue())
    assert ways[0] == ways[1]


@pytest.mark.parametrize("verb", [["check"], ["inspect"], ["diff"]])
def test_no_name_reaches_the_terminal_as_it_is(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / HOSTILE.replace("\x00", "")
    folder.mkdir()
    file = folder / "c.json"
    config = {"darkroom_version": 2, HOSTILE: 1, "model": {"base_model": HOSTILE}, "concepts": [{"path": HOSTILE}]}
    file.write_text(json.dumps(config))
    before = sys.stdout, sys.stderr
    main([*verb, str(file)])
    assert (sys.stdout, sys.stderr) == before
    out, err = capsys.readouterr()
    assert "cat" in out + err
    assert not set("\x1b\x9b\x07\x08\x00\u202e\r") & set(out + err)


def test_the_names_in_an_error_are_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "\x1b[31mno such file"]) == 2
    out, err = capsys.readouterr()
    assert "no such file" in err
    assert "\x1b" not in out + err


@pytest.mark.parametrize("closed", [("stderr",), ("stdin", "stdout", "stderr")])
def test_a_program_without_standard_streams_works(
    closed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started by a service, by pythonw or with `2>&-`, each verb failed at its first word."""
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    assert main(["check", str(tmp_path / "nothing.json")]) == 2
    assert main(["queue", "list"]) == 0
    for name in closed:
        getattr(sys, name).close()


@pytest.mark.skipif(sys.platform == "win32", reason="no shell")
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Messages that libraries write to standard error would land in it."""
    code = (
        "import os; from modules.system.process_setup import open_missing_streams; open_missing_streams(); "
        "open(os.environ['OUT'], 'w').write(str(os.open(os.devnull, os.O_RDONLY)))"
    )
    out = tmp_path / "number"
    command = '"$PYTHON" -c "$CODE" <&- >&- 2>&-'
    environment = os.environ | {"PYTHON": sys.executable, "CODE": code, "OUT": str(out)}
    assert subprocess.run(["sh", "-c", command], cwd=PROGRAM_ROOT, env=environment, check=False).returncode == 0
    assert int(out.read_text()) > 2
