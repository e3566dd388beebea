"""The user's code files that a config would run, the servers it would send images to, and if they are approved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import scorers_of
from modules.rewards.address import Address, parse_address
from modules.rewards.registry import REWARDS
from modules.rewards.user_code_file import approved_hashes, hash_of, split_reference
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A function in one of the user's code files, and the current SHA-256 of that file."""

    path: Path
    function: str
    digest: str


def code_of(config: Config) -> tuple[CodeFile, ...]:
    """Return the user's code that a run of a config would execute.

    Files that cannot be read are left out; the preflight check reports them.
    """
    in_use = scorers_of(config)
    files = []
    for scorer in in_use.all if in_use is not None else ():
        if REWARDS[scorer.kind].runs_code:
            try:
                path, function = split_reference(scorer.file)
                files.append(CodeFile(path, function, hash_of(path)))
            except DarkroomError:
                continue
    return tuple(files)


def unapproved_code(config: Config) -> tuple[CodeFile, ...]:
    """Return the code of a config that is not approved on this machine."""
    approved = approved_hashes()
    return tuple(code for code in code_of(config) if code.digest not in approved)


def unapproved_addresses(config: Config) -> tuple[Address, ...]:
    """Return the servers on other computers that a run would send images to and that are not approved here.

    Invalid addresses are left out; the preflight check reports them.
    """
    in_use, approved = scorers_of(config), approved_hashes()
    addresses: dict[Address, None] = {}
    for scorer in in_use.all if in_use is not None else ():
        if REWARDS[scorer.kind].client:
            try:
                addresses[parse_address(scorer.address)] = None
            except DarkroomError:
                continue
    return tuple(a for a in addresses if not a.is_local and a.digest not in approved)
