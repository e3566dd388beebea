"""The messages about a start from an adapter file: which layers a run does not train, and what happens to them.

Preflight finds these layers in the file's header, the run in its tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modules.formats.adapter_names import BUNDLED_EMBEDDING
from modules.system.problem import count, join_words

_MAX_EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class OtherLayers:
    """The layers and tensors of an adapter file that a run does not train.

    `where` names the file, and `trains_any` is whether the run trains any layer of it. `paths` are the layers by the
    label of their part, `inactive` those that do nothing in the run, and `others` the names of tensors of no layer.
    `is_kept`: they are kept and written again; `lost` are those that the output format cannot hold. `copies` are
    tensors of layers that the file names twice; they are left out.
    """

    where: str
    is_kept: bool
    trains_any: bool
    paths: Mapping[str, tuple[str, ...]]
    inactive: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()

    def note(self) -> tuple[str, str]:
        """Return a message and its advice; two empty strings if the run trains everything in the file."""
        what = [*(f"{count(len(p), 'layer')} of {label} ({_examples(p)})" for label, p in self.paths.items() if p)]
        if self.others:
            what.append(f"{count(len(self.others), 'tensor')} of no layer ({_examples(self.others)})")
        message, advice = self._note(what) if what else ("", "")
        if self.copies:
            copies = (
                f"{self.where} names layers twice. The first copy is used, and {count(len(self.copies), 'tensor')} of "
                f"the second left out ({_examples(self.copies)})."
            )
            message = f"{message} {copies}".strip()
        return message, advice

    def _note(self, what: list[str]) -> tuple[str, str]:
        begins = f"{self.where} has {join_words(what)} that this run does not train"
        begins += "" if self.trains_any else ", and no others"
        if not self.is_kept:
            return f"{begins}. They are left out, as set.", "Keep them under Other layers on the Training page."
        message = f"{begins}. {self._what_kept_ones_do()}"
        if self.inactive:
            message += f" {count(len(self.inactive), 'layer')} cannot act in the run ({_examples(self.inactive)})."
        if self.others:
            message += " Tensors of no layer do nothing in the run."
        if any(name.startswith(BUNDLED_EMBEDDING) for name in set(self.others) - set(self.lost)):
            message += " diffusers does not load a result that has bundled embeddings."
        if self.lost:
            message += f" The diffusers format cannot hold {_examples(self.lost)}; the kohya format can."
        return message, "To start without them, leave them out under Other layers on the Training page."

    def _what_kept_ones_do(self) -> str:
        if sum(map(len, self.paths.values())) <= len(self.inactive):
            return "They are kept and saved as they are."
        if self.others:
            return "They are kept and saved as they are; the layers act in the run."
        return "They are kept: they act in the run and are saved as they are."


def rank_note(where: str, ranks: Iterable[int], rank: int, *, num_new: int) -> str:
    """Return a sentence if the ranks of a file differ from the run's; otherwise an empty string.

    `num_new` is the number of layers that the run trains and the file does not have.
    """
    distinct = sorted(set(ranks))
    if not distinct or distinct == [rank]:
        return ""
    span = f"{distinct[0]}" if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
    use = f"is used for the {count(num_new, 'layer')} that the file does not have" if num_new else "is not used"
    return f"The layers of {where} have rank {span}, which they keep. The rank set here, {rank}, {use}."


def _examples(names: Iterable[str]) -> str:
    all_names = list(names)
    more = ", ..." if len(all_names) > _MAX_EXAMPLES else ""
    return ", ".join(all_names[:_MAX_EXAMPLES]) + more
