"""Detects adapter files, and states which programs load them.

The factors of a layer identify the type of the adapter, its name the form, and names and shapes together the model. The
programs follow from the rows of `program_table` that apply to the contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from modules.families.kinds.adapter_contents import AdapterContents, LayerGroup, read_contents
from modules.families.kinds.file_kind import FileKind, Prediction
from modules.families.kinds.lora_model import LoraModel, model_of_lora, targets_of
from modules.families.kinds.record import FileKindSpec, Loads
from modules.families.published import ALL_PROGRAMS
from modules.families.registry import family_of, label_of, published_model
from modules.formats.adapter_damage import damage_in_file
from modules.formats.adapter_forms import FORMS, Naming, form_of
from modules.formats.adapter_names import BUNDLED_EMBEDDING, layer_and_factor, layers_in
from modules.formats.adapter_targets import layout_of
from modules.formats.adapter_types import DORA_SCALE, Shapes, adapter_types, type_of
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.peft_settings import doubt_about_alpha, with_peft_settings
from modules.formats.program_table import CHANGES, EXTRAS, PROGRAMS, Answer, Answers, Row, Word, answer_about_names
from modules.system.problem import with_article

_MAX_TENSORS = 20_000  # an adapter on every layer of SDXL has about 3,000
_LOST_ALPHA = {"unusual alpha", "unreadable alpha"}
_AMOUNTS: tuple[Word, ...] = ("none", "unknown", "part", "all")


def adapter_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program that supports the adapter's model, how much of a file it loads."""
    if header is None:
        return ()
    programs = published_model(kind.model).programs if kind.model else ALL_PROGRAMS
    if len(header.shapes) > _MAX_TENSORS:
        return tuple(Loads(program, "unknown", "more tensors than an adapter has") for program in programs)
    if not kind.model:
        return tuple(Loads(program, "unknown", "unknown for this model") for program in programs)
    if not programs:
        return ()
    contents = read_contents(header, kind.model)
    return tuple(answer_of(p, contents) for p, facts in PROGRAMS.items() if p in programs or not facts.is_main)


def answer_of(program: str, contents: AdapterContents) -> Loads:
    """Return how much of a file a program loads, by the rows of the table that apply to it."""
    answer = _add_extras(program, _answer_groups(program, contents), contents.extras, contents.extra_rows)
    notes = answer.why, _advice(program, contents, answer)
    facts = PROGRAMS[program]
    version = contents.versions.get(program, facts.version)
    return Loads(program, answer.loads, _join(notes), version=version, is_main=facts.is_main)


def _answer_groups(program: str, contents: AdapterContents) -> Answer:
    answers = [_answer_group(program, group, contents.naming_rows) for group in contents.groups]
    if refused := next((answer for answer in answers if answer.refuses), None):
        return refused
    words = {answer.loads for answer in answers}
    if len(words) < 2 or words == {"all", "unknown"} or words == {"none", "unknown"}:
        word: Word = "unknown" if len(words) != 1 else next(iter(words))
        return Answer(word, _join(answer.why for answer in answers))
    return Answer("part", _join(answer.why for answer in answers if answer.loads != "unknown"))


def _answer_group(program: str, group: LayerGroup, naming_rows: Mapping[str, Row]) -> Answer:
    names = answer_about_names(program, group.naming, naming_rows, group.place)
    rows = _rows()
    changes = (rows[change].get(program, Answer("all")) for change in group.changes)
    return min((names, *changes), key=lambda answer: answer.severity)


@cache
def _rows() -> Mapping[str, Answers]:
    """Return the rows about changes: the rows for any type, and the rows of each type of adapter."""
    return {name: row for rows in (CHANGES, *(t.programs for t in adapter_types())) for name, row in rows.items()}


def _add_extras(program: str, answer: Answer, extras: Iterable[str], extra_rows: Mapping[str, Answers]) -> Answer:
    rows = [{**EXTRAS[extra], **extra_rows.get(extra, {})} for extra in extras]
    more = [row[program] for row in rows if program in row]
    if answer.refuses:
        return answer
    worst = min((answer, *more), key=lambda a: a.severity)
    return worst if worst.refuses else worst._replace(why=_join((answer.why, *(a.why for a in more))))


def _advice(program: str, contents: AdapterContents, answer: Answer) -> str:
    """Return the advice to convert a file of plain LoRA layers into a form of which the program loads more."""
    odd_alphas = {change for group in contents.groups for change in group.changes} - {"LoRA"}
    is_plain = odd_alphas <= {"alpha in the metadata", *_LOST_ALPHA}
    if not is_plain or "bundled embeddings" in contents.extras or any(g.naming == "unknown" for g in contents.groups):
        return ""
    extras = tuple(extra for extra in contents.extras if extra.endswith("another size"))
    forms = {"kohya": [_in_kohya_form(group) for group in contents.groups]}
    if odd_alphas & _LOST_ALPHA:
        forms["PEFT"] = [_in_peft_form(group) for group in contents.groups]
    forms["ComfyUI"] = [_in_comfy_form(group) for group in contents.groups]
    amounts = {}
    for form, groups in forms.items():
        converted = _answer_groups(program, AdapterContents(contents.naming_rows, tuple(groups)))
        more = (*extras, "alpha in ComfyUI's names") if form == "ComfyUI" else extras
        amounts[form] = _AMOUNTS.index(_add_extras(program, converted, more, contents.extra_rows).loads)
    best = max(amounts, key=lambda form: amounts[form])
    return f"convert it to the {best} form" if amounts[best] > _AMOUNTS.index(answer.loads) else ""


def _in_kohya_form(group: LayerGroup) -> LayerGroup:
    return replace(group, naming=group.kohya_naming, changes=_with_stored_alphas(group.changes))


def _in_comfy_form(group: LayerGroup) -> LayerGroup:
    return replace(group, naming=group.comfy_naming, changes=_with_stored_alphas(group.changes))


def _with_stored_alphas(changes: Iterable[str]) -> tuple[str, ...]:
    return tuple(change for change in changes if change != "alpha in the metadata")


def _in_peft_form(group: LayerGroup) -> LayerGroup:
    return replace(group, naming=_peft_naming(group), changes=("LoRA", "alpha in the metadata"))


def _peft_naming(group: LayerGroup) -> Naming:
    return "PEFT, text" if group.kohya_naming == "kohya, text" else "PEFT, denoiser"


def _join(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


_OTHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Flux", ("double_blocks", "single_blocks", "single_transformer_blocks", "double_stream")),
    ("Stable Diffusion 3", ("joint_blocks",)),
    ("a video or another transformer model", ("transformer.", "lora_transformer_", "lora_unet_blocks_", "self_attn_q")),
)
_TEXT = ("lora_te", "text_encoder", "base_model.model.text_encoder")  # many models share their text encoders
_MODEL_TENSORS = ("model.diffusion_model.input_blocks", "first_stage_model.")


def adapter_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if it is an adapter of any type, for any model."""
    layers = layers_in(header.shapes)
    factors = {factor for shapes in layers.values() for factor in shapes}
    sort = type_of(factors)
    if not sort or _is_model(header):
        return None
    form = form_of(header.shapes)
    facts = {"adapter": f"DoRA ({sort})" if DORA_SCALE in factors else sort, "form": form, "dtype": header.main_dtype}
    if ranks := set(_ranks(layers.values())):
        facts["rank"] = "-".join(map(str, sorted({min(ranks), max(ranks)})))
    facts["layers"] = str(_num_layers(header.shapes))
    if damage := damage_in_file(header):
        facts["damage"] = damage
    if header.has(BUNDLED_EMBEDDING):
        facts["embeddings"] = "bundled"
    match = model_of_lora(layers, header.metadata)
    if not match.is_published_size:
        facts["size"] = "unpublished"
    model = "" if _other_model(match) else next(iter(match.models), "")
    if doubt := doubt_about_alpha(form, with_peft_settings(header.path, header.shapes, header.metadata)):
        facts["alpha"] = "unknown"
    remarks = [f"It is damaged {damage}." if damage else "", doubt]
    if names := _names(layers, model, header.metadata):
        facts["names"] = names
    rank = f" of rank {facts['rank']}" if "rank" in facts else ""
    label = FORMS[form].label if form in FORMS else "unknown"
    what = f"{with_article(facts['adapter'], capital=True)}{rank} for {_label(match)}"
    return FileKind(
        kind="lora",
        sentence=" ".join(filter(None, (f"{what}, in {label} form, {facts['dtype']}.", *remarks))),
        family=family_of(model),
        model=model,
        prediction=_prediction(header.metadata),
        facts=facts,
    )


def _ranks(layers: Iterable[Shapes]) -> Iterator[int]:
    """Yield the ranks of layers: the first axis of the last factor of each product."""
    products = [product for t in adapter_types() for product in t.products]
    yield from (shapes[p.last][0] for shapes in layers for p in products if shapes.get(p.last))


def _num_layers(names: Iterable[str]) -> int:
    """Return the number of layers in a file; other tensors count as layers by the beginnings of their names."""
    layer_tensors = (name for name in names if not name.startswith(BUNDLED_EMBEDDING))
    return len({layer_and_factor(name)[0] or name.rpartition(".")[0] or name for name in layer_tensors})


def _is_model(header: CheckpointHeader) -> bool:
    """Return whether it is a whole model with leftover adapter tensors: it also has weights of a model."""
    if not header.has(*_MODEL_TENSORS):
        return False
    return any(n.startswith(_MODEL_TENSORS) and not layer_and_factor(n)[0] for n in header.shapes)


def _names(layers: Mapping[str, Shapes], model: str, metadata: Mapping[str, str]) -> str:
    """Return the layout of the names of the denoiser's layers."""
    targets = targets_of(published_model(model), metadata) if model else None
    layouts = {layout_of(layer, t) for layer, s in layers.items() if targets and (t := targets.find(layer, s))}
    if {"original", "diffusers"} <= layouts:
        return "mixed"
    if "comfyui" in layouts:
        return "comfyui"
    return "sgm" if "original" in layouts else "diffusers" if "diffusers" in layouts else ""


def _other_model(match: LoraModel) -> str:
    """Return a phrase for the model of an adapter if that model is not supported; otherwise an empty string."""
    if match.models and match.has_denoiser:
        return ""
    unplaced = [layer for layer in match.unplaced if not layer.startswith(_TEXT)]
    for label, parts in _OTHERS:
        if any(part in layer for layer in unplaced for part in parts):
            return label
    return ""


def _label(match: LoraModel) -> str:
    if other := _other_model(match):
        return other
    labels = " or ".join(dict.fromkeys(label_of(model) for model in match.models)) or "an unknown model"
    return labels if match.is_published_size else f"{labels} of an unpublished size"


def _prediction(metadata: Mapping[str, str]) -> Prediction:
    word = metadata.get("modelspec.prediction_type", "")
    if word in ("v", "v_prediction") or metadata.get("ss_base_model_version", "").endswith("_v"):
        return "v_prediction"
    return "epsilon" if word == "epsilon" else ""


LORA = FileKindSpec(
    name="lora",
    label="LoRA",
    help="An adapter for a model, of any type.",
    detect=adapter_kind,
    uses=frozenset({"start of an adapter"}),
    forms=("kohya", "comfyui", "peft"),
    opener="modules.families.kinds.lora_conversion:open_lora",
    writer="modules.families.kinds.lora_conversion:write_lora",
    notes="modules.families.kinds.lora_conversion:notes",
    loads=adapter_loads,
    kept_as="loras",
)
