"""Every job is one record: its options, its request and its function follow from it."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from modules.adapters.tools.blocks import PRESETS
from modules.settings.edit import get_path
from modules.settings.field import Section, records_of
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import PROGRAM_ROOT
from trainer.cli.options import add_options, settings_of
from trainer.jobs.files import BlockSettings
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import JobSpec, argument_of, request_in, request_line, validate_settings

EACH = pytest.mark.parametrize("spec", JOBS.values(), ids=JOBS)


@EACH
def test_a_record_is_complete(spec: JobSpec) -> None:
    assert JOBS[spec.name] is spec
    assert callable(load_factory(spec.function))
    assert not spec.server or callable(load_factory(spec.server))
    assert spec.help.endswith(".")
    assert not spec.input or spec.input in spec.settings.model_fields
    labels = [record.label for record in records_of(spec.settings)]
    assert len(set(labels)) == len(labels)
    assert all(record.setting.help.endswith(".") for record in records_of(spec.settings))


@EACH
def test_the_options_give_the_defaults_and_paths_of_the_caller(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))
    parser = argparse.ArgumentParser()
    add_options(parser, spec.settings)
    records = records_of(spec.settings)
    required = [r for r in records if argument_of(spec.settings, r.path).is_required]
    words = ["some" for r in required if argument_of(spec.settings, r.path).is_positional]
    words += [w for r in required if not argument_of(spec.settings, r.path).is_positional for w in ("--out", "some")]
    settings = validate_settings(spec.settings, settings_of(parser.parse_args(words), spec.settings))
    assert request_in(request_line(spec, settings), JOBS) == (spec, settings)
    for record in records:
        value = get_path(settings, record.path)
        if record in required:
            is_path = bool(record.setting.path_kind)
            assert record.kind == "list" or value == (str(tmp_path / "some") if is_path else "some")
        elif record.setting.path_kind and record.default:
            assert value in (str(tmp_path / str(record.default)), record.default)
        else:
            assert value == record.default


def test_a_request_with_an_unknown_job_or_setting_is_refused_by_name() -> None:
    assert request_in('{"command": "Stop"}', JOBS) is None
    assert request_in("no JSON", JOBS) is None
    with pytest.raises(DarkroomError, match="There is no job 'no such job'"):
        request_in('{"job": "no such job", "settings": {}}', JOBS)
    with pytest.raises(DarkroomError, match="no setting 'sorce'"):
        request_in('{"job": "convert", "settings": {"sorce": "x"}}', JOBS)


def test_the_presets_of_strengths_are_those_that_the_tool_reads() -> None:
    offered = next(r for r in records_of(BlockSettings) if r.path == "preset").choices
    assert set(offered) - {""} == set(PRESETS) - {"all"}


def test_the_help_of_an_option_names_its_choices_once_and_its_default() -> None:
    def help_of(name: str) -> str:
        parser = argparse.ArgumentParser(formatter_class=lambda prog: argparse.HelpFormatter(prog, width=1000))
        add_options(parser, JOBS[name].settings)
        return parser.format_help().partition("options:")[2]

    assert "--text-encoders, --no-text-encoders" in help_of("lora-extract")
    assert "text encoders' difference as well (default: on)" in help_of("lora-extract")
    assert help_of("lora-combine").count("bfloat16") == 1
    assert "written weights (default: as the input)" in help_of("lora-combine")
    assert "loses more (default: exact)" in help_of("lora-combine")
    assert "--family" not in help_of("sample"), "it has no such option"
    assert "default" not in help_of("lora-blocks").partition("--preset")[0]
    assert "--images N" in help_of("preview")


def test_convert_reports_a_damaged_file_without_loading_torch(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"no header")
    code = f"""
import sys
from trainer.__main__ import main
code = main(["convert", {str(tmp_path / "a.safetensors")!r}, {str(tmp_path / "b.safetensors")!r}])
sys.exit(3 if "torch" in sys.modules else code)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, "a.safetensors is not a safetensors file" in ended.stderr) == (2, True)


def test_settings_that_several_verbs_have_are_sections_in_theirs() -> None:
    """No class of settings is put together from several others."""
    importlib.import_module("trainer.__main__")
    classes: list[type] = [Section]
    for each in classes:
        classes += each.__subclasses__()
    assert len(classes) > 100
    assert [each for each in classes if sum(issubclass(base, Section) for base in each.__bases__) > 1] == []
