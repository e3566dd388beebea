"""The verdict of a self-test: whether settings, weights or program are wrong, and what to do.

A verdict that could be false for a model that works begins with "probably": its limit follows from theory and was
tried on the demo's models, not on published ones. Such verdicts on the model are doubts (`is_doubt`): they do not end
the test, and `weigh` decides by what was learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from modules.system.problem import join_words

Cause = Literal["none", "settings", "weights", "program", "unknown"]

_CLEAR_FALL = 0.05  # of the loss with settings that are chosen to show within a minute
_ANY_FALL = 0.01  # with the user's settings: validation losses have no chance in them
_DIVERGED = 1.1
_HIGHEST_SHARE = 2.0
"""Of the best linear guess, at one noise level. A trained model has less than 1; quantization and timesteps that it was
hardly trained on raise that a little. Noise of a third of the weights' own size: 3.5 and 4.7 for the demo's models.
Overall, of a distilled model: it predicts one of the possible images, whose error is twice that of their mean."""
_PREDICTS_WELL = 0.75
"""Of the best linear guess, which for v-prediction is about 0, as of a model that predicts nothing. The demo's: 0.5."""
_RMS_RANGE = (0.4, 2.5)  # of the latents of one image
_USUAL_RMS = (0.65, 1.6)  # of one with contrast; outside, a second sign shows that the scale is wrong
_CONTRAST = 0.25  # of the pixels, from -1 to 1: an image with less has smaller latents
_WORSE_THAN_A_GUESS = 1.2  # at one noise level, as a second sign: the demo's models have at most 0.9 there
_DECODING_ERROR = 0.1  # mean squared, of values from -1 to 1: that of one grey for a photograph is about 0.3
_COLOUR_FIT = 0.6  # random text encoders and shuffled tokens: up to 0.5; the demo's models: 0.9
_COLOUR_SPREAD = 1e-3


@dataclass(frozen=True, slots=True)
class ImageTrial:
    """Training on one image: its validation loss before and after, NaN if not measured; why it failed, if it did.

    `by_timestep` has the losses before at each timestep, `gradient_norm` is the largest of any step.
    """

    before: float = math.nan
    after: float = math.nan
    failure: str = ""
    samples: tuple[str, ...] = ()
    by_timestep: Mapping[str, float] = field(default_factory=dict)
    gradient_norm: float = math.nan

    @property
    def fall(self) -> float:
        """The share by which the loss fell; negative if it rose."""
        return 1 - self.after / self.before

    @property
    def learns(self) -> bool:
        """Whether it fell clearly."""
        return self.fall >= _CLEAR_FALL

    @property
    def works(self) -> bool:
        """Whether it fell at all, without an error."""
        return not self.failure and self.fall >= _ANY_FALL

    @property
    def diverges(self) -> bool:
        """Whether it rose clearly, or is not a number."""
        return not math.isfinite(self.after) or self.after > _DIVERGED * self.before

    @property
    def has_trained(self) -> bool:
        """Whether it made a step at least."""
        return math.isfinite(self.gradient_norm)

    @property
    def changes_nothing(self) -> bool:
        """Whether no weight changed: the same weights have the same validation loss, bit for bit."""
        return self.after == self.before


@dataclass(frozen=True, slots=True)
class Measures:
    """What is measured of a model before it is trained.

    `broken_parts` and `random_parts` are the labels of parts with weights that are not finite, and of text encoders
    whose weights are like random numbers. `bounds` are the losses by timestep of the best linear guess.
    `colour_fit` is the correlation of the colours of eight prompts with those that they name, from -1 to 1, and
    `colour_spread` how far they are apart, of a range of 2. `contrast` is the standard deviation of the image's pixels,
    in the same range.
    """

    broken_parts: tuple[str, ...] = ()
    random_parts: tuple[str, ...] = ()
    latents_rms: float = 1.0
    contrast: float = 1.0
    decoding_error: float = 0.0
    colour_fit: float = 1.0
    colour_spread: float = 1.0
    prediction_type: str = ""
    bounds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, in a sentence, then what was seen and what to do."""

    cause: Cause
    message: str
    notes: tuple[str, ...] = ()
    is_doubt: bool = False
    explains_settings: bool = False  # a doubt that has two signs: settings that work otherwise may fail because of it


def of_measures(measures: Measures) -> Verdict | None:
    """Return the verdict on a model whose weights are damaged, as far as they show it; None if they do not."""
    if measures.broken_parts:
        parts = join_words(measures.broken_parts)
        message = f"The weights are wrong: values of the {parts} are not finite (NaN or infinite)."
        return Verdict("weights", message, ("Download the file again, or choose another one on the Model page.",))
    if measures.random_parts:
        parts = join_words(measures.random_parts)
        message = f"The weights are wrong: those of the {parts} are random numbers, without any training."
        return Verdict("weights", message, ("Choose a complete model, or a file for this part, on the Model page.",))
    if not math.isfinite(measures.decoding_error):
        return _overflow("VAE")
    if measures.decoding_error > _DECODING_ERROR:
        return Verdict(
            "weights",
            "Probably the VAE is wrong: an image is no longer the same after it has been encoded and decoded.",
            (
                f"The mean squared error of its colours is {measures.decoding_error:.2g}; up to {_DECODING_ERROR:g} is "
                "usual.",
                "Choose another VAE on the Model page, or a model with its own.",
            ),
            is_doubt=True,
        )
    lowest, highest = _RMS_RANGE
    if not lowest <= measures.latents_rms <= highest:
        much = "small" if measures.latents_rms < lowest else "large"
        return Verdict(
            "weights",
            f"Probably the VAE is wrong: the latents of the image are much too {much}.",
            (
                f"They are {measures.latents_rms:.2g} on average (root mean square), where about 1 is usual and "
                f"{lowest:g} to {highest:g} possible. The scaling factor in the VAE's config may not fit.",
                "Choose the VAE of this model on the Model page, or correct its config. An image of one plain colour "
                "can have such latents, too: then choose another image.",
            ),
            is_doubt=True,
        )
    return None


def of_predictions(known: ImageTrial, measures: Measures, *, denoiser: str, is_distilled: bool) -> Verdict | None:
    """Return the verdict on a model that predicts worse than without any knowledge of images; None if it does not."""
    share = share_of(known, measures)
    if math.isnan(share):
        return _overflow(denoiser)
    if share <= (_HIGHEST_SHARE if is_distilled else 1):
        return None
    return _predicts_badly(known, measures, denoiser, f"{share:.0%} of that")


def of_scale(known: ImageTrial, measures: Measures) -> Verdict | None:
    """Return the verdict on a VAE in another scale than the denoiser's; None if there are not both signs of it.

    The latents of an image with contrast are smaller or larger than usual, and at one level of noise the model predicts
    them worse than without any knowledge of images.
    """
    timestep, share = _worst(known, measures)
    is_usual = _USUAL_RMS[0] <= measures.latents_rms <= _USUAL_RMS[1]
    if is_usual or measures.contrast < _CONTRAST or share <= _WORSE_THAN_A_GUESS:
        return None
    much = "small" if measures.latents_rms < 1 else "large"
    return Verdict(
        "weights",
        f"Probably the scaling factor of the VAE is wrong: the latents of the image are too {much} for the model.",
        (
            f"They are {measures.latents_rms:.2g} on average (root mean square), where about 1 is usual, and at "
            f"timestep {timestep} the model's loss is {share:.1f} times that of a guess without knowledge of images.",
            "Choose the VAE of this model on the Model page, or correct the scaling factor in its config. Until then a "
            "test of your settings shows little.",
        ),
        is_doubt=True,
        explains_settings=True,
    )


def of_levels(known: ImageTrial, measures: Measures, *, denoiser: str) -> Verdict | None:
    """Return the verdict on a model that predicts so at one level of noise; None if it does not.

    Only one that predicts means is better at each; a distilled one does not.
    """
    timestep, share = _worst(known, measures)
    if share <= _HIGHEST_SHARE:
        return None
    return _predicts_badly(known, measures, denoiser, f"at timestep {timestep} {share:.1f} times that")


def _predicts_badly(known: ImageTrial, measures: Measures, denoiser: str, share: str) -> Verdict:
    """Return the verdict on bad predictions. Latents in a wrong scale look the same, unless they are far from usual."""
    return Verdict(
        "weights",
        f"Probably the {denoiser} does not fit the VAE or the settings, or its weights are damaged: it predicts the "
        "noise worse than a guess.",
        (
            f"Before training its loss is {known.before:.2g}, {share} of a guess without knowledge of images. Only a "
            "model that was distilled to few steps (Turbo, Lightning) may do so. The latents of the image are "
            f"{measures.latents_rms:.2g} on average, where about 1 is usual.",
            "Check the family, zero terminal SNR, the VAE with the scaling factor in its config, and the files of "
            "single parts on the Model page. If these are right, the model is damaged or badly merged: choose another.",
        ),
        is_doubt=True,
    )


def _overflow(part: str) -> Verdict:
    return Verdict(
        "settings",
        f"Probably the precision is too low: the {part} computes values that are not finite (NaN or infinite).",
        (
            "All its weights are finite. float16 overflows in some models: set the precision on the Training page and "
            "the weight dtype of this part to bfloat16 or float32.",
        ),
        is_doubt=True,
    )


def predicts_well(trial: ImageTrial, measures: Measures) -> bool:
    """Return whether a model predicts clearly better than without any knowledge of images."""
    return share_of(trial, measures) < _PREDICTS_WELL


def of_prediction_type(used: str, fitting: str) -> Verdict:
    """Return the verdict on a model that predicts well with another prediction type."""
    return Verdict(
        "settings",
        f"The settings are wrong: the prediction type is {fitting}, and {used} is set.",
        (f"Set the prediction type to {fitting} on the Model page. With it the model predicts this image well.",),
    )


def of_prompts(measures: Measures) -> Verdict | None:
    """Return the verdict on a model that does not follow its prompts; None if it does."""
    if measures.colour_fit >= _COLOUR_FIT and measures.colour_spread >= _COLOUR_SPREAD:
        return None
    is_doubt = measures.colour_spread >= _COLOUR_SPREAD
    if not is_doubt:
        message = "The text encoder is wrong: the model ignores prompts."
        seen = "For squares of eight colours it expects the same image."
    else:
        message = "Probably the text encoder is wrong: the model does not understand prompts."
        seen = (
            f"For squares of eight colours it expects other colours than the prompts name (correlation "
            f"{measures.colour_fit:.2f}, usually above {_COLOUR_FIT:g}). Only a model for prompts in another language "
            "or form may do so."
        )
    return Verdict(
        "weights",
        message,
        (
            seen,
            "Its weights or its tokenizer are damaged or those of another model. Choose a complete model, or another "
            "file of the text encoder, on the Model page.",
        ),
        is_doubt=is_doubt,
    )


def weigh(doubts: Sequence[Verdict], found: Verdict, *, known: ImageTrial, mine: ImageTrial | None) -> Verdict:
    """Return the verdict of a test whose trials led to the verdict `found`, and which had doubts about the model.

    Settings that fail while known ones learn are wrong whatever the model is like, unless a doubt explains it, and a
    run that ends before its first validation shows nothing. Otherwise the first doubt is the verdict, with what was
    learned nevertheless; the others are in the notes. `mine` is None if it was not tried.
    """
    if not doubts:
        return found
    has_started = bool(known.by_timestep)
    are_settings_wrong = found.cause == "settings" and known.learns and not doubts[0].explains_settings
    if (found.cause == "unknown" and not has_started) or are_settings_wrong:
        also = (f"There is a doubt about the model, too. {doubt.message}" for doubt in doubts)
        return replace(found, notes=(*found.notes, *also))
    first, *others = doubts
    *seen, advice = first.notes
    learned = _what_was_learned(known, mine)
    return replace(first, notes=(*seen, *(doubt.message for doubt in others), learned, advice))


def _what_was_learned(known: ImageTrial, mine: ImageTrial | None) -> str:
    if known.failure:
        return f"The model does not learn: with settings that are known to work the run failed. {known.failure}"
    learned = f"with settings that are known to work {change_of(known)}"
    if mine is not None:
        with_mine = f"the run failed: {mine.failure}" if mine.failure else change_of(mine)
        learned += f", with yours {with_mine}"
    if known.learns or (mine is not None and mine.learns):
        return f"It learns nevertheless: {learned}. If its samples are good, the doubt is unfounded."
    return f"It does not learn: {learned}."


def of_known_settings(known: ImageTrial) -> Verdict | None:
    """Return the verdict on a model that does not learn with settings that are known to work; None if it learns."""
    if known.learns:
        return None
    report = "If that changes nothing, please report it with self_test.json."
    if known.changes_nothing:
        return Verdict(
            "program",
            "This is a bug: no weight changes in training, even with settings that are known to work.",
            (_why_nothing_changes(known), "Please report it with self_test.json."),
        )
    return Verdict(
        "program",
        f"Even with settings that are known to work {change_of(known)}: probably this is a bug.",
        (f"It should fall by more than {_CLEAR_FALL:.0%}. Try more steps (--steps). {report}",),
    )


def of_settings(mine: ImageTrial, *, culprit: str, known: ImageTrial) -> Verdict | None:
    """Return the verdict on settings that do not work; None if they do. `culprit` is the one that is wrong, if known.

    It states its present value and one that works.
    """
    if mine.works:
        return None
    if mine.failure:
        seen = f"With your settings the run failed: {mine.failure}"
    elif mine.changes_nothing:
        seen = f"With your settings no weight changes. {_why_nothing_changes(mine)}"
    elif mine.diverges:
        seen = f"With your settings {change_of(mine)}: it diverges."
    elif mine.fall < 0:
        seen = f"With your settings {change_of(mine)}, where it should fall."
    else:
        seen = f"With your settings {change_of(mine)}, which is hardly anything."
    works = f"The model learns: with settings that are known to work {change_of(known)}."
    if culprit:
        return Verdict("settings", f"Your settings are wrong: {culprit}.", (seen, works))
    advice = (
        "No single one of them explains it. Begin with a preset for this model, and change one thing after another."
    )
    return Verdict("settings", "Your settings are wrong: with them the model does not learn.", (seen, works, advice))


def of_untrained_denoiser(denoiser: str, trained: str, known: ImageTrial) -> Verdict:
    """Return the verdict on a model that works and on settings that train other parts alone, which are not tried."""
    return Verdict(
        "none",
        f"Passed: the model and the program work. Your settings train the {trained} alone, and were not tried.",
        (
            f"The {trained} alone learns little of what one image shows. If that is not on purpose, switch on Train "
            f"for the {denoiser}.",
            f"With settings that are known to work {change_of(known)}.",
        ),
    )


def passed(known: ImageTrial, mine: ImageTrial | None, measures: Measures) -> Verdict:
    """Return the verdict on a model that works, and on settings that do, if they were tried."""
    seen = [f"With settings that are known to work {change_of(known)}."]
    seen.append(
        f"Before training its loss is {share_of(known, measures):.0%} of that of a guess without knowledge of images; "
        f"its latents are {measures.latents_rms:.2g} on average; prompts for colours are followed with a correlation "
        f"of {measures.colour_fit:.2f}."
    )
    if mine is None:
        return Verdict("none", "Passed: the model and the program work.", tuple(seen))
    if mine.learns:
        message = "Passed: the model, the program and your settings work."
        return Verdict("none", message, (f"With your settings {change_of(mine)}.", *seen))
    message = "Passed, but your settings learn slowly."
    return Verdict("none", message, (f"With your settings {change_of(mine)}. A higher rate is faster.", *seen))


def share_of(known: ImageTrial, measures: Measures) -> float:
    """Return the loss of the untrained model as a share of that of the best linear guess."""
    bound = sum(measures.bounds.values()) / max(1, len(measures.bounds))
    return known.before / bound if bound else 0.0


def change_of(trial: ImageTrial) -> str:
    """Return how the loss changed, as a clause."""
    if not math.isfinite(trial.after):
        return "the loss is not a number in the end"
    verb = "falls" if trial.fall >= 0 else "rises"
    return f"the loss {verb} by {abs(trial.fall):.1%}, from {trial.before:.3g} to {trial.after:.3g}"


def _worst(known: ImageTrial, measures: Measures) -> tuple[str, float]:
    """Return the timestep with the highest share of the best linear guess, and the share."""
    shares = {t: loss / measures.bounds[t] for t, loss in known.by_timestep.items() if measures.bounds.get(t)}
    return max(shares.items(), key=lambda item: item[1], default=("", 0.0))


def _why_nothing_changes(trial: ImageTrial) -> str:
    if trial.gradient_norm > 0:
        return "The gradient is not zero, so the optimizer or the learning rate does nothing."
    return "The gradient is zero, so the loss does not depend on what is trained."
