"""The record of a reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from modules.formats.published_files import PublishedFile
from modules.system.errors import DarkroomError
from modules.system.factories import Package


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """The facts about a reward that are known before anything is loaded.

    `factory` names the function that builds it, as "module:function", called with a `Scorer` and a `RewardContext`.
    `scale` describes its scores; `licence` and `source` refer to the weights. `checks` maps settings to functions
    that raise DarkroomError where the setting's text is not valid; `own_settings` are further settings that it uses.
    `packages` are the optional packages that it imports. `runs_code`: its `file` names a function of the user's own.
    `client` names the function that builds the client of a server which scores the images, called with a `Scorer`, a
    `Patience` and a key; it needs no torch.
    Without `is_differentiable` only methods that need no gradient can train on it.
    """

    name: str
    label: str
    help: str
    factory: str
    scale: str
    is_differentiable: bool = True
    files: tuple[PublishedFile, ...] = ()
    licence: str = ""
    source: str = ""
    checks: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    own_settings: frozenset[str] = frozenset()
    packages: tuple[Package, ...] = ()
    runs_code: bool = False
    client: str = ""

    @property
    def settings(self) -> frozenset[str]:
        """The fields of `Scorer` that it uses in addition to the fields of every reward."""
        return frozenset(file.slot for file in self.files) | self.checks.keys() | self.own_settings


def not_empty(message: str, advice: str) -> Callable[[str], None]:
    """Return a check of a setting's text that raises DarkroomError with this message and advice where it is empty."""

    def check(text: str) -> None:
        if not text.strip():
            raise DarkroomError(message, advice=advice)

    return check
