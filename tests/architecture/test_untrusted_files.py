"""Files from strangers: nothing in the program unpickles, and there is one place that opens each kind of file."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT

FOLDERS = ("modules", "trainer", "ui", "benchmarks", "demo", "launcher")
UNPICKLING = {
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "copyreg"),
    *("torch.distributed.checkpoint", "torch.hub", "torch.jit", "torch.package", "multiprocessing.connection"),
    *("multiprocessing.managers", "multiprocessing.shared_memory", "datasets", "pandas", "yaml", "torchvision"),
}
"""Modules that unpickle what they read, or what they receive, or whose usual calls do."""
ALLOWED_NAMES = {
    "pickle.UnpicklingError",
    # The loader that builds plain values alone, and what is needed to look at a text before anything is built.
    *(
        "yaml.SafeLoader",
        "yaml.Node",
        "yaml.MappingNode",
        "yaml.SequenceNode",
        "yaml.MarkedYAMLError",
        "yaml.YAMLError",
    ),
}
LOADING = {
    *("from_single_file", "load_lora_weights", "load_textual_inversion", "load_ip_adapter", "load_adapter"),
    *("load_state_dict_from_url", "load_attn_procs", "load_dataset", "read_pickle", "load_checkpoint_and_dispatch"),
}
"""Methods of libraries that choose the container of a file by themselves, also a pickle."""
WEIGHTLESS = {"AutoProcessor", "config_class"}  # they have no weights


# What a file must spell to be found by any test here; the others need not be parsed.
CANDIDATE = re.compile(
    "|".join(map(re.escape, {m.split(".")[-1] for m in UNPICKLING} | LOADING))
    + r"|load\b|pretrained|Image|imread|Parser|heif|getimage"
)


def sources() -> dict[str, str]:
    """Every file of the program by its name."""
    files = (path for folder in FOLDERS for path in sorted((PROGRAM_ROOT / folder).rglob("*.py")))
    return {p.relative_to(PROGRAM_ROOT).as_posix(): p.read_text(encoding="utf-8") for p in files}


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    """Every file of the program that may have something to find, by its name, parsed."""
    return tuple((name, ast.parse(source)) for name, source in sources().items() if CANDIDATE.search(source))


def dotted(node: ast.expr) -> str:
    """The name that an expression spells, such as "torch.load"; empty where it is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports, and the names that it takes from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_unpickling(name: str) -> bool:
    return name not in ALLOWED_NAMES and any(name == module or name.startswith(f"{module}.") for module in UNPICKLING)


def options(call: ast.Call) -> dict[str, object]:
    """The keywords of a call that are constants; the others with the value "..."."""
    return {
        keyword.arg: keyword.value.value if isinstance(keyword.value, ast.Constant) else ...
        for keyword in call.keywords
        if keyword.arg
    }


def faults(source: str, is_fault: Callable[[str, ast.Call], bool]) -> list[str]:
    """The calls in a file that are faults, each by the name of what is called."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [dotted(call.func) for call in calls if is_fault(dotted(call.func), call)]


def loads_a_pickle(name: str, call: ast.Call) -> bool:
    """Whether a call may unpickle a file."""
    method, given = name.rpartition(".")[2], options(call)
    if name == "torch.load":
        return given.get("weights_only") is not True
    if name in ("np.load", "numpy.load"):
        return given.get("allow_pickle", False) is not False
    if method == "from_pretrained":
        is_safe = given.get("use_safetensors") is True or "state_dict" in given
        return not is_safe and not set(name.split(".")) & WEIGHTLESS
    return method in LOADING


def opens_an_image(name: str, call: ast.Call) -> bool:
    """Whether a call opens an image file, of any format and size."""
    method = name.rpartition(".")[2]
    is_tk = method in ("PhotoImage", "BitmapImage") and "file" in options(call)
    return is_tk or method == "imread" or name.endswith(("Image.open", "ImageFile.Parser", "pillow_heif.open_heif"))


def found_in_program(is_fault: Callable[[str, ast.Call], bool]) -> list[str]:
    calls = ((name, node) for name, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [f"{name}:{call.lineno}" for name, call in calls if is_fault(dotted(call.func), call)]


def test_no_module_that_unpickles_is_imported() -> None:
    assert [f"{file}: {name}" for file, tree in trees() for name in imported(tree) if is_unpickling(name)] == []


def test_no_call_unpickles_a_file() -> None:
    assert found_in_program(loads_a_pickle) == []


def test_torch_loads_in_one_place() -> None:
    """It checks a file's header first: torch itself has no limits."""
    calls = {found.partition(":")[0] for found in found_in_program(lambda name, call: name == "torch.load")}
    assert calls == {"modules/formats/stored_tensors.py"}


def test_images_are_opened_in_one_place() -> None:
    """It knows the formats and the limits: Pillow runs PostScript, and takes any memory for few enough pixels."""
    calls = {found.partition(":")[0] for found in found_in_program(opens_an_image)}
    assert calls == {"modules/data/images.py"}
    names = {"PIL.Image.open", "PIL.ImageFile.Parser", "PIL.ImageTk.getimage"}
    assert [file for file, tree in trees() if names & set(imported(tree))] == []


@pytest.mark.parametrize(
    "source",
    ["Image.open(path)", "PIL.Image.open(path)", "tk.PhotoImage(file=path)", "cv2.imread(path)", "ImageFile.Parser()"],
)
def test_what_would_open_an_image_is_found(source: str) -> None:
    assert faults(source, opens_an_image)
    assert CANDIDATE.search(source)


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=is_safe)",
        "np.load(path, allow_pickle=True)",
        "CLIPModel.from_pretrained(folder)",
        "getattr(transformers, name).from_pretrained(folder)",
        "Model.from_pretrained(folder, use_safetensors=None)",
        "pipeline.load_lora_weights(path)",
        "datasets.load_dataset('imagefolder')",
    ],
)
def test_what_would_unpickle_is_found(source: str) -> None:
    assert faults(source, loads_a_pickle)
    assert CANDIDATE.search(source)


@pytest.mark.parametrize(
    "source", ["import pickle", "from shelve import open", "import torch.distributed.checkpoint as dcp", "import yaml"]
)
def test_what_would_import_pickle_is_found(source: str) -> None:
    assert any(is_unpickling(name) for name in imported(ast.parse(source)))


def test_every_file_is_looked_at() -> None:
    assert len(sources()) > 800
    assert any(name == Path("modules/formats/stored_tensors.py").as_posix() for name, _ in trees())


@pytest.mark.parametrize("module", sorted(UNPICKLING))
def test_every_module_that_unpickles_makes_a_file_a_candidate(module: str) -> None:
    assert CANDIDATE.search(f"import {module}")
