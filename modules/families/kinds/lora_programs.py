"""Which programs load an adapter file, and how many of its layers, by the facts in `consumers`. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from modules.families.kinds.adapter_contents import AdapterContents, FileLayer, read_contents
from modules.families.kinds.consumer import Consumer
from modules.families.kinds.consumers import CONSUMERS
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import Loads, loads_layers
from modules.families.kinds.stored_alphas import Alpha
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.published import ALL_PROGRAMS
from modules.families.registry import published
from modules.formats.adapter_forms import Naming
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.embedding_names import OUTPUT_SUFFIX

_PEFT_TENSORS = (".lora_A.weight", ".lora_B.weight")
_KOHYA_TENSORS = ("lora_unet_.lora_down.weight", "lora_unet_.lora_up.weight", "lora_unet_.alpha")
_MOST_TENSORS = 20_000  # SDXL's adapters have about 3,000, of one that changes every layer
_UNKNOWN_MODEL = "unknown for this model"
_OTHER_SIZE = "made for a model of a different size than the published ones"


def lora_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program that supports the adapter's model, how many of its layers it loads."""
    if header is None:
        return ()
    programs = published(kind.model).programs if kind.model else ALL_PROGRAMS
    if not programs:
        return ()
    if len(header.shapes) > _MOST_TENSORS:
        return tuple(Loads(program, None, "more tensors than an adapter has") for program in programs)
    if not kind.model:
        return tuple(Loads(program, None, _UNKNOWN_MODEL) for program in programs)
    contents = read_contents(header, kind.model)
    consumers = (c for c in CONSUMERS if c.program in programs or not c.is_main)
    return tuple(_loads(c, contents, is_published=CONFIGS_KEY not in header.metadata) for c in consumers)


def _loads(consumer: Consumer, contents: AdapterContents, *, is_published: bool) -> Loads:
    """Return how a program loads a file; most know the published sizes of models alone."""
    found = _counted(consumer, contents, knows_size=is_published or consumer.any_size)
    return replace(found, version=consumer.version, is_main=consumer.is_main)


def _counted(consumer: Consumer, contents: AdapterContents, *, knows_size: bool) -> Loads:
    total, is_mixed = len(contents.layers), contents.is_mixed
    verdicts = [(layer, consumer.verdict(layer, is_mixed=is_mixed)) for layer in contents.layers]
    lost = [(layer, rule) for layer, rule in verdicts if rule.loads is False]
    doubtful = Counter(rule.why or "was not measured" for _, rule in verdicts if rule.loads is None)
    unknown = doubtful.total()
    loaded = total - len(lost) - unknown
    unplaced = [layer for layer, rule in lost if not rule.places]
    if refused := consumer.refuses(contents) or _too_many(consumer, contents, unplaced):
        return loads_layers(consumer.program, 0, total, _joined(refused, _advice(consumer, contents, 0)))
    advice = _advice(consumer, contents, loaded)
    causes = (*Counter(rule.why for _, rule in lost).items(), *doubtful.items())
    reasons = [_reason(why, count, total) for why, count in causes]
    found = loads_layers(consumer.program, loaded, total, _joined(*reasons, advice), unknown=unknown)
    if not knows_size and loaded + unknown:
        found = _doubted(found)
    return _with_embeddings(found, consumer, contents) if contents.embeddings else found


def _doubted(found: Loads) -> Loads:
    """Return that of no layer it is known whether a program loads it; those that it surely does not load stay lost."""
    note = _joined(_OTHER_SIZE, found.note)
    return loads_layers(found.program, 0, found.total, note, unknown=found.loaded + found.unknown)


def _reason(why: str, count: int, total: int) -> str:
    return why if count == total else f"{why} ({count:,} {'layer' if count == 1 else 'layers'})"


def _advice(consumer: Consumer, contents: AdapterContents, loaded: int) -> str:
    """Return the advice to convert a plain LoRA into the form of which the program then loads more."""
    if contents.embeddings or any(layer.sort != "LoRA" or not layer.path for layer in contents.layers):
        return ""
    if _num_loaded(consumer, map(_in_kohya, contents.layers)) > loaded:
        return "convert it to the kohya form"
    has_alphas = any(layer.alpha != "usual" for layer in contents.layers)
    helps = has_alphas and _num_loaded(consumer, map(_in_peft, contents.layers)) > loaded
    return "convert it to the PEFT form" if helps else ""


def _in_kohya(layer: FileLayer) -> FileLayer:
    alpha: Alpha = "usual" if layer.alpha == "in the metadata" else layer.alpha
    return replace(layer, naming=layer.kohya_naming, tensors=_KOHYA_TENSORS, alpha=alpha)


def _in_peft(layer: FileLayer) -> FileLayer:
    naming: Naming = "PEFT, text" if layer.kohya_naming == "kohya, text" else "PEFT, UNet"
    return replace(layer, naming=naming, tensors=_PEFT_TENSORS, alpha="in the metadata")


def _num_loaded(consumer: Consumer, layers: Iterable[FileLayer]) -> int:
    contents = AdapterContents(tuple(layers))
    if consumer.refuses(contents):
        return 0
    return sum(consumer.verdict(layer).loads is True for layer in contents.layers)


def _too_many(consumer: Consumer, contents: AdapterContents, lost: list[FileLayer]) -> str:
    """Return why a program refuses a file with too many tensors that it cannot place, or ""."""
    if consumer.tolerates is None:
        return ""
    count = sum(len(layer.tensors) for layer in lost)
    count += 0 if consumer.embeddings[0] else len(contents.embeddings)
    return f"refuses the file, because it cannot place {count:,} tensors" if count > consumer.tolerates else ""


def _with_embeddings(found: Loads, consumer: Consumer, contents: AdapterContents) -> Loads:
    loads, note = consumer.embeddings
    if any(name.endswith(OUTPUT_SUFFIX) for name in contents.embeddings):
        loads, note = False, _joined(note, "has no place for embeddings at the output of a text encoder")
    complete = found.complete if loads else False
    return replace(found, complete=complete, note=_joined(found.note, note))


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)
