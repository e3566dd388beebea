"""What other programs make of adapter files: facts, most of them measured on 2026-11-21 with each program's own code.

The figures of plain LoRA files were measured, and on 2026-11-23 what becomes of LoHa, LoKr, OFT, DoRA, damaged files
and inpainting. SimpleTuner's names and bundled embeddings are facts read in the programs or their issue threads. Tests
ask diffusers 0.42.1 and LyCORIS 4.1 themselves; tests/parity/test_merges_of_programs.py has the others' formulas.

The versions are those in the records. A program's rules are tried in order for each layer of a file, and the first one
that fits decides: True loads it, False does not, None was not measured. A layer that no rule fits is not loaded. A fact
that turns out wrong, or a new version, changes this file alone; tests/unit/test_consumers.py counts the layers of
every kind of file. Torch-free.
"""

from __future__ import annotations

import re

from modules.families.kinds.adapter_contents import AdapterContents
from modules.families.kinds.consumer import Consumer, Rule
from modules.formats.adapter_forms import Naming

_KOHYA_UNET: tuple[Naming, ...] = ("kohya, SGM names", "kohya, diffusers names")
_KOHYA: tuple[Naming, ...] = (*_KOHYA_UNET, "kohya, text")
_TE: Naming = "kohya, lora_te_ for lora_te1_"
_TE1: Naming = "kohya, lora_te1_ for lora_te_"
_PEFT: tuple[Naming, ...] = ("PEFT, UNet", "PEFT, text")
_OLD: tuple[Naming, ...] = (
    "before PEFT, UNet",
    "before PEFT, text",
    "UNet without unet.",
    "other factors in PEFT names",
)
_PREFIXES_OF_DIFFUSERS = ("lora_te_", "lora_unet_", "lora_te1_", "lora_te2_")
_ADD_EMBEDDING = r"add_embedding\.linear_[12]"
_OUTSIDE_BLOCKS = r"time_embedding\..*|add_embedding\..*|conv_in|conv_out"
_ATTENTION = r".*\.attn[12]\.to_(q|k|v|out\.0)"
_TEXT_ATTENTION = r".*\.self_attn\..*"
_NOT_OF_THE_MODEL = Rule(False, ("unknown",), why="ignores names that the model does not have")
_OTHER_NAMING = Rule(None, ("other",))
_STRANGE_TENSORS = Rule(None, sorts=("unknown",))
_INCOMPLETE = Rule(None, sorts=("incomplete",), why="was not measured with layers that lack a factor")
_DAMAGED = Rule(False, trait="damaged", why="cannot apply damaged factors", places=True)
# Of the published formula (Liu et al. 2024, eq. 5) they divide by another norm: not that of the changed weight.
_NORMS_OF_BASE = Rule(
    False,
    trait="DoRA of outputs",
    why="computes DoRA on the output axis with the norms of the base model, a wrong change",
    places=True,
)
_NORMS_OF_INPUTS = Rule(
    False,
    trait="DoRA of outputs",
    why="computes DoRA on the output axis with the norms of the inputs, a wrong change",
    places=True,
)
_IGNORED_ALPHA = Rule(
    False, alphas=("in the metadata",), why="ignores the alpha in the metadata, a wrong strength", places=True
)

_COMFYUI = Consumer(
    "ComfyUI",
    "0.3.64",
    (
        _NOT_OF_THE_MODEL,
        _OTHER_NAMING,
        _INCOMPLETE,
        _DAMAGED,
        _STRANGE_TENSORS,
        Rule(None, sorts=("GLoRA",)),
        Rule(False, sorts=("diagonal OFT", "OFTv2"), why="does not support this OFT"),
        Rule(False, trait="rescaled OFT", why="ignores the scales of the outputs", places=True),
        Rule(False, trait="constrained OFT", why="limits the rotations otherwise than LyCORIS", places=True),
        Rule(False, trait="LoKr with Tucker", why="skips Tucker factors of LoKr", places=True),
        Rule(False, trait="LoHa with four axes", why="skips LoHa factors with four axes", places=True),
        Rule(False, ("PEFT, UNet",), path=_ATTENTION, why="does not map the attention of this form"),
        Rule(False, _PEFT, sorts=("DoRA",), why="loads them without the DoRA magnitudes", places=True),
        _IGNORED_ALPHA,
        _NORMS_OF_BASE,
        Rule(None, ("PEFT, text",), path="text_projection"),
        Rule(None, ("kohya, text",), norms=True),
        Rule(True, (*_KOHYA, *_PEFT, _TE1, "SimpleTuner", "ComfyUI, UNet", "ComfyUI, text")),
        Rule(None, (_TE,)),
        Rule(None, _OLD),
    ),
    embeddings=(True, "reads embeddings only from its folder embeddings"),
)
_A1111 = Consumer(
    "A1111",
    "1.10.1",
    (
        _NOT_OF_THE_MODEL,
        _OTHER_NAMING,
        _INCOMPLETE,
        _DAMAGED,
        _STRANGE_TENSORS,
        Rule(None, sorts=("GLoRA",)),
        Rule(False, sorts=("OFTv2",), why="does not support this OFT"),
        Rule(False, ("kohya, diffusers names",), path=_ADD_EMBEDDING, why="does not map these two names"),
        Rule(False, _KOHYA_UNET, trait="inpainting conv_in", why="skips conv_in of inpainting models", places=True),
        _NORMS_OF_INPUTS,
        Rule(True, ("OFT of sd-scripts",), trait="SGM layout"),
        Rule(True, ("kohya, diffusers names",), norms=True, usual=True),
        Rule(None, _KOHYA, norms=True),
        Rule(None, ("kohya, text",), path="text_projection"),
        Rule(None, ("kohya, SGM names",), usual=False),
        Rule(True, (*_KOHYA, _TE1)),
        Rule(None, (_TE,)),
    ),
)


def _failing_in_forge(contents: AdapterContents) -> str:
    return "raises an error for Tucker factors of LoKr" if contents.has("LoKr with Tucker") else ""


_FORGE = Consumer(
    "Forge",
    "dfdcbab6",
    (
        _NOT_OF_THE_MODEL,
        _OTHER_NAMING,
        _INCOMPLETE,
        _DAMAGED,
        _STRANGE_TENSORS,
        Rule(None, sorts=("GLoRA",)),
        Rule(False, sorts=("OFT", "BOFT", "diagonal OFT", "OFTv2"), why="does not support OFT"),
        Rule(False, ("PEFT, UNet",), path=_ATTENTION, why="does not map the attention of this form"),
        _IGNORED_ALPHA,
        Rule(None, _PEFT, sorts=("DoRA",)),
        _NORMS_OF_BASE,
        Rule(None, trait="LoHa with four axes"),
        Rule(None, ("PEFT, text",), path="text_projection"),
        Rule(None, ("kohya, text",), norms=True),
        Rule(True, (*_KOHYA, *_PEFT, _TE1, "SimpleTuner")),
        Rule(None, (_TE, "ComfyUI, UNet", *_OLD)),
    ),
    refuses=_failing_in_forge,
    tolerates=12,
    embeddings=(False, "ignores the bundled embeddings"),
)


def _refused_by_diffusers(contents: AdapterContents) -> str:
    """Return why diffusers 0.42.1 raises for a file: its converter of kohya's files takes plain LoRA alone, and in any
    other file every name must contain "lora".
    """
    names = list(contents.tensors())
    if not all(n.startswith(_PREFIXES_OF_DIFFUSERS) for n in names):
        return _refused_peft(contents)
    sorts = sorted({x.sort for x in contents.layers} - {"LoRA", "DoRA"})
    if sorts:
        return f"raises an error: {' and '.join(sorts)} layers are not supported"
    found = {x.naming for x in contents.layers}
    if {"kohya, SGM names", "kohya, text without text_model"} <= found:
        return "raises an error: the names of the text layers lack text_model"
    return ""


def _refused_peft(contents: AdapterContents) -> str:
    if contents.embeddings:
        return "raises an error: the file has bundled embeddings"
    if any(n.endswith(".alpha") and "lora" not in n for n in contents.tensors()):
        return "raises an error: alpha is not supported in this form"
    if not all("lora" in n for n in contents.tensors()):
        return "raises an error: the file has tensors that are not LoRA"
    odd = (x for x in contents.layers if x.naming == "other factors in PEFT names")
    return "raises an error: the factors of these names are not supported" if any(odd) else ""


def _refused_by_old_diffusers(contents: AdapterContents) -> str:
    unet = [x for x in contents.layers if x.naming in _KOHYA_UNET]
    has_sgm = any(x.naming == "kohya, SGM names" for x in unet)
    outside = next((x for x in unet if re.fullmatch(_OUTSIDE_BLOCKS, x.path) or x.naming != "kohya, SGM names"), None)
    if has_sgm and outside is not None and any(x.is_usual for x in unet if x.naming == "kohya, SGM names"):
        return f"raises an error: {outside.name} is not supported"
    return _refused_by_diffusers(contents)


_NO_DORA = Rule(False, _KOHYA, sorts=("DoRA",), why="loads them without the DoRA scales")
_ADD_EMBEDDING_LOST = Rule(
    False, ("kohya, diffusers names",), path=_ADD_EMBEDDING, why="gives both layers the same name"
)
# diffusers finds the alpha of a layer again by a name that it makes of the name in the file. For these layers that name
# is another one, so they get the most common alpha of their part. (The first text encoder has no "text_model" in
# transformers 5.6 and later.)
_LOST_ALPHAS = (("unet", _ATTENTION), ("text_encoder", r"text_model\..*"), ("text_encoder_2", _TEXT_ATTENTION))


def diffusers_loses_alpha(part: str, path: str) -> bool:
    """Whether diffusers 0.42.1 gives a layer of a kohya file the most common alpha of its part instead of its own."""
    return any(part == p and re.fullmatch(layers, path) for p, layers in _LOST_ALPHAS)


_BARE: Naming = "kohya, text without text_model"
_KOHYA_NAMES: tuple[Naming, ...] = (*_KOHYA, _TE, _TE1, _BARE)
_MAYBE = "gives them a wrong strength if they have alphas of their own"
_WRONG_ALPHA = "gives them the alpha of most layers, a wrong strength"
_ALPHAS = (
    Rule(False, (_BARE,), alphas=("own",), path=_TEXT_ATTENTION, why=_WRONG_ALPHA),
    Rule(None, (_BARE,), alphas=("not known",), path=_TEXT_ATTENTION, why=_MAYBE),
    Rule(True, (_BARE,), alphas=("own", "not known")),
    *(Rule(False, _KOHYA_NAMES, alphas=("own",), part=p, path=path, why=_WRONG_ALPHA) for p, path in _LOST_ALPHAS),
    Rule(False, _KOHYA_NAMES, alphas=("missing",), why=_WRONG_ALPHA),
    *(Rule(None, _KOHYA_NAMES, alphas=("not known",), part=p, path=path, why=_MAYBE) for p, path in _LOST_ALPHAS),
)
_DIFFUSERS = Consumer(
    "diffusers",
    "0.42.1",
    (
        _NOT_OF_THE_MODEL,
        _OTHER_NAMING,
        _INCOMPLETE,
        _DAMAGED,
        _NO_DORA,
        _ADD_EMBEDDING_LOST,
        Rule(True, ("kohya, SGM names",), path=r"time_embedding\..*|add_embedding\..*|conv_out", mixed=True),
        Rule(
            False,
            ("kohya, SGM names",),
            mixed=True,
            why="drops SGM names where the file has diffusers names, too",
        ),
        Rule(True, ("kohya, SGM names",), usual=False, path=_OUTSIDE_BLOCKS),
        Rule(False, ("kohya, SGM names",), usual=False, why="does not map SGM names for this model"),
        *_ALPHAS,
        Rule(True, _KOHYA_NAMES),
        Rule(True, (*_PEFT, "PEFT, text without text_model", "before PEFT, UNet", "before PEFT, text")),
    ),
    refuses=_refused_by_diffusers,
    any_size=True,
)
_OLD_DIFFUSERS = Consumer(
    "diffusers 0.31",
    "0.31.0",
    (
        _NOT_OF_THE_MODEL,
        _OTHER_NAMING,
        _INCOMPLETE,
        _DAMAGED,
        _NO_DORA,
        Rule(False, ("kohya, diffusers names",), path=_OUTSIDE_BLOCKS, why="does not map layers outside the blocks"),
        Rule(None, ("kohya, SGM names",), usual=False),
        Rule(None, _KOHYA, alphas=("own", "missing", "not known")),
        _IGNORED_ALPHA,
        Rule(True, (*_KOHYA, *_PEFT)),
        Rule(False, ("raw PEFT",), why="does not know these names"),
        Rule(None),
    ),
    refuses=_refused_by_old_diffusers,
    any_size=True,
    is_main=False,
)
_SD_SCRIPTS = Consumer(
    "sd-scripts",
    "48d368fa",
    (
        _NOT_OF_THE_MODEL,
        _OTHER_NAMING,
        _INCOMPLETE,
        _DAMAGED,
        Rule(False, _KOHYA_UNET, path=_OUTSIDE_BLOCKS, why="has no LoRA on layers outside the blocks"),
        Rule(None, ("kohya, text",), path="text_projection"),
        Rule(True, _KOHYA_UNET, sorts=("LoRA",), usual=True, norms=False),
        Rule(True, ("kohya, text",), sorts=("LoRA",), norms=False),
        Rule(None, (*_KOHYA, _TE, _TE1, "OFT of sd-scripts")),
    ),
    is_main=False,
)


def _failing_in_lycoris(contents: AdapterContents) -> str:
    """Return why LyCORIS' loader raises: it takes neither of these from a file."""
    if contents.has("DoRA of inputs"):
        return "raises an error for DoRA on the input axis"
    return "raises an error for Tucker factors of LoKr" if contents.has("LoKr with Tucker") else ""


_LYCORIS = Consumer(
    "LyCORIS",
    "4.1.0",
    (
        _NOT_OF_THE_MODEL,
        _OTHER_NAMING,
        _INCOMPLETE,
        _DAMAGED,
        _STRANGE_TENSORS,
        Rule(False, sorts=("OFTv2",), why="does not support this OFT"),
        Rule(None, sorts=("GLoRA", "BOFT", "diagonal OFT", "norm", "difference")),
        Rule(None, trait="LoHa with four axes"),
        Rule(
            None,
            trait="low-rank LoKr of a kernel",
            why="raises an error for some low ranks on kernels above 1x1",
        ),
        Rule(True, _KOHYA, usual=True),
        Rule(None, (*_KOHYA, _TE, _TE1, "OFT of sd-scripts", "SimpleTuner")),
    ),
    refuses=_failing_in_lycoris,
    is_main=False,
)
CONSUMERS = (_COMFYUI, _A1111, _FORGE, _DIFFUSERS, _OLD_DIFFUSERS, _SD_SCRIPTS, _LYCORIS)
