"""Patterns, wildcards and keys in files of strangers: none hangs the program, and valid ones mean what they meant."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from modules.adapters.ranks import parse_ranks
from modules.config.imports.any_file import load_any
from modules.data.captions import operations
from modules.data.captions.rules import faults_of
from modules.data.captions.settings import CaptionChanges
from modules.data.wildcards import expand
from modules.families.parts import prompt_weights
from modules.optim.optimizers.muon import Muon, filter_problems
from modules.settings.layer_filter import LayerFilter, invalid_entry
from modules.system import patterns
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from modules.system.patterns import PatternError, compiled_pattern, fault_of_pattern

ENDLESS = "((a{1,20}){1,20}){1,20}b"
UNUSABLE = {
    "a{99999999999}": "",  # an OverflowError of re
    "(?:a{1000}){1000}": "multiply to more than 20,000",
    "a" * 9_000 + "+": "more than 8,000 characters",
    "(" * 900 + "a" + ")" * 900: "",
    ENDLESS: "takes too long",
    "(attn": "unterminated subpattern",
    r"\p{L}": "bad escape",
}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_SECONDS", (0.02, 0.05))


@pytest.mark.parametrize("pattern", UNUSABLE, ids=lambda p: p[:20])
def test_what_cannot_be_used_is_named_wherever_it_is_written(pattern: str) -> None:
    reason = UNUSABLE[pattern]
    assert reason in fault_of_pattern(pattern)
    assert fault_of_pattern(pattern)
    found = invalid_entry(LayerFilter(("attn1", pattern), is_regex=True))
    assert found == (pattern, fault_of_pattern(pattern))
    with pytest.raises(DarkroomError, match="not a valid regular expression"):
        parse_ranks(f"re:{pattern} = 4")
    listed = {"special_tags_mode": "blacklist", "special_tags": pattern, "special_tags_regex": True}
    changes = CaptionChanges.model_validate({"tag_dropout": True, "tag_delimiter": ";", **listed})
    assert any("not a valid regular expression" in message for _, message in faults_of(changes))
    settings = Muon(muon_with_aux_adam=True, muon_adam_regex=True, muon_hidden_layers=pattern)
    assert list(filter_problems(settings))


@pytest.mark.parametrize("pattern", [r"(?:\w+\.?)+!", "(a+)+b", "(.*)*x", r"^(\w+\.)+to_[qk]$", "(?:a|a)*b"])
def test_a_repeated_repetition_is_matched(pattern: str) -> None:
    """They took for ever, or were refused: the engine finds quickly that they cannot match, or stops."""
    assert fault_of_pattern(pattern) == ""
    assert LayerFilter((pattern,), is_regex=True).takes("a" * 100) is False


def test_a_pattern_that_takes_too_long_on_a_text_is_an_error() -> None:
    with pytest.raises(PatternError, match="takes too long on 'aaa"):
        compiled_pattern(ENDLESS).matches("a" * 200)


PIECES = (
    *(
        "a",
        "b",
        "_",
        ".",
        r"\.",
        "1",
        r"\d",
        r"\w",
        r"\W",
        r"\s",
        "[ab]",
        "[^a]",
        "[[a]",
        "[]a]",
        "[a{2}]",
        "*",
        "+",
        "?",
    ),
    *(
        "[[:alpha:]]",
        "[a&&b]",
        "[a--b]",
        "{",
        "}",
        "{2}",
        "{,2}",
        "{1,}",
        "{,}",
        "{}",
        "{e}",
        "{e<=1}",
        "*?",
        "++",
        "|",
    ),
    *("(", "(?:", ")", "^", "$", r"\b", r"\1", "(?=", "(?!", "(?<=a", "(?i)", "(?P<n>", "(?P=n)", r"\Z", r"\\", r"\{"),
    *(r"\[", "(?>", "(?#c)", "é", "#", " ", r"\u0061", r"\N{DIGIT ONE}", "(?(1)a|b)"),
)
TEXTS = (
    *(
        "",
        "a",
        "aab",
        "a1b_",
        "a.b",
        "down_blocks.0.attn1.to_q",
        "{",
        "a{2}",
        "a{e}",
        "[",
        "a]",
        "AB",
        "aé",
        "a b",
        "aaa",
    ),
)


@pytest.mark.filterwarnings("ignore:Possible (nested|set):FutureWarning")
def test_a_valid_pattern_means_what_it_means_in_python() -> None:
    """80,000 of these were the same, on 27 texts."""
    generator, num_valid = random.Random(3), 0
    while num_valid < 1_500:
        text = "".join(generator.choices(PIECES, k=generator.randint(1, 6)))
        try:
            expected = re.compile(text)
        except re.error:
            continue
        num_valid += 1
        found = compiled_pattern(text)
        for given in TEXTS:
            assert found.is_in(given) == (expected.search(given) is not None), (text, given)
            assert found.matches(given) == (expected.fullmatch(given) is not None), (text, given)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(?=.*attention)(?!.*refiner).*",
        r"attentions",
        r"^(down_blocks|mid_block|up_blocks)\.",
        r"(?<!blocks\.)resnets\.\d",
        r"photo.*",
        r".*\(series\)",
    ],
)
def test_patterns_of_other_trainers_stay_valid(pattern: str) -> None:
    assert fault_of_pattern(pattern) == ""


def as_before(text: str, generator: random.Random) -> str:
    """Resolve wildcards one by one from the start, as it is defined."""
    while (found := operations._INNERMOST.search(text)) is not None:
        option = generator.choice(re.split(r"(?<!\\)\|", found[1]))
        text = text[: found.start()] + option + text[found.end() :]
    return operations._ESCAPED.sub(r"\1", text)


def test_wildcards_are_resolved_as_before() -> None:
    texts = random.Random(1)
    for number in range(5_000):
        text = "".join(texts.choices("{}|\\ab\n{}", k=texts.randint(1, 14)))
        one, other = random.Random(number), random.Random(number)
        assert operations.resolve_wildcards(text, one) == as_before(text, other), text
        assert one.random() == other.random(), text


def test_braces_without_a_counterpart_are_found() -> None:
    whole, single = ("{a}", "{{a|b}|c}", r"\{", ""), ("{", "}", "}{", r"{\}", "{a}}", "{{a}")
    assert not any(operations.has_single_brace(text) for text in whole)
    assert all(operations.has_single_brace(text) for text in single)


KOHYA = {"pretrained_model_name_or_path": "model", "network_dim": 4}


def hanging(folder: Path) -> None:
    """Read everything that took long; run in a process of its own, which can be ended."""
    nested = "{" * 40_000 + "a" + "}" * 40_000
    assert not operations.has_single_brace(nested)
    assert operations.resolve_wildcards(nested, random.Random(0)) == "a"
    operations.resolve_wildcards("{a|b}" * 19_000, random.Random(0))
    operations.resolve_wildcards("{" * 90_000, random.Random(0))
    operations.resolve_wildcards("{a|b}" * 900_000, random.Random(0))
    assert expand("{" + "|" * 200_000, seed=1).text
    for line in ("a" + " " * 200_000 + "x", "a=" + "1" * 200_000 + " x", "a=" + "1" * 5_000):
        with pytest.raises(DarkroomError):
            parse_ranks(line)
    assert prompt_weights._PIECES.findall(":" + "1" * 400_000)
    (folder / "commas.json").write_text(json.dumps({**KOHYA, "optimizer_type": "AdamW(" + "," * 300_000}))
    assert load_any(folder / "commas.json").config
    for name, content in {
        "dotted": "a." * 300_000 + "a=1",
        "digits": "a=" + "9" * 10_000,
        "deep": "a." * 4_900 + "a=1",
    }.items():
        file = folder / f"{name}.toml"
        file.write_text(content, encoding="utf-8")
        assert load_any(file).problems


def test_nothing_in_a_file_hangs(tmp_path: Path) -> None:
    here = f"pathlib.Path({str(tmp_path)!r})"
    code = f"import pathlib; from tests.unit.test_untrusted_patterns import hanging; hanging({here})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROGRAM_ROOT, timeout=200, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
