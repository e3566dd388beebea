"""How much a run trains on, as text."""

from __future__ import annotations

from modules.system.problem import count


def data_words(num_images: int, num_prompts: int, num_pairs: int = 0) -> str:
    """Return the numbers as text, such as "12 images and 3 prompts"; `num_images` counts a pair as one image."""
    numbers = ((num_images - num_pairs, "image"), (num_pairs, "pair"), (num_prompts, "prompt"))
    return " and ".join(count(number, noun) for number, noun in numbers if number) or count(0, "image")
