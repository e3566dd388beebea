"""Families and file kinds are records: nobody but their own folder knows a family, and every record is whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.families.kinds.registry import FILE_KINDS
from modules.families.registry import FAMILIES, files_of, published_models
from modules.families.spec import FamilySpec
from modules.system.factories import load_factory
from modules.system.paths import PROGRAM_ROOT

# Who may say a family's or a published model's name, and why.
NAMERS = {
    "modules/families/registry.py": "the line of each",
    **{f"modules/families/{name}/": "its own folder" for name in FAMILIES},
    "modules/config/migrations/": "names of OneTrainer's files, which are history and do not change",
    "modules/config/imports/": "names of kohya's files, in which the family is a flag",
    "modules/config/sections/model.py": "the default",
}


def sources() -> Iterator[tuple[str, Path]]:
    for package in ("modules", "trainer", "ui"):
        for file in sorted((PROGRAM_ROOT / package).rglob("*.py")):
            yield file.relative_to(PROGRAM_ROOT).as_posix(), file


def strings(file: Path, among: set[str]) -> set[str]:
    source = file.read_text(encoding="utf-8")
    if not any(name in source for name in among):
        return set()
    return {n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)} & among


def test_a_familys_name_is_said_in_its_own_folder_alone() -> None:
    names = {*FAMILIES, *(m.name for m in published_models())}
    sayers = {path for path, file in sources() if strings(file, names)}
    assert not [path for path in sayers if not path.startswith(tuple(NAMERS))]
    assert all(any(path.startswith(namer) for path in sayers) for namer in NAMERS), "an exception nobody needs"


# Who may name a part of a family, and why: elsewhere parts have roles.
PART_NAMERS = {
    "modules/families/flux/": "its own folder",
    "modules/families/hidream/": "its own folder",
    "modules/families/hunyuan_image/": "its own folder",
    "modules/families/hunyuan_video/": "its own folder",
    "modules/families/sd/": "its own folder",
    "modules/families/sd3/": "its own folder",
    "modules/families/sdxl/": "its own folder",
    "modules/families/parts/": "the code of the models with a UNet and CLIP",
    "modules/config/migrations/": "keys of OneTrainer's files",
    "modules/formats/adapter_forms.py": "prefixes of the names in adapter files",
    "modules/formats/program_table.py": "layers of which programs lose the alpha",
    "modules/adapters/tools/blocks.py": "a group of layers in the notation of block weights",
    "modules/model_finder/programs.py": "ComfyUI's former name of a folder, in its list of folders",
    "modules/optim/terms/muon.py": "OneTrainer's rates of its first and second text encoder",
    "ui/features/search/synonyms.py": "a word that people search for",
}


def test_parts_have_roles_outside_of_their_family() -> None:
    parts = {"unet", "text_encoder_2", "UNet2DConditionModel", "CLIPTextModel", "AutoencoderKL"}
    sayers = {path for path, file in sources() if strings(file, parts)}
    assert not [path for path in sayers if not path.startswith(tuple(PART_NAMERS))]
    assert all(any(path.startswith(namer) for path in sayers) for namer in PART_NAMERS), "an exception nobody needs"


def test_formats_hold_containers_alone() -> None:
    pattern = re.compile(r"^\s*(from|import) modules\.(families|config|estimate|data)\b", re.MULTILINE)
    formats = [(path, file) for path, file in sources() if path.startswith("modules/formats/")]
    assert formats
    assert not [path for path, file in formats if pattern.search(file.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("spec", FAMILIES.values(), ids=list(FAMILIES))
def test_a_familys_records_fit_its_parts(spec: FamilySpec) -> None:
    files = files_of(spec.name)
    names = {p.name for p in spec.parts}
    assert "" in files.pipelines.values()
    for part in spec.parts:
        assert load_factory(part.model_class).__name__ == part.class_name
        assert callable(load_factory(part.model.passes))
    for model in files.models:
        assert model.family == spec.name
        assert model.shipped_configs().keys() - {"scheduler"} <= names
    known = {m.name for m in files.models}
    assert {m for _, m in files.lora_words} | {files.repository_model("owner/name")} <= known


def test_every_kind_of_file_is_a_whole_record() -> None:
    assert all(name == kind.name for name, kind in FILE_KINDS.items())
    for kind in FILE_KINDS.values():
        assert kind.label
        assert kind.help.endswith(".")
        assert bool(kind.forms) == bool(kind.opener) == bool(kind.writer)
        for place in filter(None, (kind.opener, kind.writer)):
            assert callable(load_factory(place))
