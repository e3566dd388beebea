"""Which build of torch, from where."""

import socket
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from launcher import torch_build
from launcher.messages import Failure, Sentence
from launcher.torch_build import Gpu, detect, source
from tests.launcher.conftest import ROOT

VERSION = "2.13.0"
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def page(build: str, platform: str | None = None, version: str = VERSION, tag: str = TAG) -> str:
    """An index's page that lists one wheel."""
    platform = platform or "manylinux_2_28_" + sysconfig.get_platform().rpartition("-")[2]
    return f'<a href="/whl/torch-{version}%2B{build}-{tag}-{tag}-{platform}.whl#sha256=0">torch</a>'


def pages(**builds: str) -> Callable[[str], str | None]:
    """A web with these indexes, the others are empty pages."""
    return lambda url: builds.get(url.split("/")[-3], "")


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-x86_64")


def test_hardware(tmp_path: Path) -> None:
    def runs(**answers: str) -> Callable[[list[str]], str | None]:
        return lambda command: answers.get(command[0].replace("-", "_"))

    assert detect(tmp_path, runs()) == ("cpu", Gpu())
    assert detect(tmp_path, runs(nvidia_smi="580.82.07, 9.0\n580.82.07, 8.6")) == ("nvidia", Gpu(580.82, 8.6, 9.0))
    assert detect(tmp_path, runs(nvidia_smi="[N/A], [N/A]")) == ("nvidia", Gpu())
    (tmp_path / "opt/rocm").mkdir(parents=True)
    assert detect(tmp_path, runs())[0] == "cpu"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    assert detect(tmp_path, runs())[0] == "rocm"
    (tmp_path / "opt/rocm").rmdir()
    assert detect(tmp_path, runs())[0] == "cpu"
    assert detect(tmp_path, runs(rocminfo="Agent 1"))[0] == "rocm"
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19"
    (tmp_path / "proc/driver/nvidia/version").write_text(line)
    assert detect(tmp_path, runs()) == ("nvidia", Gpu(535.104))


def test_index_that_lists_the_version() -> None:
    found = source("cpu", Gpu(), VERSION, {}, pages(cpu=page("cpu")))
    assert found == (f"torch=={VERSION}+cpu", table()["cpu"]["index"][0]["url"], None)


def test_later_candidates_are_tried() -> None:
    web = pages(cu130=page("cu130", tag="cp39"), cu129=page("cu129", "win_amd64"), cu128=page("cu128"))
    assert source("nvidia", Gpu(590.0, 12.0), VERSION, {}, web).requirement == f"torch=={VERSION}+cu128"


@pytest.mark.parametrize(
    ("gpu", "build"),
    [
        (Gpu(580.1, 9.0), "cu130"),
        (Gpu(), "cu130"),
        (Gpu(550.1, 8.9), "cu129"),
        (Gpu(580.1, 6.1), "cu126"),
        (Gpu(570.1, 12.0), "cu129"),
        (Gpu(470.1, 8.6), "cpu"),
        (Gpu(580.1, 6.1, 8.6), "cu126"),  # runs on both
        (Gpu(580.1, 6.1, 12.0), "cu130"),  # none runs on both: the newest counts
        (Gpu(580.1, 3.5, 8.9), "cu130"),  # an old card beside it does not take away the new one
        (Gpu(550.1, 3.5, 6.1), "cu126"),
        (Gpu(580.1, 3.5, 3.5), "cpu"),
    ],
)
def test_driver_and_gpu_decide(gpu: Gpu, build: str) -> None:
    names = ("cu130", "cu129", "cu128", "cu126", "cpu")
    found = source("nvidia", gpu, VERSION, {}, pages(**{name: page(name) for name in names}))
    assert found.requirement == f"torch=={VERSION}+{build}"
    assert (found.remark is not None) == (build == "cpu")


def test_default_index_where_pytorchs_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/whl/cpu"
        monkeypatch.setattr(torch_build, "_table", lambda: {"cpu": {"index": [{"url": url}]}})
        found = source("cpu", Gpu(), VERSION, {})
    assert (found.requirement, found.index_url) == (f"torch=={VERSION}", None)
    assert found.remark == "PyTorch's own index cannot be reached"


def test_default_index_where_pytorchs_has_nothing_that_fits() -> None:
    found = source("rocm", Gpu(), VERSION, {}, pages(**{"rocm7.2": page("rocm7.2", version="2.9.0")}))
    assert (found.requirement, found.index_url) == (f"torch=={VERSION}", None)
    assert "no suitable rocm build" in str(found.remark)


def test_override() -> None:
    def override(value: str, **builds: str) -> torch_build.Source:
        return source("cpu", Gpu(), VERSION, {torch_build.OVERRIDE: value}, pages(**builds))

    assert override("default", cpu=page("cpu")).index_url is None
    assert override("nvidia", cu130=page("cu130")).requirement == f"torch=={VERSION}+cu130"
    own = override("https://mirror.example/whl/xpu", xpu=page("xpu"))
    assert own[:2] == (f"torch=={VERSION}+xpu", "https://mirror.example/whl/xpu")
    with pytest.raises(Failure) as failure:
        override("https://mirror.example/whl/xpu")
    assert failure.value.sentence is Sentence.NO_TORCH_INDEX


def test_macs_take_the_default_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert source("cpu", Gpu(), VERSION, {}, pages(cpu=page("cpu"))).index_url is None


def test_only_the_table_names_an_index() -> None:
    hosts = {urlsplit(entry["url"]).hostname for build in table().values() for entry in build["index"]}
    [host] = hosts
    assert host is not None
    assert host.endswith(".pytorch.org")
    for path in [*(ROOT / "launcher").glob("*.py"), ROOT / "start-ui.sh", ROOT / "start-ui.bat"]:
        assert host not in path.read_text(encoding="utf-8")


def table() -> dict[str, Any]:
    return tomllib.loads((ROOT / "launcher" / "torch_builds.toml").read_text())


def test_another_machine_gets_the_build_for_its_own_python_and_processor() -> None:
    other = torch_build.Target(3, 14, "aarch64")
    text = page("cu130") + page("cu130", "manylinux_2_28_aarch64", tag="cp314")
    assert source("nvidia", Gpu(590.0, 9.0), VERSION, {}, lambda url: text, other).requirement.endswith("+cu130")
    found = source("nvidia", Gpu(590.0, 9.0), VERSION, {}, lambda url: page("cu130"), other)
    assert found.requirement == f"torch=={VERSION}"
    assert found.index_url is None
