"""Stands in for pip's __main__ in the tests' environments: records what it is asked, installs empty packages.

FAKE_PIP names a folder; `calls` there gets a line of JSON per call, `mode` says how it behaves.
"""

import json
import os
import re
import shutil
import signal
import sys
import sysconfig
from pathlib import Path

FAILURES = {
    "network": "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError("
    "failed)'\nERROR: No matching distribution found for alpha",
    "disk": "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "read-only": "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: 'x'",
    "conflict": "ERROR: ResolutionImpossible: for help visit the documentation",
    "other": "ERROR: something that is not known",
}


def install(
    name: str, version: str, requires: tuple[str, ...] = (), *, whole: bool = True, folder: Path | None = None
) -> None:
    """Put an empty package into an environment (this one by default), or half of one."""
    folder = folder or Path(sysconfig.get_path("purelib"))
    info = folder / f"{name}-{version}.dist-info"
    for older in folder.glob(f"{name}-*.dist-info"):
        shutil.rmtree(older)
    info.mkdir()
    (folder / f"{name}.py").touch()
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\nText\n")
    if whole:
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text(f"{name}.py,,{(folder / f'{name}.py').stat().st_size}\n")


def main() -> int:
    """Answer `pip install`."""
    folder = Path(os.environ["FAKE_PIP"])
    arguments = sys.argv[1:]
    constraints = Path(arguments[arguments.index("--constraint") + 1]).read_text().split()
    variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    call = {"arguments": arguments, "constraints": constraints, "variables": variables}
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps(call) + "\n")
    mode = (folder / "mode").read_text() if (folder / "mode").exists() else "good"
    if mode in FAILURES:
        print(FAILURES[mode], file=sys.stderr)
        return 1
    pins = dict(line.split("==") for line in constraints)
    names = [re.split(r"[^\w-]", argument)[0] for argument in arguments if re.match(r"\w+[=<>]", argument)]
    print("Installing collected packages: " + ", ".join(names), flush=True)
    for name in names:
        if mode == "hang":
            install(name, pins[name], whole=False)
            (folder / "hanging").write_text(str(os.getpid()))
            signal.pause()
        if mode == "good":
            install(name, pins[name])
    return 0


def add_to(prefix: Path, packaging: Path) -> None:
    """Make this file the pip of an environment, with the packaging library that every pip carries."""
    folder = next(prefix.glob("lib/python*/site-packages"))
    (folder / "pip" / "_vendor").mkdir(parents=True)
    (folder / "pip" / "__init__.py").touch()
    (folder / "pip" / "_vendor" / "__init__.py").touch()
    shutil.copytree(packaging, folder / "pip" / "_vendor" / "packaging", symlinks=True)
    shutil.copy(__file__, folder / "pip" / "__main__.py")
    install("pip", "25.0", folder=folder)
    (folder / "pip.py").unlink()  # the package beside it is the module


if __name__ == "__main__":
    if sys.argv[1] == "--add-to":
        add_to(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        raise SystemExit(main())
