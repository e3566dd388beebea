"""The check of another machine: whether it can be reached, its disk, its cards, its Python."""

from __future__ import annotations

from dataclasses import dataclass

from modules.system.problem import count
from trainer.remote.connection import Connection, printed_by
from trainer.remote.starting import OLDEST_PYTHON

_TORCH = "import json, torch; print(json.dumps({'version': torch.__version__, 'devices': torch.cuda.device_count()}))"
_LITTLE_BYTES = 20e9


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the check: its subject, the result as text, and whether a run can be trained with it."""

    name: str
    text: str
    is_good: bool = True


def findings_of(connection: Connection) -> list[Finding]:
    """Return the findings about a machine. Raises ConnectionLostError."""
    remote, facts = connection.remote, connection.facts
    free_gb = facts["free_bytes"] / 1e9
    listed = connection.call("cards")[0]
    cards = listed["cards"]
    version = ".".join(map(str, facts["version"]))
    is_new = tuple(facts["version"]) >= OLDEST_PYTHON
    findings = [
        Finding("Connection", f"{remote.address} answers."),
        Finding("Disk", f"{free_gb:,.1f} GB free in {facts['folder']}.", facts["free_bytes"] >= _LITTLE_BYTES),
        Finding("Cards", "; ".join(cards) if cards else f"None: {listed['reason']}.", bool(cards)),
        Finding("Python", f"{version} ({facts['python']}){'' if is_new else '; 3.11 or newer is needed'}.", is_new),
    ]
    if len(cards) < remote.num_devices and cards:
        text = f"{count(remote.num_devices, 'device')} set, {count(len(cards), 'card')} found."
        findings.append(Finding("Devices", text, is_good=False))
    return [*findings, _packages(connection)]


def _packages(connection: Connection) -> Finding:
    folder, python = connection.facts["folder"], connection.facts["python"]
    if not connection.remote.python:
        python = f"{folder}/environment/bin/python"
        if connection.call("command", arguments=["test", "-e", python], cwd="/", seconds=20)[0]:
            return Finding("Packages", f"The first run installs them in {folder}/environment.")
    torch = printed_by(connection, _TORCH, names=("version", "devices"), python=python)
    if torch is None:
        text = "PyTorch cannot be loaded there. Choose another Python, or none: Darkroom then installs its own."
        return Finding("Packages", text, is_good=False)
    return Finding("Packages", f"PyTorch {torch['version']}, which finds {count(torch['devices'], 'CUDA device')}.")
