"""Chooses the torch build for this machine, and the index that provides it."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from launcher.fix_commands import START
from launcher.messages import Failure, Sentence

OVERRIDE = "DARKROOM_TORCH_INDEX"
PROBE_SECONDS = 4.0

Build = Literal["cpu", "nvidia", "rocm"]


class Gpu(NamedTuple):
    """An NVIDIA driver's version, and the lowest and the highest compute capability of its GPUs; None where unknown."""

    driver: float | None = None
    compute: float | None = None
    highest_compute: float | None = None


class Target(NamedTuple):
    """A Linux machine that torch is installed on: the version of its Python, and its processor."""

    major: int
    minor: int
    processor: str


class Source(NamedTuple):
    """pip's arguments: a requirement, and an index in addition to pip's default (None: only pip's default)."""

    requirement: str
    index_url: str | None
    remark: str | None = None


def detect(system: Path = Path("/"), run: Callable[[list[str]], str | None] | None = None) -> tuple[Build, Gpu]:
    """The build for this machine's hardware; `system` is the root of its file system."""
    run = run or _output
    listed = run(["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"])
    if listed:
        rows = [[_number(cell) for cell in line.split(",")] for line in listed.splitlines()]
        computes = [row[1] for row in rows if len(row) > 1 and row[1] is not None]
        return "nvidia", Gpu(rows[0][0], min(computes, default=None), max(computes, default=None))
    version = system / "proc/driver/nvidia/version"
    if version.is_file():
        number = re.search(r"\s(\d+\.\d+)", version.read_text(errors="replace"))
        return "nvidia", Gpu(float(number[1]) if number else None)
    has_tools = (system / "opt/rocm").is_dir() or run(["rocminfo"]) is not None
    return ("rocm" if (system / "dev/kfd").exists() and has_tools else "cpu"), Gpu()


def disk_gb(build: Build) -> int:
    """The disk space needed for the whole environment with this build, with a margin."""
    return int(_table()[build]["disk_gb"])


def source(
    build: Build,
    gpu: Gpu,
    version: str,
    environ: Mapping[str, str],
    page: Callable[[str], str | None] | None = None,
    target: Target | None = None,
) -> Source:
    """The source of this version; `page` downloads an index's page for torch (None: cannot be reached).

    It is for this machine, unless there is another `target`.
    """
    page = page or fetch
    default = Source(f"torch=={version}", None)
    override = environ.get(OVERRIDE, "")
    if override == "default":
        return default
    if override and override not in _table():
        listed = _wheel_version(page(f"{override.rstrip('/')}/torch/"), version, target)
        if listed is None:
            raise Failure(Sentence.NO_TORCH_INDEX, index=override, version=version, command=START)
        return Source(f"torch=={listed}", override)
    if sys.platform == "darwin" and target is None:
        return default
    remark = None
    urls = _suitable(override or build, gpu)
    if not urls:
        remark = f"this NVIDIA driver or GPU is too old for torch {version}, so the CPU build is used"
        urls = _suitable("cpu", Gpu())
    for url in urls:
        text = page(f"{url}/torch/")
        if text is None:
            return default._replace(remark="PyTorch's own index cannot be reached")
        listed = _wheel_version(text, version, target)
        if listed is not None:
            return Source(f"torch=={listed}", url, remark)
    return default._replace(remark=f"PyTorch's own index has no suitable {override or build} build")


def fetch(url: str) -> str | None:
    """The text of a page, None if it cannot be downloaded within a few seconds; "" if it does not exist."""
    import urllib.error
    import urllib.request

    if url.startswith("file:"):
        url += "index.html"
    try:
        with urllib.request.urlopen(url, timeout=PROBE_SECONDS) as answer:
            return str(answer.read().decode("utf-8", errors="replace"))
    except urllib.error.HTTPError as error:
        return "" if error.code in (403, 404) else None
    except (OSError, ValueError):
        return None


def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("torch_builds.toml").read_text(encoding="utf-8"))


def _suitable(build: str, gpu: Gpu) -> list[str]:
    """The indexes that support all GPUs of this hardware, or, if there are none, those that support the newest GPU."""

    def suits(entry: dict[str, Any], *computes: float | None) -> bool:
        return (gpu.driver is None or gpu.driver >= entry.get("min_driver", 0)) and all(
            compute is None or entry.get("min_compute", 0) <= compute <= entry.get("max_compute", 99)
            for compute in computes
        )

    entries = _table()[build]["index"]
    suitable = [entry["url"] for entry in entries if suits(entry, gpu.compute, gpu.highest_compute)]
    return suitable or [entry["url"] for entry in entries if suits(entry, gpu.highest_compute or gpu.compute)]


def _wheel_version(page: str | None, version: str, target: Target | None) -> str | None:
    """The full version, with its build suffix, of a wheel on this page that matches a Python and a machine."""
    own_system, _, own_processor = sysconfig.get_platform().rpartition("-")
    system = "win" if own_system == "win" and target is None else "linux"
    major, minor, processor = target or Target(*sys.version_info[:2], own_processor)
    tag, platform = f"cp{major}{minor}", rf"{system}[\w.]*_{re.escape(processor)}"
    wheel = rf"torch-({re.escape(version)}(?:(?:%2B|\+)[\w.]+)?)-{tag}-{tag}-[\w.]*{platform}"
    match = re.search(wheel, page or "")
    return match[1].replace("%2B", "+") if match else None


def _number(cell: str) -> float | None:
    match = re.match(r"\s*(\d+(?:\.\d+)?)", cell)
    return float(match[1]) if match else None


def _output(command: list[str]) -> str | None:
    """A program's output, None if it does not exist or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
