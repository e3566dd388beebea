"""Installs the project's requirements into an environment, and keeps every package that already meets them."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from launcher import checks, marker, requirements, torch_build
from launcher.environment import (
    CONDA_NEW,
    Environment,
    disk_full_failure,
    purge_command,
    read_only_failure,
    write_errors_as_failures,
)
from launcher.fix_commands import START, quote
from launcher.messages import Failure, Sentence
from launcher.pip_run import PipError, installed_count, run_pip
from launcher.progress import Progress
from launcher.requirements import InstalledPackage, Package, UnmetRequirement

LOG = "darkroom-install.log"
CONSTRAINTS = ".darkroom-constraints.txt"
WAIT_SECONDS = 60.0


class Job(NamedTuple):
    """An installation: its environment and its requirements."""

    root: Path
    env: Environment
    wanted: list[str]
    environ: Mapping[str, str]
    source: Callable[..., torch_build.Source] = torch_build.source

    @property
    def log(self) -> Path:
        """The log file of pip's output."""
        return self.env.prefix / LOG

    @property
    def constraints(self) -> Path:
        """The constraints file passed to pip."""
        return self.env.prefix / CONSTRAINTS


def ensure(job: Job, progress: Progress | None = None) -> None:
    """Install everything that is missing. Runs in the environment's own Python."""
    prefix = job.env.prefix
    if marker.stage(prefix) is None and _is_complete(job):
        return
    if not os.access(prefix, os.W_OK):
        raise read_only_failure(job.env)
    progress = progress or Progress()
    with (
        write_errors_as_failures(job.env),
        marker.lock(prefix, WAIT_SECONDS, lambda: progress.show("Waiting for another start that is installing")),
    ):
        progress.close()
        if marker.stage(prefix) is not None:
            _repair(job, progress)
        present = requirements.installed_packages()
        missing = requirements.unmet_requirements(job.wanted, present)
        if missing:
            _install(job, missing, present, progress)
        marker.clear(prefix)


def _is_complete(job: Job) -> bool:
    """Whether nothing is missing; known from the last start if the environment has not changed."""
    prefix, state = job.env.prefix, requirements.environment_state()
    if marker.are_met(prefix, state, job.wanted):
        return True
    is_complete = not requirements.unmet_requirements(job.wanted, requirements.installed_packages())
    if is_complete:
        marker.note_met(prefix, state, job.wanted)
    return is_complete


def _repair(job: Job, progress: Progress) -> None:
    """Remove the metadata of packages that an interrupted installation left incomplete, so that pip reinstalls them."""
    prefix = job.env.prefix
    present = requirements.installed_packages()
    before = marker.versions_before(prefix)
    suspects = {n: package for n, package in present.items() if package.version != before.get(n) and n != "pip"}
    pieces = requirements.damaged_packages(suspects)
    for name in pieces:
        shutil.rmtree(present[name].folder)
    marker.add_packages(prefix, suspects)
    if job.env.kind == "project":
        for left_over in Path(sysconfig.get_path("purelib")).glob("~*"):
            shutil.rmtree(left_over, ignore_errors=True)
    if pieces:
        progress.print_line(f"The last installation was interrupted; installing again: {', '.join(sorted(pieces))}")


def _install(
    job: Job, missing: list[UnmetRequirement], present: dict[Package, InstalledPackage], progress: Progress
) -> None:
    prefix = job.env.prefix
    _refuse_locked(job)
    changeable = frozenset(present)
    if job.env.kind != "project":
        changeable = marker.packages_of_launcher(prefix) | requirements.seeds_that_nobody_needs(present)
    _refuse_conflicts(job, missing, changeable)
    if marker.stage(prefix) is None:
        marker.write(prefix, "installing", {name: package.version for name, package in present.items()})
    with job.log.open("w", encoding="utf-8") as log:
        progress.print_line(f"Installing missing packages into {prefix} (log: {job.log})")
        _ensure_pip(job, present, log)
        num_packages = _install_packages(job, present, changeable, log, progress)
    after = requirements.installed_packages()
    still = requirements.unmet_requirements(job.wanted, after)
    if still:
        names = ", ".join(sorted(entry.requirement for entry in still))
        raise Failure(Sentence.STILL_MISSING, names=names, log=job.log, command=START)
    marker.add_packages(prefix, set(after) - set(present))
    progress.print_line(f"Installed {num_packages} packages in {progress.elapsed()}.")


def _install_packages(
    job: Job,
    present: dict[Package, InstalledPackage],
    changeable: frozenset[Package],
    log: IO[str],
    progress: Progress,
) -> int:
    tested = requirements.tested_versions(job.root)
    unmet_now = {entry.package for entry in requirements.unmet_requirements(job.wanted, present)}
    kept = set(present) - changeable - unmet_now
    num_packages = 0
    if "torch" in map(requirements.name_of, job.wanted):
        if "torch" in present and "torch" not in unmet_now:
            checks.refuse_broken_torch(job.env, present["torch"].version, progress)
        else:
            num_packages += _install_torch(job, tested, present, kept, log, progress)
            present = requirements.installed_packages()
        kept.add("torch")
    return num_packages + _pip(job, job.wanted, requirements.pins(tested, present, kept), log, progress)


def _install_torch(
    job: Job,
    tested: dict[Package, str],
    present: dict[Package, InstalledPackage],
    kept: set[Package],
    log: IO[str],
    progress: Progress,
) -> int:
    progress.show("Choosing the torch build for this machine")
    build, gpu = torch_build.detect()
    needed_gb = torch_build.disk_gb(build)
    free_gb = shutil.disk_usage(job.env.prefix).free / 1e9
    if free_gb < needed_gb:
        path, command = job.env.prefix, purge_command()
        raise Failure(Sentence.DISK_TOO_SMALL, path=path, free_gb=free_gb, needed_gb=needed_gb, command=command)
    source = job.source(build, gpu, tested["torch"], job.environ)
    index = source.index_url or "pip's default index"
    remark = f" ({source.remark})" if source.remark else ""
    progress.print_line(f"torch {tested['torch']}, for {build} hardware, from {index}{remark}")
    pins = requirements.pins({**tested, "torch": source.requirement.partition("==")[2]}, present, kept)
    extra = ["--extra-index-url", source.index_url] if source.index_url else []
    return _pip(job, [*extra, source.requirement], pins, log, progress)


def _pip(job: Job, arguments: list[str], pins: list[str], log: IO[str], progress: Progress) -> int:
    job.constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
    pip = requirements.installed_packages().get("pip")
    shows_bytes = pip is not None and tuple(map(int, pip.version.split(".")[:2])) >= (24, 1)
    command = [sys.executable, "-s", "-m", "pip", "install", "--no-input", "--no-color", "--prefer-binary"]
    command += ["--disable-pip-version-check", "--progress-bar", "raw" if shows_bytes else "off"]
    # Half of the time of an installation went into compiling modules, of which the program imports few: Python compiles
    # them when it imports them.
    command += ["--no-compile"]
    command += ["--constraint", str(job.constraints), *arguments]
    folder = Path(sysconfig.get_path("purelib"))
    try:
        return run_pip(
            command,
            log=log,
            progress=progress,
            count_packages=lambda: installed_count(folder),
            num_wanted=sum(not argument.startswith("-") for argument in arguments),
            environ=job.environ,
        )
    except PipError as error:
        raise _failure_of(job, error) from error


def _failure_of(job: Job, error: PipError) -> Failure:
    """The failure for a failed run of pip."""
    env = job.env
    if error.cause == "disk":
        return disk_full_failure(env.prefix)
    if error.cause == "read-only":
        return read_only_failure(env)
    if error.cause == "network":
        return Failure(Sentence.NO_NETWORK, log=job.log, command=START)
    if error.cause == "conflict" and env.kind != "project":
        return Failure(
            Sentence.ACTIVE_RESOLUTION,
            kind=env.kind,
            prefix=env.prefix,
            log=job.log,
            command=env.leave_command,
        )
    return Failure(Sentence.PIP_FAILED, reason=error.reason, log=job.log, command=START)


def _refuse_conflicts(job: Job, missing: list[UnmetRequirement], changeable: frozenset[Package]) -> None:
    """Raise `Failure` rather than change packages that were not installed by Darkroom in the active environment."""
    in_the_way = [entry for entry in missing if entry.held is not None and entry.package not in changeable]
    if in_the_way:
        env = job.env
        needed = sorted({entry.requirement.partition(";")[0].strip() for entry in in_the_way})
        install = " ".join(f'"{requirement}"' for requirement in needed)
        raise Failure(
            Sentence.ACTIVE_CONFLICT,
            kind=env.kind,
            prefix=env.prefix,
            held=", ".join(sorted({f"{entry.package} {entry.held}" for entry in in_the_way})),
            needed=", ".join(needed),
            leave=env.leave_command,
            command=f"{quote(sys.executable)} -m pip install {install}",
        )


def _refuse_locked(job: Job) -> None:
    # pip's own rule: the EXTERNALLY-MANAGED file only counts outside virtual environments, in the system's standard
    # library.
    is_virtual = sys.prefix != sys.base_prefix
    if not is_virtual and (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists():
        raise Failure(Sentence.ACTIVE_MANAGED, kind="conda", prefix=job.env.prefix, command=CONDA_NEW)


def _ensure_pip(job: Job, present: dict[Package, InstalledPackage], log: IO[str]) -> None:
    if "pip" in present:
        return
    made = subprocess.run([sys.executable, "-m", "ensurepip"], capture_output=True, text=True, errors="replace")
    log.write(made.stdout + made.stderr)
    if made.returncode != 0:
        command = f"conda install -p {quote(job.env.prefix)} pip"
        if job.env.kind != "conda":
            command = f"{quote(sys.executable)} -m ensurepip"
        raise Failure(Sentence.NO_PIP, prefix=job.env.prefix, command=command)
