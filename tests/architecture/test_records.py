"""Every choice is one record: nobody else knows its name, and the records stay below what is composed from them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from modules.optim.registry import OPTIMIZERS
from modules.system.factories import load_factory
from modules.system.paths import PROGRAM_ROOT

PROGRAM = [p for d in ("modules", "trainer", "ui") for p in (PROGRAM_ROOT / d).rglob("*.py")]
# Files of other programs and of earlier versions name records of every kind.
OF_OTHERS = ("modules/config/migrations/", "modules/config/imports/")


@dataclass(frozen=True)
class Registry:
    """A registry of records, the places that may name them, and names and labels that mean something else, too."""

    reference: str
    own: tuple[str, ...]
    common: frozenset[str] = frozenset()
    allowed: Mapping[str, str] = field(default_factory=dict)
    """Other files that may name them, and why."""

    @property
    def records(self) -> Mapping[str, Any]:
        records: Mapping[str, Any] = load_factory(self.reference)
        return records

    def named_in(self, strings: Iterable[str], *, unless: frozenset[str] | None = None) -> list[str]:
        """The strings that are a record's name, or contain its label; the common ones do not count."""
        unless = self.common if unless is None else unless
        names = self.records.keys() - unless
        labels = {getattr(record, "label", "") for record in self.records.values()} - unless - {""}
        label = re.compile("|".join(rf"\b{re.escape(text)}(?!\w)" for text in sorted(labels)) or "(?!)")
        return [text for text in strings if text in names or label.search(text)]


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DEFAULT = "the default"
_ADVICE = "advice to choose the default"
_SD_SCRIPTS = "layers in files of sd-scripts have names of their own"
REGISTRIES = {
    "adapters": Registry(
        "modules.adapters.registry:ADAPTERS",
        ("modules/adapters/",),
        words("lora LoRA"),  # a LoRA is also a kind of file, and what people call any adapter
        {
            "modules/formats/program_table.py": _SD_SCRIPTS,
            "modules/families/parts/unet_clip_file/naming_rows.py": _SD_SCRIPTS,
            "modules/formats/adapter_forms.py": _SD_SCRIPTS,
        },
    ),
    "annotators, captions": Registry("modules.annotators.registry:CAPTIONERS", ("modules/annotators/",)),
    "annotators, masks": Registry(
        "modules.annotators.registry:MASKERS", ("modules/annotators/",), words("colour Colour")
    ),
    "attention": Registry(
        "modules.families.attention:ATTENTIONS",
        ("modules/families/attention",),
        allowed={
            "modules/config/sections/training.py": _DEFAULT,
            "ui/features/search/synonyms.py": "words that people search for",
            "modules/families/chroma/spec.py": "the name of a distilled model",
        },
    ),
    "families": Registry(
        "modules.families.registry:FAMILIES",
        ("modules/families/",),
        allowed={"modules/config/sections/model.py": _DEFAULT},
    ),
    "doctor, checks": Registry(
        "modules.data.doctor.report:CHECKS",
        ("modules/data/doctor/",),
        words("dark"),  # also the dark theme
    ),
    "doctor, fixes": Registry(
        "modules.data.doctor.fixes:FIXES",
        ("modules/data/doctor/",),
        words("rename"),
    ),
    "forms of adapter files": Registry(
        "modules.formats.adapter_forms:FORMS",
        ("modules/formats/",),
        words("kohya diffusers lycoris LyCORIS ComfyUI"),  # also programs and libraries
    ),
    "inputs of models": Registry(
        "modules.data.inputs:INPUTS",
        ("modules/data/",),
        words("mask depth"),  # masks are also used in training, and depth is a model variant
        {
            "modules/config/sections/evaluation.py": "a sample has settings of its own for its inputs",
            "trainer/callbacks/image_sampler.py": "a sample has settings of its own for its inputs",
            "trainer/events.py": "the label of a cache",
            "trainer/preflight/companions.py": "checks of the files next to an image",
        },
    ),
    "jobs": Registry(
        "trainer.jobs.registry:JOBS",
        ("trainer/jobs/",),
        words(
            "check doctor sample preview probe self-test Self-test inspect convert export diff models schema caption "
            "mask bundle install"
        )
        | words("Check Generate Probe Inspect Convert Export Extract Resize Models Differences Install")
        | words("checkpoints"),
        {
            "modules/data/doctor/page.py": "the title of a page",
            "ui/app/actions.py": "entries of menus that open a window",
            "ui/features/about.py": "the button of a job",
            "ui/features/runs/details.py": "the button that opens the window of a job",
            "ui/features/tools/page.py": "the tools of its page: reading all records of jobs takes half a second",
            "ui/features/tools/inspect_card.py": "which tools use a file, and what its button says",
        },
    ),
    "kinds of files": Registry(
        "modules.families.kinds.registry:FILE_KINDS",
        ("modules/families/kinds/",),
        words("lora checkpoint vae embedding part unknown broken LoRA VAE Embedding Unknown Unreadable")
        | frozenset({"Diffusers folder"}),
        {"ui/features/generate/sources.py": "samples are made from models alone"},
    ),
    "losses": Registry(
        "modules.objectives.losses:LOSSES",
        ("modules/objectives/",),
    ),
    "methods": Registry(
        "modules.objectives.registry:METHODS",
        ("modules/objectives/", "trainer/methods/"),
        words("Denoising"),  # denoising is also what a sampler does
        {
            "modules/config/sections/training.py": _DEFAULT,
            "modules/config/rules/model.py": _ADVICE,
            "modules/data/concept.py": "pairs of images are for one of them",
        },
    ),
    "optimizers": Registry("modules.optim.registry:OPTIMIZERS", ("modules/optim/",)),
    "quantized formats": Registry(
        "modules.quantization.registry:FORMATS",
        ("modules/quantization/",),
        words("float8 int8 gguf GGUF"),  # also dtypes and containers of files
        {
            "ui/features/search/synonyms.py": "words that people search for",
        },
    ),
    "rewards": Registry(
        "modules.rewards.registry:REWARDS",
        ("modules/rewards/",),
        words("brightness Brightness contrast Contrast sharpness"),  # also changes and faults of images
    ),
    "samplers": Registry(
        "modules.sampling.registry:SAMPLERS",
        ("modules/sampling/",),
        frozenset(),
        {
            "modules/config/sections/evaluation.py": _DEFAULT,
            "modules/objectives/methods/dgpo.py": _DEFAULT,
            "modules/objectives/methods/nft.py": _DEFAULT,
            "modules/objectives/methods/online_dpo.py": _DEFAULT,
            "modules/families/parts/part_classes.py": "a word in the names of distilled models",
        },
    ),
    "schedules": Registry(
        "modules.optim.schedule_registry:SCHEDULES",
        ("modules/optim/",),
        words("constant Constant linear Cosine custom points"),
    ),
    "timestep distributions": Registry(
        "modules.diffusion.timesteps.distributions:DISTRIBUTIONS",
        ("modules/diffusion/",),
        words("uniform sigmoid beta Beta"),
    ),
    "weightings": Registry(
        "modules.diffusion.weightings:WEIGHTINGS",
        ("modules/diffusion/",),
        words("none None"),
        {"modules/families/pixart/files.py": "a word in the names of models"},
    ),
}


def strings(path: Path) -> Iterator[str]:
    """The strings of a file that are not documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@cache
def program_strings() -> Mapping[str, frozenset[str]]:
    return {path.relative_to(PROGRAM_ROOT).as_posix(): frozenset(strings(path)) for path in PROGRAM}


def strings_outside(registry: Registry) -> Mapping[str, frozenset[str]]:
    """The strings of the files that may not name a registry's records."""
    return {p: s for p, s in program_strings().items() if not p.startswith((*registry.own, *OF_OTHERS))}


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=list(REGISTRIES))
def test_nobody_else_knows_a_records_name(registry: Registry) -> None:
    others = strings_outside(registry)
    assert len(others) > 200
    found = {path: named for path, texts in others.items() if (named := registry.named_in(texts))}
    assert not {path: named for path, named in found.items() if path not in registry.allowed}
    assert not registry.allowed.keys() - found.keys(), "exceptions that nobody needs"


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=list(REGISTRIES))
def test_every_common_name_is_needed(registry: Registry) -> None:
    others = frozenset[str]().union(*strings_outside(registry).values())
    assert not [word for word in registry.common if not registry.named_in(others, unless=registry.common - {word})]


def test_a_name_that_is_planted_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text('"""AdamW may stand here."""\nif name == "adamw":\n    advice = "Choose Adafactor."\n')
    assert REGISTRIES["optimizers"].named_in(strings(planted)) == ["adamw", "Choose Adafactor."]
    assert REGISTRIES["adapters"].named_in(["a LoRA or LoHa file", "lokr", "often"]) == ["a LoRA or LoHa file", "lokr"]


def test_only_the_registry_imports_a_record() -> None:
    """No `isinstance` on a variant: its class is known to its own file."""
    imported = re.compile(r"modules\.optim\.(optimizers|schedules)\b")
    found = []
    for path in PROGRAM:
        name = path.relative_to(PROGRAM_ROOT).as_posix()
        registries = ("modules/optim/registry.py", "modules/optim/schedule_registry.py")
        is_sibling = name.startswith(("modules/optim/optimizers/", "modules/optim/schedules/"))
        if name not in registries and not is_sibling and imported.search(path.read_text(encoding="utf-8")):
            found.append(name)
    assert not found


def test_optimizers_are_below_the_config() -> None:
    above = re.compile(r"^\s*(from|import) modules\.(config|estimate|families|adapters)", re.MULTILINE)
    optim = (PROGRAM_ROOT / "modules" / "optim").rglob("*.py")
    assert not [p.name for p in optim if above.search(p.read_text(encoding="utf-8"))]


def test_a_record_is_in_a_file_of_its_kind_with_its_settings() -> None:
    folder = PROGRAM_ROOT / "modules" / "optim" / "optimizers"
    files = {p.stem for p in folder.glob("*.py")} - {"__init__"}
    modules = {name: importlib.import_module(spec.settings.__module__) for name, spec in OPTIMIZERS.items()}
    assert {module.__name__ for module in modules.values()} == {f"modules.optim.optimizers.{stem}" for stem in files}
    for name, spec in OPTIMIZERS.items():
        assert getattr(modules[name], name.upper()) is spec
        assert spec.help.endswith(".")
