"""A run of the command line that counts what it did: `python -m tests.builders.started COUNTS train CONFIG ...`."""

from __future__ import annotations

import collections
import functools
import gc
import json
import sys
from pathlib import Path
from typing import Any


def main(counts_file: str, arguments: list[str]) -> int:
    """Carry out a command line as the launcher does, then write what was imported, opened, built and read."""
    opened, called = collections.Counter[str](), collections.Counter[str]()

    def audit(event: str, details: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(details[0], str):
            opened[str(details[0])] += 1

    def count(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def counted(*values: Any, **options: Any) -> Any:
            called[name] += 1
            return plain(*values, **options)

        setattr(owner, name, counted)

    from trainer.__main__ import main as command_line

    count(module("modules.families.parts.clip_tokens"), "build_clip_tokenizer")
    launch = module("trainer.launch")
    collections_before = _num_collections()
    launch.import_engine(in_window=False)
    called["garbage collection"] = _num_collections() - collections_before
    count(module("modules.families.parts.files"), "read_part")
    count(module("trainer.run.identities"), "weights_fingerprint")
    sys.addaudithook(audit)
    code = command_line(arguments)
    found: dict[str, Any] = {"modules": sorted(sys.modules), "opened": dict(opened), "called": dict(called)}
    Path(counts_file).write_text(json.dumps(found), encoding="utf-8")
    return code


def _num_collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def module(name: str) -> Any:
    """Return a module, imported at this moment."""
    __import__(name)
    return sys.modules[name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
