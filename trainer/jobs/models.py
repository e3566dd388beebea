"""The job that lists the models on this machine, where other programs and the Hugging Face cache keep them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, get_args

from modules.families.kinds.record import ModelType
from modules.families.registry import family_labels
from modules.model_finder.finder import FoundModel, ModelSearch, rank_models
from modules.model_finder.programs import BASE_MODELS
from modules.settings.field import Section, Setting, one_of
from modules.system.paths import from_root
from modules.system.problem import count, format_size
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.spec import Argument, JobSpec


def _families() -> Mapping[str, str]:
    return {"": "Any", **family_labels()}


class ModelSettings(Section):
    """The models to list, and further folders to search."""

    family: Annotated[str, Setting("Model family", "List the models of one family alone."), *one_of(_families)] = ""
    folders: Annotated[
        tuple[str, ...],
        Setting(
            "Folders",
            "The folder of ComfyUI, A1111, Forge or StabilityMatrix, or any other one, to search besides the usual "
            "places; can be repeated.",
            path_kind="folder",
        ),
        Argument("--folder", "FOLDER"),
    ] = ()
    everything: Annotated[
        bool, Setting("Everything", "Also list VAEs, text encoders, adapters, and files that no run can start from.")
    ] = False
    json_text: Annotated[bool, Setting("JSON", "Print as JSON."), Argument("--json")] = False


MODELS = JobSpec(
    "models",
    "Models",
    "List the models on this machine, of other programs and of the Hugging Face cache.",
    ModelSettings,
    "trainer.jobs.models:list_models",
    shows="text",
)


def list_models(settings: ModelSettings, job: Job) -> JobFinished:
    """Return the list as a text, the models of a program together."""
    search = ModelSearch(
        get_args(ModelType) if settings.everything else BASE_MODELS, [from_root(f) for f in settings.folders]
    )
    search.run()
    models = [m for m in search.found if settings.everything or m.is_base_model]
    if settings.family:
        models = [m for m in models if m.kind.family == settings.family]
    models = rank_models(models, settings.family)
    if settings.json_text:
        return JobFinished("Listed.", text=json.dumps([_as_data(m) for m in models], indent=2) + "\n")
    total = count(len(models), "model") if models else "No model"
    rest = "; not everything was searched" if search.is_cut else ""
    lines = [f"{total} on this machine{rest}"]
    for place, group in groupby(sorted(models, key=lambda m: m.place), key=lambda m: m.place):
        lines += ["", place, *_rows(list(group))]
    return JobFinished("Listed.", text="\n".join(lines) + "\n")


def _as_data(model: FoundModel) -> dict[str, object]:
    facts = {"name": model.name, "path": str(model.path), "place": model.place, "size_bytes": model.size_bytes}
    return {**model.kind.to_json(), **facts, "is_base_model": model.is_base_model}


def _rows(models: Sequence[FoundModel]) -> list[str]:
    cells = [(m.label or "?", m.form, format_size(m.size_bytes), m.name) for m in models]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [f"  {a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in cells]
