"""Links and paths in the documents lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT

DOCUMENTS = sorted([*PROGRAM_ROOT.glob("*.md"), *(PROGRAM_ROOT / "docs").rglob("*.md")])
ROOMS = ("modules", "trainer", "ui", "tests", "benchmarks", "demo", "launcher", "docs", "training_presets")


def prose_of(document: Path) -> str:
    """The document without its blocks of code."""
    return re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors_of(document: Path) -> set[str]:
    """The anchors of the headings, as GitHub has them."""
    headings = re.findall(r"^#+\s+(.*)$", prose_of(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> Iterator[str]:
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose_of(document)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            yield target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_of_a_document_resolves(document: Path) -> None:
    assert not list(broken_links(document))


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_that_a_guide_names_exists(name: str) -> None:
    """Paths from the root; `<name>` stands for any. Other paths count from a folder that the sentence names."""
    paths = re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./<>*-]+)`", prose_of(PROGRAM_ROOT / name))
    assert paths
    missing = [path for path in paths if not any(PROGRAM_ROOT.glob(re.sub(r"<\w+>", "*", path.rstrip("/"))))]
    assert not missing


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    text = "# A heading\n\n[a](#a-heading) [b](page.md#none) [c](gone.md) [d](https://example.org) [e](page.md)\n"
    document.write_text(text, encoding="utf-8")
    assert list(broken_links(document)) == ["page.md#none", "gone.md"]
