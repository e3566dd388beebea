"""Which programs load an adapter file, by the rows of `program_table` that apply to its contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from modules.families.kinds.adapter_contents import AdapterContents, LayerGroup, read_contents
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import Loads
from modules.families.published import ALL_PROGRAMS
from modules.families.registry import published
from modules.formats.adapter_forms import Naming
from modules.formats.adapter_types import adapter_types
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import CHANGES, EXTRAS, PROGRAMS, Answer, Answers, Row, Word, answer_about_names

_MOST_TENSORS = 20_000  # SDXL's adapters have about 3,000, of one that changes every layer
_LOST_ALPHA = {"unusual alpha", "unreadable alpha"}
_AMOUNTS: tuple[Word, ...] = ("none", "unknown", "part", "all")


def adapter_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program that supports the adapter's model, how much of a file it loads."""
    if header is None:
        return ()
    programs = published(kind.model).programs if kind.model else ALL_PROGRAMS
    if len(header.shapes) > _MOST_TENSORS:
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


def _add_extras(program: str, answer: Answer, extras: Iterable[str], own: Mapping[str, Answers]) -> Answer:
    rows = [{**EXTRAS[extra], **own.get(extra, {})} for extra in extras]
    more = [row[program] for row in rows if program in row]
    if answer.refuses:
        return answer
    worst = min((answer, *more), key=lambda a: a.severity)
    return worst if worst.refuses else replace(worst, why=_join((answer.why, *(a.why for a in more))))


def _advice(program: str, contents: AdapterContents, answer: Answer) -> str:
    """Return the advice to convert a file of plain LoRA layers into a form of which the program loads more."""
    odd_alphas = {change for group in contents.groups for change in group.changes} - {"LoRA"}
    is_plain = odd_alphas <= {"alpha in the metadata", *_LOST_ALPHA}
    if not is_plain or "bundled embeddings" in contents.extras or any(g.naming == "unknown" for g in contents.groups):
        return ""
    extras = tuple(extra for extra in contents.extras if extra == "another size")
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
