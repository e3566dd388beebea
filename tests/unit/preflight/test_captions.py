"""The length of captions in tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import changed, errors
from trainer.__main__ import main
from trainer.preflight import check
from trainer.preflight.captions import tokenizer_folder


def with_captions(config: Config, folder: Path, *texts: str) -> Config:
    drawn = draw_folder(folder, sizes=[(64, 64)] * len(texts), captions=list(texts))
    return changed(config, concepts__0__path=str(drawn))


def cat(num_tokens: int) -> str:
    return " ".join(["cat"] * num_tokens)


@pytest.mark.parametrize(
    ("lengths", "severity", "expected"),
    [
        ((75, 10), None, ""),
        ((76, 10), "info", "1 of 2 captions is longer than the 75 tokens"),
        ((76, 100), "info", "(the longest, 100 tokens, in 2)"),
        ((225, 225), "info", "(the longest, 225 tokens, in 3)"),
        ((226, 3), "warning", "1 has more than 225"),
    ],
)
def test_long_captions_are_counted(
    config: Config, tmp_path: Path, lengths: tuple[int, ...], severity: str | None, expected: str
) -> None:
    report = check(with_captions(config, tmp_path / "long", *map(cat, lengths)))
    assert [(p.path, p.severity) for p in report.problems] == ([("concepts", severity)] if severity else [])
    assert all(expected in p.message and "Nothing is truncated" in p.message for p in report.problems)


def test_the_lines_of_a_caption_file_count_one_by_one(config: Config, tmp_path: Path) -> None:
    assert check(with_captions(config, tmp_path / "lines", f"{cat(50)}\n{cat(40)}", "x")).problems == ()


def test_the_vocabulary_of_a_local_model_is_used(config: Config, tmp_path: Path) -> None:
    """With its vocabulary of single letters, eight words of ten letters are eighty tokens."""
    assert tokenizer_folder(config) is None
    folder = tmp_path / "model" / "tokenizer"
    folder.mkdir()
    letters = [c + end for c in "abcdefghijklmnopqrstuvwxyz" for end in ("", "</w>")]
    words = {t: i for i, t in enumerate([*letters, "ab", "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(words))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    assert tokenizer_folder(config) == folder
    eighty = with_captions(config, tmp_path / "eighty", " ".join(["acegikmoqs"] * 8), "x")
    [problem] = check(eighty).problems
    assert "80 tokens" in problem.message


@pytest.mark.parametrize("vocabulary", ["{}", "[]", '{"a": 1}', '{"<|startoftext|>": 0, "<|endoftext|>": "x"}'])
def test_a_broken_vocabulary_is_reported(config: Config, tmp_path: Path, vocabulary: str) -> None:
    folder = tmp_path / "model" / "tokenizer"
    folder.mkdir()
    (folder / "vocab.json").write_text(vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    report = check(config)
    if vocabulary not in ("{}", "[]"):  # these count as missing, and the shipped vocabulary is used
        assert errors(report) == ["model.base_model"]
        assert "tokenizer of the base model" in report.errors[0].message
    else:
        assert [p.path for p in report.errors] in ([], ["model.base_model"])


def test_wildcards_that_are_not_closed_are_named(config: Config, tmp_path: Path) -> None:
    given = with_captions(config, tmp_path / "open", "a {red|blue} car", "a {red|blue car", "x\na dark} car")
    assert check(given).problems == ()
    report = check(changed(given, concepts__0__text__wildcards=True))
    [problem] = report.problems
    assert (problem.path, problem.severity) == ("concepts", "warning")
    assert "2 caption files have a { or } without its counterpart" in problem.message
    assert "the first is 001.txt: a {red|blue car" in problem.message
    assert report.preview is not None
    assert [(Path(f).name, text.partition(": ")[2]) for f, text in report.preview.captions] == [
        ("001.txt", "a {red|blue car"),
        ("002.txt", "a dark} car"),
    ]


def test_each_file_is_named_with_what_is_wrong(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = draw_folder(tmp_path / "faults", sizes=[(64, 64)] * 5)
    (folder / "000.txt").unlink()
    (folder / "001.txt").write_text(" \n")
    (folder / "002.txt").write_bytes("été".encode("cp1252"))
    (folder / "003.txt").write_text(f"{cat(75)}, the End of it", encoding="utf-8")
    broken = changed(config, concepts__0__path=str(folder))
    report = check(broken)
    warnings = [p.message for p in report.problems if p.severity == "warning"]
    assert warnings == [
        "2 images have no caption and are trained without one; the first is 000.png: 000.txt does not exist or cannot "
        "be read.",
        "1 caption file is not valid UTF-8 and is read in another encoding; the first is 002.txt (Windows-1252).",
    ]
    assert report.preview is not None
    assert report.preview.captions == (
        (str(folder / "000.png"), "000.txt does not exist or cannot be read"),
        (str(folder / "001.png"), "001.txt is empty"),
        (str(folder / "002.png"), "002.txt is not valid UTF-8 and was read as Windows-1252"),
        (str(folder / "003.txt"), "80 tokens; beyond the first 75: , the End of it"),
    )
    with_trigger = check(changed(broken, concepts__0__text__trigger_word="bella")).problems
    assert any(
        p.severity == "info" and p.message.startswith("2 images have no caption and are trained with 'bella' alone;")
        for p in with_trigger
    )
    save_file(broken, tmp_path / "config.json")
    main(["check", str(tmp_path / "config.json")])
    printed = capsys.readouterr().out
    assert f"  {folder / '003.txt'}: 80 tokens; beyond the first 75: , the End of it\n" in printed


def test_the_operations_count_before_the_tokens_are_counted(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "long", sizes=[(64, 64)], captions=[cat(70)])
    concept = {**config.concepts[0].model_dump(), "path": str(folder)}
    longer = changed(config, concepts=[{**concept, "text": {"prefix": cat(10), "shuffle_tags": True}}])
    message = " ".join(p.message for p in check(longer).problems)
    assert "(the longest, 80 tokens, in 2)" in message


def test_settings_that_cannot_work_are_errors(config: Config) -> None:
    text = {"tag_dropout": True, "special_tags_mode": "blacklist", "special_tags": "(", "special_tags_regex": True}
    report = check(changed(config, concepts=[{**config.concepts[0].model_dump(), "text": text}]))
    assert errors(report) == ["concepts.0.text.special_tags"]
