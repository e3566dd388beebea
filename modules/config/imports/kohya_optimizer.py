"""kohya's optimizer and its arguments.

sd-scripts knows some optimizers by a name and all others by the path of their class, which usually has our name.
"""

from __future__ import annotations

import re
from typing import Any

from modules.config.imports.kohya_values import Args, arguments_of, flag_of, pop_first
from modules.config.migrations.onetrainer_optimizers import drop_removed
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.optim.registry import OPTIMIZERS
from modules.system.problem import Problem, shown

_PATH = "training.optimizer"
# Names in lower case letters and digits, where they are not ours without its underscores.
_OTHER_NAMES = {
    "sgdnesterov": "sgd",
    "sgdnesterov8bit": "sgd_8bit",
    "dadaptation": "dadapt_adam",
    "dadaptadampreprint": "dadapt_adam",
    "adamwschedulefree": "schedule_free_adamw",
    "sgdschedulefree": "schedule_free_sgd",
}
_MAX_CHARS = 4_000  # of the arguments after a class; the time to split them grows with the square
_SIMILAR = {"radamschedulefree": "schedule_free_adamw", "dadaptadanip": "dadapt_adan"}
_NAMES = {**{name.replace("_", ""): name for name in OPTIMIZERS}, **_OTHER_NAMES, **_SIMILAR}


def optimizer(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the optimizer. Arguments that ours does not have stay in `given`, as `optimizer_args.NAME`."""
    theirs = pop_first(given, "optimizer_type", "optimizer")
    arguments = arguments_of(pop_first(given, "optimizer_args"))
    if theirs is None:
        theirs = "AdamW8bit" if flag_of(given.pop("use_8bit_adam", False)) else "AdamW"
    text, _, inside = str(theirs).partition("(")
    if 0 < len(inside) <= _MAX_CHARS:  # metadata contain the arguments after the class
        arguments |= arguments_of([p.strip() for p in re.split(r",(?![^(\[]*[)\]])", inside.rstrip(")"))])
    word = re.sub(r"[^a-z0-9]", "", text.rpartition(".")[2].lower())
    if word.startswith("paged"):
        arguments["is_paged"] = True
    word = word.removeprefix("paged").removesuffix("32bit")
    ours = _ours(theirs, word, notes)
    if word.startswith("sgdnesterov"):  # sd-scripts' defaults
        arguments = {"nesterov": True, "momentum": 0.9} | arguments
    drop_removed(arguments, ours, notes, _PATH)
    fields = OPTIMIZERS[ours].settings.model_fields
    settings: dict[str, Any] = {"name": ours}
    for name, keys in (("betas", ("beta1", "beta2", "beta3")), ("eps", ("eps", "eps2"))):
        if isinstance(values := arguments.get(name), tuple | list):
            del arguments[name]
            settings |= {key: value for key, value in zip(keys, values, strict=False) if key in fields}
    settings |= {key: arguments.pop(key) for key in list(arguments) if key in fields and key != "name"}
    if ours == "adafactor":  # sd-scripts and transformers switch the first two on
        for key, default in (("relative_step", True), ("scale_parameter", True), ("warmup_init", False)):
            settings[key] = flag_of(settings.get(key, default))
        settings["relative_step"] |= settings["warmup_init"]
    if "fused_back_pass" in fields and flag_of(given.get("fused_backward_pass")):
        settings["fused_back_pass"] = flag_of(given.pop("fused_backward_pass"))
    put(result, _PATH, settings)
    given.update({f"optimizer_args.{key}": value for key, value in arguments.items()})


def _ours(theirs: object, word: str, notes: Notes) -> str:
    """Return our name of an optimizer; one that does not exist here is reported."""
    ours = _NAMES.get(word)
    if ours is None or word in _SIMILAR:
        ours = ours or "adamw"
        message = f"The optimizer {shown(theirs)} is not supported here; {OPTIMIZERS[ours].label} is used instead."
        notes.append(Problem(_PATH, message, "warning", "Check the learning rate: it may not be suitable for it."))
    return ours
