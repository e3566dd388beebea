"""kohya's noise and timesteps."""

from __future__ import annotations

from modules.config.imports.kohya_values import Args, flag_of, number_of, pop_first
from modules.config.migrations.tree_moves import Tree, put

_TIMESTEPS = 1000
_DEFAULT_DISCOUNT = 0.3


def noise(given: Args, result: Tree) -> None:
    """Convert the noise and the range of timesteps.

    kohya_ss has both kinds of noise in its files and uses the one that `noise_offset_type` selects.
    """
    selected = str(pop_first(given, "noise_offset_type") or "").lower()
    _offset(given, result, is_used=selected != "multires")
    _pyramid(given, result, is_used=selected != "original")
    gamma = number_of(pop_first(given, "ip_noise_gamma"))
    is_random = flag_of(pop_first(given, "ip_noise_gamma_random_strength"))
    if gamma:
        put(result, "training.noise.input_perturbation", gamma)
        put(result, "training.noise.input_perturbation_random_strength", is_random)
    for key, path in (("min_timestep", "min_strength"), ("max_timestep", "max_strength")):
        timestep = number_of(pop_first(given, key))
        if timestep is not None and (timestep or key == "min_timestep"):
            put(result, f"training.noise.{path}", timestep / _TIMESTEPS)


def _offset(given: Args, result: Tree, *, is_used: bool) -> None:
    offset = number_of(pop_first(given, "noise_offset"))
    is_random = flag_of(pop_first(given, "noise_offset_random_strength"))
    adaptive = number_of(pop_first(given, "adaptive_noise_scale"))
    if offset and is_used:
        put(result, "training.noise.offset_weight", offset)
        put(result, "training.noise.offset_random_strength", is_random)
        put(result, "training.noise.offset_adaptive_scale", adaptive or 0.0)


def _pyramid(given: Args, result: Tree, *, is_used: bool) -> None:
    iterations = number_of(pop_first(given, "multires_noise_iterations"))
    discount = number_of(pop_first(given, "multires_noise_discount"))
    if iterations and is_used:
        put(result, "training.noise.pyramid_iterations", int(iterations))
        put(result, "training.noise.pyramid_discount", _DEFAULT_DISCOUNT if discount is None else discount)
