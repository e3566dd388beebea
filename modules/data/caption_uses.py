"""The caption of each use of an image in a run: drawn from the counters of its sample."""

from __future__ import annotations

from modules.data.captions.drawing import CaptionDropout, CaptionUse, DrawnCaption, draw_caption
from modules.data.dataset import Dataset
from modules.data.order import SampleIndex
from modules.data.plans import EpochPlans


def caption_of(
    dataset: Dataset,
    plans: EpochPlans,
    sample_index: SampleIndex,
    *,
    run_seed: int,
    dropout: CaptionDropout,
    draws_anew: bool,
) -> DrawnCaption:
    """Return the caption with which a sample is trained. `draws_anew` is that of `draw_caption`."""
    number, repeat, epoch = sample_index.example, sample_index.repeat, sample_index.epoch
    image = dataset.examples[number].image
    rules = dataset.concepts[dataset.examples[number].concept].captions
    has_lines_in_turn = rules.choice == "in_turn" and len(image.captions) > 1
    is_counted = has_lines_in_turn or (rules.variations > 1 and not draws_anew)
    num_used = plans.uses_before(number, epoch) + repeat if is_counted else 0
    use = CaptionUse(run_seed, epoch, number, repeat, image.path.name, num_used)
    return draw_caption(image.captions, rules, use, dropout=dropout, draws_anew=draws_anew)
