"""OneTrainer's samples, of version 0."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.migrations.onetrainer_11.items import converted, is_key, plain
from modules.config.migrations.onetrainer_11.tables import family_of, move_all
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.system.problem import Problem

_SAMPLERS = {
    "DDIM": "ddim",
    "EULER": "euler",
    "EULER_A": "euler_a",
    "EULER_KARRAS": "euler_karras",
    "DPMPP": "dpmpp",
    "DPMPP_SDE": "dpmpp_sde",
    "DPMPP_KARRAS": "dpmpp_karras",
    "DPMPP_SDE_KARRAS": "dpmpp_sde_karras",
    "UNIPC": "unipc",
    "UNIPC_KARRAS": "unipc_karras",
}
_PLAIN = {
    "enabled": "enabled",
    "prompt": "prompt",
    "negative_prompt": "negative_prompt",
    "seed": "seed",
    "random_seed": "random_seed",
    "sample_inpainting": "inpainting",
    "base_image_path": "base_image",
    "mask_image_path": "mask_image",
}
# Defaults of missing keys. Those of SD 2 differ, but a list alone does not show which model it is for.
_SIDES_PX = {"sd": 512, "sdxl": 1024}
_WITH_DEFAULT: Mapping[str, tuple[str, object]] = {
    "diffusion_steps": ("steps", 30),
    "cfg_scale": ("guidance", 7.5),
}
# Overwritten by OneTrainer itself before it samples.
_WITHOUT_EFFECT = (*(f"text_encoder_{n}_layer_skip" for n in (1, 2, 3, 4)), "force_last_timestep")


def samples_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the samples inside the config itself."""
    if (given := rest.pop("samples", None)) is None:
        return
    entries, leftovers = samples_from(given, notes, family_of(result))
    put(result, "sampling.prompts", entries)
    if leftovers:
        rest["samples"] = leftovers


def samples_from(given: object, notes: Notes, family: str) -> tuple[list[Tree], list[Tree]]:
    """Return our sample prompts for their list, and the unused keys of each; default sizes are the family's."""

    def convert(item: Tree, notes: Notes, where: str) -> Tree:
        return _sample(item, notes, where, _SIDES_PX[family])

    return converted(given, "samples", "sampling.prompts", convert, notes)


def _sample(given: Tree, notes: Notes, where: str, side_px: int) -> Tree:
    sampler = given.pop("noise_scheduler", "EULER_A")
    if not is_key(sampler, _SAMPLERS):
        message = f"The sampler {plain(sampler)} is unknown; DDIM is used instead."
        notes.append(Problem(f"{where}.sampler", message, "warning"))
    sample: Tree = {"sampler": _SAMPLERS[sampler] if is_key(sampler, _SAMPLERS) else "ddim"}
    move_all(given, sample, _PLAIN)
    for source, name in (("width", "width_px"), ("height", "height_px")):
        sample[name] = given.pop(source, side_px)
    for source, (name, default) in _WITH_DEFAULT.items():
        sample[name] = given.pop(source, default)
    for source in _WITHOUT_EFFECT:
        given.pop(source, None)
    return sample
