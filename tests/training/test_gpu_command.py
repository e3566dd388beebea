"""`python -m benchmarks gpu`: its stages run to the end on a CPU with small sizes; what fails is recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import random_models
from benchmarks.copies import Copies, copies_of
from benchmarks.gpu import child, command, models, preset_runs, presets, suite, ways
from benchmarks.gpu.chart import bars_of, write_chart
from benchmarks.gpu.markdown import as_markdown
from benchmarks.gpu.results import CaseResult, Report, read_report, write_json
from benchmarks.gpu.runner import Call, run_stages
from benchmarks.gpu.stage import (
    STAGES,
    Case,
    Check,
    Finding,
    Request,
    Stage,
    Unfinished,
    at_most,
    stages_of,
    within,
)
from benchmarks.gpu.suite import files_with_gpu_tests
from benchmarks.gpu.trained_steps import TrainedSteps, compare_steps
from benchmarks.loop_speed import for_measuring
from benchmarks.rows import Row
from modules.config.presets import list_presets
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.parts.folder_model import folder_configs
from modules.families.parts.single_file.write import CheckpointTraits
from modules.families.protocol import FamilyThatSees
from modules.families.registry import FAMILIES, files_of
from modules.settings.edit import replace_value
from modules.system.atomic import remove_folder
from modules.system.devices import Device
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from tests.builders.qwen_image import write_qwen_edit_folder
from trainer.child.process import spawn_python
from trainer.run.reading import load_family
from trainer.step.precision import CUBLAS_WORKSPACE, REPEATABLE_WORKSPACES

MADE_UP = Stage(1, "made up", 1, 1, f"{__name__}:made_up")


def made_up(request: Request) -> Sequence[Case]:
    return (Case("good", lambda seconds: [Row("time", f"{seconds:.0f} s")]), Case("bad", fails), Case("last", checked))


def fails(_seconds: float) -> Iterable[Finding]:
    yield Check("first", "1", "1", True)
    raise ValueError("nothing\nhere")


def checked(_seconds: float) -> Iterable[Finding]:
    yield at_most("waits", 2.0, 1.0)
    yield within("memory", 1.05, 1.0, 0.1)
    yield at_most("no number", float("nan"), 1.0)


def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **request: Any) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(child, "STAGES", (MADE_UP,))
    child.run_cases(
        Request(**{"stage": 1, "device": "cpu", "is_tiny": True, "work": str(tmp_path), **request}), lines.append
    )
    return lines


def test_a_case_that_raises_is_a_failed_check_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = said(monkeypatch, tmp_path, seconds=60.0)
    assert [line["name"] for line in lines if line["kind"] == "end"] == ["good", "bad", "last"]
    checks = [line for line in lines if line["kind"] == "check"]
    assert [(c["got"], c["passed"]) for c in checks] == [
        ("1", True), ("ValueError: nothing", False), ("2", False), ("1.05", True), ("nan", False)
    ]  # fmt: skip
    assert lines[-1] == {"kind": "left", "names": []}
    assert lines[2]["value"] == "20 s"  # a third of the time


def test_deterministic_cases_may_follow_others_in_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch reads the setting of cuBLAS's workspaces once: before the first product on a GPU.

    So it does the allocator's, which is as in the program.
    """
    monkeypatch.setenv(CUBLAS_WORKSPACE, "")
    monkeypatch.delenv(CUBLAS_WORKSPACE)
    asked: list[str] = []
    monkeypatch.setattr(child, "use_growing_segments", lambda: asked.append("growing"))
    child.prepare_process(Request(5, "cpu", is_tiny=False, work=str(tmp_path), seconds=1.0))
    assert os.environ[CUBLAS_WORKSPACE] in REPEATABLE_WORKSPACES
    assert asked == ["growing"]


def test_measured_steps_are_all_compiled_or_all_not(tmp_path: Path) -> None:
    """The automatic choice of a GPU would switch while they are measured."""
    config = models.small_run(Request(4, "cpu", is_tiny=True, work=str(tmp_path), seconds=1.0))
    assert (Config().model.compile, config.model.compile) == ("auto", "off")
    compiled = replace_value(config, "model.compile", "on")
    assert for_measuring(compiled, tmp_path, epochs=1).model.compile == "on"


def test_the_stage_of_tests_collects_those_of_a_gpu_alone() -> None:
    names = {Path(file).name for file in files_with_gpu_tests()}
    assert {"test_on_gpu.py", "test_offload_on_gpu.py", "test_release.py"} <= names
    assert len(names) < 12


def test_without_time_cases_are_left_and_those_of_an_earlier_process_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ["good", "bad", "last"]
    assert said(monkeypatch, tmp_path, seconds=0.0) == [
        {"kind": "cases", "names": names}, {"kind": "left", "names": names}
    ]  # fmt: skip
    lines = said(monkeypatch, tmp_path, seconds=60.0, done=("good", "bad"))
    assert [line["name"] for line in lines if line["kind"] == "begin"] == ["last"]


def scripted(*scripts: str) -> Callable[[Any], subprocess.Popen[str]]:
    """Return what starts one of these scripts after the other; each prints lines and may end in any way."""
    head = "import json, os, sys\nasked = json.loads(sys.stdin.readline())\n"
    head += "def say(kind, **values): print(json.dumps({'kind': kind, **values}), flush=True)\n"
    left = iter(scripts)
    return lambda log: spawn_python(["-c", head + next(left)], log)


def a_case(name: str) -> str:
    return (
        f"say('begin', name='{name}')\n"
        f"say('check', name='fits', got='1', allowed='1', passed=True)\n"
        f"say('end', name='{name}', seconds=0.5, finished=True)\n"
    )


def call_with(folder: Path, spawn: Callable[[Any], subprocess.Popen[str]], seconds_left: Callable[[], float]) -> Call:
    report = read_report(folder, device="cpu", is_tiny=True)
    return Call(report, folder, lambda r: command.write_report(folder, r), lambda line: None, seconds_left, spawn)


def test_a_process_that_dies_costs_one_case(tmp_path: Path) -> None:
    dies = a_case("one") + "say('begin', name='two')\nsys.stderr.write('Illegal address\\n')\nos._exit(7)"
    goes_on = "assert asked['done'] == ['one', 'two']\n" + a_case("three") + "say('left', names=[])"
    call = call_with(tmp_path, scripted(dies, goes_on), lambda: float("inf"))
    assert command.run_call(call, {MADE_UP: 60.0}, is_short=False) == command.FAILED
    [(stage, case, check)] = call.report.failed
    assert (stage.number, case.name, check.got) == (1, "two", "exit code 7: Illegal address")
    assert list(stage.cases) == ["one", "two", "three"]
    assert "| 1 made up | two | the process ends by itself | exit code 7: Illegal address |" in (
        tmp_path / "report.md"
    ).read_text(encoding="utf-8")


def test_a_process_that_does_not_start_ends_its_stage_only(tmp_path: Path) -> None:
    other = Stage(2, "other", 1, 1, "")
    call = call_with(tmp_path, scripted("sys.exit('no torch')", a_case("one") + "say('left', names=[])"), lambda: 1e9)
    assert run_stages(call, {MADE_UP: 60.0, other: 60.0}, is_short=False)
    [(_, case, check)] = call.report.failed
    assert (case.name, check.got) == ("start of the process", "exit code 1: no torch")


def test_a_call_ends_in_time_and_the_next_one_continues(tmp_path: Path) -> None:
    clock = iter([100.0, 100.0, 0.3, 0.0])  # the last one says that the call, not the case, was too long
    waits = "say('cases', names=['one', 'two'])\n" + a_case("one") + "say('begin', name='two')\nsys.stdin.read()"
    call = call_with(tmp_path, scripted(waits), lambda: next(clock))
    assert command.run_call(call, {MADE_UP: 60.0}, is_short=False) == command.UNFINISHED
    assert list(call.report.stages[1].cases) == ["one"]
    assert "- stage 1 (made up): 1 of 2 cases left, about 0.0 minutes at the pace so far\n" in (
        tmp_path / "report.md"
    ).read_text(encoding="utf-8")
    (tmp_path / "work").mkdir()

    goes_on = "assert asked['done'] == ['one']\n" + a_case("two") + "say('left', names=[])"
    call = call_with(tmp_path, scripted(goes_on), lambda: float("inf"))
    assert command.run_call(call, {MADE_UP: 60.0}, is_short=False) == command.PASSED
    assert list(call.report.stages[1].cases) == ["one", "two"]
    assert not (tmp_path / "work").exists()
    again = call_with(tmp_path, scripted(), lambda: float("inf"))
    assert command.run_call(again, {MADE_UP: 60.0}, is_short=False) == command.PASSED


def test_a_case_that_never_ends_is_stopped_and_failed(tmp_path: Path) -> None:
    clock = iter([100.0, 100.0, 0.3, 50.0])
    call = call_with(tmp_path, scripted("say('begin', name='two')\nsys.stdin.read()"), lambda: next(clock))
    assert command.run_call(call, {MADE_UP: 60.0}, is_short=False) == command.UNFINISHED
    [(_, case, check)] = call.report.failed
    assert (case.name, check.got) == ("two", "stopped after 60 s planned for the stage")


def test_a_report_of_another_device_is_not_continued(tmp_path: Path) -> None:
    write_json(tmp_path, Report("cuda", is_tiny=False))
    with pytest.raises(DarkroomError, match="of the device cuda, not of the device cpu with small sizes"):
        read_report(tmp_path, device="cpu", is_tiny=True)
    (tmp_path / "report.json").write_text("[]", encoding="utf-8")
    with pytest.raises(DarkroomError, match="is not a report"):
        read_report(tmp_path, device="cpu", is_tiny=True)


def test_little_time_means_fewer_stages() -> None:
    whole, short = stages_of(45), stages_of(10)
    assert [stage.number for stage in short] == [1, 3, 4, 9]
    assert {*short} <= {*whole} == {*STAGES}
    for minutes, stages in ((45, whole), (10, short)):
        assert sum(stages.values()) <= 60 * minutes
    assert sum(stages_of(90).values()) == 2 * sum(whole.values())


@pytest.mark.parametrize("options", [["--stages", "77"], ["--minutes", "0"], ["--call-minutes", "nan"]])
def test_options_that_make_no_sense_are_refused(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*options, "--out", str(tmp_path), "--device", "cpu"]) == 2
    assert options[-1] in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_measured_steps_become_bars_and_failures_come_first(tmp_path: Path) -> None:
    report = Report("cuda", is_tiny=False)
    stage = report.of(STAGES[0])
    row = Row("1024 px", "0.2 s | fast", numbers={"step_seconds": 0.2, "share_of_matrix_speed": 0.4})
    stage.cases["SDXL"] = CaseResult("SDXL", 3.0, [row], [Check("memory", "2 GiB", "1 GiB", False)])
    [bar] = bars_of(report)
    assert (bar.name, bar.seconds, bar.share) == ("SDXL: 1024 px", 0.2, 0.4)
    text = as_markdown(report, has_chart=True)
    assert text.index("| 1 facts | SDXL | memory | 2 GiB | 1 GiB |") < text.index("report.png") < text.index("\\| fast")
    write_chart(tmp_path / "report.png", "a device", [bar])
    pixels = np.asarray(Image.open(tmp_path / "report.png").convert("RGB"))
    seconds, share = (int((pixels == colour).all(-1).sum()) for colour in ((177, 97, 15), (58, 110, 165)))
    assert seconds > 2 * share > 1000  # the longest bar, and one of 40 %
    write_json(tmp_path, report)
    assert read_report(tmp_path, device="cuda", is_tiny=False) == report


def test_copies_of_a_step_and_what_hides_them() -> None:
    def event(kind: str, name: str, start: float, seconds: float, num_bytes: int = 0) -> dict[str, Any]:
        return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": seconds, "args": {"bytes": num_bytes}}

    events = [
        event("kernel", "gemm", 0.0, 10.0), event("kernel", "norm", 8.0, 4.0), event("kernel", "late", 20.0, 5.0),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 6.0, 8.0, 800),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 24.0, 2.0, 30),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 50.0, 90.0, 7), {"ph": "M", "name": "process_name"},
    ]  # fmt: skip
    assert copies_of(events) == Copies(800, 30, hidden_share=0.7, most_hidden=1.0)
    slow = [*events, event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 100.0, 24.0, 100)]
    assert copies_of(slow).most_hidden == 0.5
    assert copies_of([]) == Copies(0, 0, 1.0)


def test_a_card_has_less_memory_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch takes no device without an index here."""
    asked: list[tuple[float, int]] = []
    card = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: asked.append(given))
    with models.memory_of(Device("cuda"), 8 << 30):
        assert asked == [(0.1, 0)]
    with models.memory_of(Device("cuda:1"), 96 << 30):
        pass
    assert asked[1:] == [(1.0, 0), (1.0, 1), (1.0, 1)]


_THREE_TESTS = """
def test_one():
    with open({ran!r}, "a") as file:
        file.write("ran ")

def test_two():
    assert 1 == {value}, "two\\nmore"

def test_three():
    pass
"""


def test_results_of_tests_are_kept_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call runs those that have not passed; one that repeats the stage runs all."""
    file, ran = tmp_path / "test_made_up.py", tmp_path / "ran.txt"
    file.write_text(_THREE_TESTS.format(ran=str(ran), value=2), encoding="utf-8")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of this process, not of those that it starts
    run, extra = subprocess.run, ["--maxfail=1"]

    def timed_out(command: list[str], *, timeout: float, **options: Any) -> None:
        run([*command, *extra], check=False, **{k: v for k, v in options.items() if k != "check"})
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(suite, "_TINY", (str(file),))
    request = Request(2, "cpu", is_tiny=True, work=str(tmp_path / "work"), seconds=60.0)
    (case,) = suite.cases(request)
    with monkeypatch.context() as patch:
        patch.setattr(suite.subprocess, "run", timed_out)
        row, passed, failed, left = case.run(60.0)
    assert isinstance(row, Row)
    assert row.value == "1 passed, 1 failed, 0 skipped"
    assert passed == Check("tests that passed", "1", "at least 1", True)
    assert isinstance(failed, Check)
    assert failed.name.endswith("test_made_up.py::test_two")
    assert failed.got == "AssertionError: two"
    assert left == Unfinished("2 of 3 tests have ended")

    file.write_text(_THREE_TESTS.format(ran=str(ran), value=1), encoding="utf-8")
    row, *checks = case.run(60.0)
    assert isinstance(row, Row)
    assert row.value == "3 passed, 0 failed, 0 skipped"
    assert checks == [Check("tests that passed", "3", "at least 1", True)]
    assert ran.read_text(encoding="utf-8") == "ran "
    row, *checks = case.run(60.0)  # nothing is left
    assert checks == [Check("tests that passed", "3", "at least 1", True)]
    remove_folder(request.kept)
    list(case.run(60.0))
    assert ran.read_text(encoding="utf-8") == "ran ran "


def test_every_preset_of_a_card_is_run_with_a_model_that_can_be_written(tmp_path: Path) -> None:
    """Each family has its tokenizers, and its configs ship."""
    cases = presets.cases(Request(5, "cpu", is_tiny=False, work=str(tmp_path), seconds=1.0))
    of_cards = [p for p in list_presets() if p.is_built_in and p.card_gb and not p.is_demo]
    assert {case.name for case in cases} == {f"preset: {p.name}" for p in of_cards}
    shapes = {
        preset_runs.folder_name(config): preset_runs.shapes_of(config) for config in (p.load().config for p in of_cards)
    }
    assert {f"Qwen-Image-Edit-{year}" for year in (2509, 2511)} < shapes.keys()
    assert shapes["Qwen-Image-Edit-2511"].configs["transformer"]["zero_cond_t"]
    for name, of_model in shapes.items():
        folder = models._tokenizers(tmp_path / name, of_model.spec)
        family = of_model.spec.name
        read = {f for part, f in FAMILIES[family].tokenizers.items() if not _has_clip(family, part)}
        assert {f.name for f in folder.iterdir()} == read


@pytest.mark.parametrize("has_room", [True, False])
def test_a_flow_model_of_random_weights_reads_prompts(
    has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are small here; its tokenizer is the demo's. Where the disk is too small, its files have holes."""
    flow = next(p for p in list_presets() if p.name == "#demo flow").load().config
    parts = tuple(part.name for part in flow.family.parts)
    configs = folder_configs(from_root(flow.model.base_model), CheckpointTraits("z_image", "flow"), parts)
    monkeypatch.setattr(random_models, "shipped_configs", lambda _name: configs)
    shapes = random_models.Shapes("z_image")
    whole, least = (shapes.num_bytes(has_holes=has_holes) for has_holes in (False, True))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=whole if has_room else whole - 1))
    request = Request(4, "cpu", is_tiny=False, work=str(tmp_path / "new"), seconds=1.0)
    folder = models.random_model(request, shapes)
    assert models.has_holes(folder) != has_room
    assert models.random_model(request, shapes) == folder, "it is there"
    on_disk = sum(file.stat().st_blocks * 512 for file in folder.glob("*/*.safetensors"))
    assert on_disk > whole if has_room else least < on_disk < (least + whole) / 2
    config = replace_value(flow, "model.base_model", str(folder))
    for dtype in ("float32", *(() if has_room else ("int8", "nfloat4", "float8"))):
        for part in ("transformer", "text_encoder"):
            config = replace_value(config, f"parts.{part}.dtype", dtype)
        family = load_family(config.model, config.part, quantized=quantized_parts(config))
        conditioning = family.encode_prompts(["noise"])
        predicted = family.predict(torch.zeros(1, 16, 8, 8), torch.full((1,), 500.0), conditioning)
        assert predicted.isfinite().all()


def test_an_editing_model_of_random_weights_sees_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are small here, too, and its tokenizer has the tokens of images."""
    tiny = write_qwen_edit_folder(tmp_path / "tiny")
    parts = ("transformer", "text_encoder", "vae")
    configs = folder_configs(tiny, CheckpointTraits("qwen_image", "flow", variant="edit"), parts)
    text = configs["text_encoder"].pop("text_config") | {"vocab_size": 512}
    configs["text_encoder"] = {**text, "vision_config": configs["text_encoder"]["vision_config"]}
    preset = next(p for p in list_presets() if p.name.startswith("#qwen image edit 2511"))
    monkeypatch.setattr(preset_runs, "files_of", lambda name: SimpleNamespace(
        configs_named=lambda _name: configs, repository_model=files_of(name).repository_model
    ))  # fmt: skip
    monkeypatch.setattr(random_models, "shipped_configs", lambda _name: configs)
    plain = preset.load().config
    request = Request(5, "cpu", is_tiny=False, work=str(tmp_path / "new"), seconds=1.0)
    folder = models.random_model(request, preset_runs.shapes_of(plain), name=preset_runs.folder_name(plain))
    model = plain.model.model_copy(update={"base_model": str(folder)})
    family = cast(FamilyThatSees, load_family(model, Config().part))
    seen = family.encode_with_images(["noise"], [torch.zeros(3, 56, 56)])
    assert seen.states_BLD.isfinite().all()


def test_other_models_make_room_for_one_and_a_disk_that_is_too_small_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, folder = Request(5, "cpu", False, str(tmp_path), 1.0), tmp_path / "models"
    for name in ("sdxl", "z_image"):
        (folder / name).mkdir(parents=True)
    free = {2: 50e9, 1: 57e9, 0: 60e9}  # by the number of models
    monkeypatch.setattr(
        shutil, "disk_usage", lambda where: SimpleNamespace(free=free[sum(p.is_dir() for p in where.iterdir())])
    )
    monkeypatch.setattr(models, "write_random_model", lambda folder, *_, **__: folder.mkdir() or folder)
    assert models.random_model(request, random_models.Shapes("qwen_image")) == folder / "qwen_image"  # of 55 GB
    assert {p.name for p in folder.iterdir()} == {"z_image", "qwen_image"}
    flux2 = random_models.Shapes("flux2_dev")  # of 110 GB, of which 7 are not in holes
    assert models.random_model(request, flux2) == folder / f"flux2_dev{models.WITH_HOLES}"
    assert {p.name for p in folder.iterdir()} == {f"flux2_dev{models.WITH_HOLES}"}
    remove_folder(folder / f"flux2_dev{models.WITH_HOLES}")
    free[0] = 6e9
    preset = next(p for p in list_presets() if p.name.startswith("#flux.2 dev"))
    (check,) = presets._run(request, preset, preset.load().config, 1.0)
    sentence = "The weights of flux2_dev need 7 GB of disk, 6 GB are free."
    assert check == Check("is run", sentence, "enough disk", False)


def _has_clip(family: str, part: str) -> bool:
    return next(p for p in FAMILIES[family].parts if p.name == part).class_name.startswith("CLIP")


@pytest.mark.full
def test_the_command_measures_the_cpu(tmp_path: Path) -> None:
    """A process of its own, as on a GPU."""
    options = ["--device", "cpu", "--tiny", "--out", str(tmp_path), "--stages", "1"]
    assert command.main(options) == command.PASSED
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert list(report["stages"]) == ["1"]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# The program on cpu, torch ")
    assert "| starting kernels | every kernel ran | 4000 | 4000 | passed |" in text


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
def test_what_a_device_computes_is_compared_with_the_cpu(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    child.run_cases(Request(3, "cpu", True, str(tmp_path), 600.0, done=("training",)), lines.append)
    failed = [line for line in lines if line["kind"] == "check" and not line["passed"]]
    assert failed == []
    assert lines[-1] == {"kind": "left", "names": []}
    skipped = next(line for line in lines if line.get("name") == "steps skipped")
    assert skipped["got"] == "3 of 3"


def test_losses_of_two_ways_are_compared_to_the_bit_or_nearly() -> None:
    ours, other = TrainedSteps((1.0, 0.5), 0.1), TrainedSteps((1.0, 0.5 + 1e-6), 0.2)
    row, check = compare_steps("a way", ours, other, allowed=0.0)
    assert isinstance(row, Row)
    assert row.value == "0.100 s per step, 0.200 s without it"
    assert isinstance(check, Check)
    assert (check.name, check.passed) == ("difference of 2 losses: a way", False)
    for others, passed in ((other.losses, True), ((1.0, None), False), ((1.0, float("nan")), False)):
        _, check = compare_steps("a way", ours, TrainedSteps(others, 0.2), allowed=0.01)
        assert isinstance(check, Check)
        assert check.passed is passed


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
def test_the_ways_to_compute_a_step_run_on_a_cpu_and_say_what_it_lacks(tmp_path: Path) -> None:
    request = Request(5, "cpu", is_tiny=True, work=str(tmp_path), seconds=600.0)
    found = {case.name: list(case.run(60.0)) for case in ways.cases(request)}
    checks = [check for of_case in found.values() for check in of_case if isinstance(check, Check)]
    assert [check for check in checks if not check.passed] == []
    assert sum(check.got == "1 graphs" for check in checks) == 4
    absent = [name for name, of_case in found.items() if any(f.name == "not on this device" for f in of_case)]
    assert absent == ["CUDA graphs", "convolutions timed by cuDNN", "compiling by measurement", "expandable segments"]
    assert not [name for name, of_case in found.items() if name not in absent and len(of_case) < 2]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_whole_command_runs_to_its_end_on_a_cpu(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--tiny", "--out", str(tmp_path), "--minutes", "300"]
    code = command.main(options)
    assert code == command.PASSED, (tmp_path / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "report.png").is_file()
