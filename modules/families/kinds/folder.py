"""Detects models in diffusers' folder layout from their JSON files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from modules.families.kinds.file_kind import WITHOUT, FileKind, Prediction
from modules.families.kinds.record import FileKindSpec, Loads, loads_whole
from modules.families.published import ALL_PROGRAMS, FamilyFiles, FolderFacts
from modules.families.registry import FAMILIES, files_of, published_model
from modules.families.spec import PartSpec
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.headers import UnreadableFileError, over_limit, read_header
from modules.formats.metadata import unfold_metadata
from modules.formats.repository import INDEX_FILES
from modules.system.problem import with_article
from modules.system.regular_files import FileTooLargeError, read_regular

_MAX_CONFIG_BYTES = 1_000_000  # real ones have a few thousand
_MAX_FILES = 50_000
_MAX_WORD_CHARS = 80
_PREDICTIONS = {"v_prediction": " with v-prediction", "epsilon": " with epsilon prediction"}


def folder_kind(folder: Path) -> FileKind:
    """Return a folder's kind; for a folder that is not a model, its sentence explains why.

    Raises UnreadableFileError if it is larger than any model's folder.
    """
    index = next((content for name in INDEX_FILES if (content := _json(folder / name)) is not None), None)
    if index is None:
        return _without_index(folder)
    name = _word(index.get("_class_name", "nothing"))
    files = next((f for f in map(files_of, FAMILIES) if name in f.pipelines), None)
    if files is None:
        return FileKind("other_model", f"A diffusers folder of {with_article(name)}, which is not supported.")
    return _model_kind(folder, index, name, files)


def folder_metadata(folder: Path, kind: FileKind) -> dict[str, str]:
    """Return the metadata of a folder's model, from the header of its denoiser; empty if no program stored any."""
    if not kind.family:
        return {}
    denoiser = folder / FAMILIES[kind.family].names_of("denoiser")[0]
    with suppress(UnreadableFileError):
        for file in sorted(_weights(denoiser)):
            if metadata := unfold_metadata(read_header(file).metadata):
                return metadata
    return {}


def _model_kind(folder: Path, index: dict[str, Any], pipeline: str, files: FamilyFiles) -> FileKind:
    spec = FAMILIES[files.models[0].family]
    denoiser = _json(folder / spec.names_of("denoiser")[0] / "config.json") or {}
    scheduler = _json(folder / "scheduler" / "scheduler_config.json") or {}
    prediction: Prediction = "v_prediction" if scheduler.get("prediction_type") == "v_prediction" else "epsilon"
    if spec.process.flow is not None:
        prediction = "flow"
    denoiser["cross_attention_dim"] = _whole(denoiser.get("cross_attention_dim"))
    model = published_model(files.folder_model(FolderFacts(index, denoiser, prediction)))
    variant = files.pipelines[pipeline] or files.variants.get(_whole(denoiser.get("in_channels")), "")
    zero_snr = bool(scheduler.get("rescale_betas_zero_snr", False))
    facts = {"layout": "diffusers", "pipeline": pipeline}
    absent = [p.name for p in spec.in_base_model.parts if _is_left_out(index, p.name) or _is_apart(folder, p)]
    if without := [p.name for p in spec.parts if (p.optional or p.published_in) and p.name in absent]:
        facts[WITHOUT] = ", ".join(without)
    wanted = [p.name for p in spec.in_base_model.parts if p.name not in absent]
    if lacks := [p for p in wanted if next(_weights(folder / p), None) is None]:
        facts["missing"] = ", ".join(lacks)
    return FileKind(
        "diffusers_folder",
        _sentence(model.label, variant, prediction, zero_snr, facts),
        model.family,
        model.name,
        variant,
        prediction,
        zero_snr,
        facts,
        is_whole=True,
    )


def _is_left_out(index: dict[str, Any], part: str) -> bool:
    """Return whether the index marks the part as absent, by an entry without a class."""
    entry = index.get(part)
    return isinstance(entry, list) and bool(entry) and entry[0] is None


def _is_apart(folder: Path, part: PartSpec) -> bool:
    """Return whether a part that is published apart from its model is not in the model's folder."""
    return bool(part.published_in) and not (folder / part.name / "config.json").is_file()


def _without_index(folder: Path) -> FileKind:
    config = _json(folder / "config.json")
    if what := _run_phrase(folder):
        return FileKind("unknown", f"{folder.name} is {what}. Export it to get its model as a file.")
    if _json(folder / "adapter_config.json") is not None:
        return FileKind("lora", f"{folder.name} is the folder of a PEFT adapter.", facts={"form": "peft folder"})
    if config is not None:
        name = _word(config.get("_class_name") or config.get("model_type") or "model")
        if name in {p.class_name for spec in FAMILIES.values() for p in spec.parts if p.role == "vae"}:
            channels = _whole(config.get("latent_channels") or config.get("z_dim"))
            facts = {"layout": "diffusers folder", "class": name, "latent_channels": str(channels)}
            return FileKind("vae", f"{folder.name} is the folder of a VAE, in diffusers' layout.", facts=facts)
        return FileKind("part", f"{folder.name} has one part of a model alone.")
    return FileKind("unknown", f"{folder.name} is not a model folder: it has no model_index.json.")


def _run_phrase(folder: Path) -> str:
    """Return a phrase for a folder that a run has written; empty for any other folder."""
    if (folder / ".metadata").is_file() and next(folder.glob("*.distcp"), None) is not None:
        return "the sharded part of the backup of a run"
    if (folder / "manifest.json").is_file() and (folder / "state.json").is_file():
        return "a backup of a run"
    return "the folder of a run" if (folder / "config.json").is_file() and (folder / "backup").is_dir() else ""


def _sentence(label: str, variant: str, prediction: Prediction, zero_snr: bool, facts: dict[str, str]) -> str:
    name = f"{label} {variant}".strip()
    text = f"A {name} model in diffusers' folder layout{_PREDICTIONS.get(prediction, '')}"
    text += " and zero terminal SNR" if zero_snr else ""
    if "missing" in facts:
        text += f"; the weights of {facts['missing']} are missing"
    return f"{text}."


def _loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    programs = published_model(kind.model).programs if kind.model else ALL_PROGRAMS
    missing = kind.facts.get("missing", "")
    note = f"missing: {missing}" if missing else ""
    rest = (loads_whole(p, False, "needs a single file: convert the folder") for p in programs if p != "diffusers")
    return (*(loads_whole(p, not missing, note) for p in programs if p == "diffusers"), *rest)


def _json(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(read_regular(file, _MAX_CONFIG_BYTES))
    except FileTooLargeError as error:
        raise over_limit(file, f"it has more than {_MAX_CONFIG_BYTES:,} bytes") from error
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _word(value: object) -> str:
    """Return a name in a config in a form that can be shown: a config may contain anything in its place."""
    return value[:_MAX_WORD_CHARS] if isinstance(value, str) else "model without a name"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _weights(folder: Path) -> Iterator[Path]:
    """Yield the files of weights of a part's folder. Raises UnreadableFileError if it has too many files."""
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if entry.name.endswith(".safetensors"):
                    yield Path(entry.path)
                if count >= _MAX_FILES:
                    raise over_limit(folder, f"it contains more than {_MAX_FILES:,} files")
    except OSError:
        return


DIFFUSERS_FOLDER = FileKindSpec(
    name="diffusers_folder",
    label="Diffusers folder",
    help="A whole model as a folder in diffusers' layout.",
    uses=frozenset({"base model"}),
    forms=("single", "folder"),
    opener="modules.families.kinds.conversion:open_folder",
    writer="modules.families.kinds.conversion:write_model",
    notes="modules.families.kinds.conversion:notes_of_folder",
    loads=_loads,
)
