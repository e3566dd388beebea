"""The pages of the settings in the order of the side bar: the config sections each shows, and its buttons; the open
page, and requests to show a field, which the shell follows.

A section that no page claims is shown on the Training page, so that a new section of the config is never hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from modules.config.records import why_unused
from modules.config.schema import Config
from modules.config.sections.training import Training
from modules.config.usage import supports_embeddings, uses_denoiser
from ui.forms.model import FormModel
from ui.forms.records import Group, claimed_sections, groups_of, nearest_field, variant_records
from ui.loop.signal import Signal

# The choices that shape every page: the top bar is their only place. The fields of a method are on its page.
TOP_BAR = ("model.family", "training.method", "training.trains")
HOME = "home"  # the key of the first page
SIMPLE = "simple"  # the key of the page with what a LoRA needs; its fields are also on other pages
TOP_BAR_TITLE = "Top bar"
_OUTPUT_FIELDS = tuple(
    f"general.{name}"
    for name in (
        "workspace_dir",
        "cache_dir",
        "notes",
        "tensorboard",
        "tensorboard_always_on",
        "tensorboard_port",
        "tensorboard_expose",
    )
)


@dataclass(frozen=True, slots=True, eq=False)
class PageSpec:
    """A page: its name in code, its title and hint, the sections it shows, and its buttons.

    `sections` may include the path of a single field of another page's section; that field is shown here instead.
    `empty_note(config)` is shown when no field of the page applies. The side bar has an entry for a page while it is
    needed: where `is_needed(config)`, while it is open, or where advanced settings are shown. With `on_demand` the page
    gets one when it is first opened, and keeps it. Pages with the same `tabs` (the key and title of each) share the
    entry of the first one, which is called `entry_title`, and have tabs as their title.
    """

    key: str
    title: str
    hint: str
    sections: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    empty_note: Callable[[Config], str] = lambda config: ""
    is_needed: Callable[[Config], bool] = lambda config: True
    on_demand: bool = False
    tabs: tuple[tuple[str, str], ...] = ()
    entry_title: str = ""

    @property
    def entry_key(self) -> str:
        """The page that has the entry of the side bar: the first one of its tabs, or the page itself."""
        return self.tabs[0][0] if self.tabs else self.key

    @property
    def section_title(self) -> str:
        """The heading of the side bar that the page is listed under; none for Home."""
        return "" if self.key == HOME else "Settings" if self.sections or self.key == SIMPLE else "Work"


SETTING_PAGES: tuple[PageSpec, ...] = (
    PageSpec(
        "model",
        "Model",
        "The base model and its parts.",
        ("model", "parts", "quantization"),
        ("other_family", "fit", "tokens"),
    ),
    PageSpec(
        "data", "Data", "Resolution, captions, masks and caches for all concepts.", ("data", "concepts_file", "masks")
    ),
    PageSpec(
        "concepts",
        "Concepts",
        "The folders of training images.",
        ("concepts",),
        ("captions", "all_captions"),
    ),
    PageSpec(
        "training",
        "Training",
        "Length, learning rate, optimizer, the LoRA, and where it trains.",
        ("adapter", "training", "general", "multi_gpu"),
        ("length", "fit", "probe", "self_test"),
    ),
    PageSpec(
        "rewards",
        "Rewards",
        "What the training method needs, and learning from rewards or preferences.",
        ("training.method", "reward"),
        empty_note=lambda config: _without_method(config),
        is_needed=lambda config: _learns_from_rewards(config),
    ),
    PageSpec(
        "sampling",
        "Sampling & validation",
        "What a run shows of itself: samples, and the loss on images that it does not train on.",
        ("sampling", "validation"),
        ("sample_now", "validate_now"),
    ),
    PageSpec(
        "output",
        "Output & backups",
        "Where results, runs and caches go, and what is saved during training.",
        ("output", *_OUTPUT_FIELDS, "backup"),
        ("backup_now", "save_now"),
    ),
    PageSpec(
        "embeddings",
        "Embeddings",
        "New words for prompts, trained alone or together with a model.",
        ("embeddings",),
        empty_note=lambda config: _without_embeddings(config),
        is_needed=lambda config: config.training.trains == "embedding" or bool(config.embeddings.words),
    ),
)
_REST = next(page for page in SETTING_PAGES if page.key == "training")  # shows the sections that no page claims


def _without_method(config: Config) -> str:
    """Return how to learn from rewards; the top bar offers no methods if the training target has its own."""
    if why_unused(config, "training.method"):
        return (
            "This training target learns from images alone.\nTo learn from rewards or preferences, choose another one."
        )
    return (
        "This method has no settings of its own.\n"
        "To learn from rewards or preferences, choose another method in the top bar."
    )


def _learns_from_rewards(config: Config) -> bool:
    """Return whether the page of rewards shows more than a note."""
    return bool(config.reward.models) or (
        not why_unused(config, "training.method") and config.training.method != Training.with_defaults().method
    )


def _without_embeddings(config: Config) -> str:
    """Return why a run has no embeddings; nothing if it may have some, which the page lists."""
    if not uses_denoiser(config):
        return (
            "A VAE is trained without prompts, so it has no embeddings.\n"
            "To train some, choose another training target in the top bar."
        )
    return "" if supports_embeddings(config) else f"{config.family.label} does not support embeddings."


def page_of(config_type: type[Config], path: str) -> PageSpec | None:
    """Return the page that shows the field at a path; None for a path without a page."""
    section = path.partition(".")[0]
    claims = [(s, p) for p in SETTING_PAGES for s in p.sections if path == s or path.startswith(f"{s}.")]
    if not claims:
        return _REST if section in claimed_sections(config_type) else None
    return max(claims, key=lambda claim: len(claim[0]))[1]


def groups_on(page: PageSpec, config: Config) -> tuple[Group, ...]:
    """Return the groups of fields of a page, without fields that another page or the top bar shows."""
    other_fields = {s for p in SETTING_PAGES if p.key != page.key for s in p.sections if "." in s}
    groups = groups_of(config, sections_of(page, type(config)), without=other_fields)
    return tuple(group_here for group in groups if (group_here := _without_top_bar(group, config)).records)


def _without_top_bar(group: Group, config: Config) -> Group:
    """Return a group without the choices of the top bar; the fields of the variant chosen there stay."""
    records = []
    for record in group.records:
        if record.path not in TOP_BAR:
            records.append(record)
        elif record.kind == "section":
            records += variant_records(config, record)
    return replace(group, records=tuple(records))


def sections_of(page: PageSpec, config_type: type[Config]) -> tuple[str, ...]:
    """Return the sections of a page; the Training page also has those that no other claims."""
    if page.key != _REST.key:
        return page.sections
    claimed = {s for p in SETTING_PAGES for s in p.sections}
    return (*page.sections, *(s for s in claimed_sections(config_type) if s not in claimed))


class Navigation:
    """The open page, and the requests to show a page or a field."""

    def __init__(
        self,
        form: FormModel,
        pages: Sequence[str],
        page: str,
        *,
        is_simple: Callable[[], bool] = lambda: False,
        is_on_simple: Callable[[str], bool] = lambda _path: False,
    ) -> None:
        """Open a page. Where `is_simple`, the page of the simple view is preferred for its fields."""
        self._pages, self._is_simple, self._is_on_simple = pages, is_simple, is_on_simple
        self.page = self._valid_page(page)
        self._form = form
        self.page_wanted: Signal[[str]] = Signal()
        self.field_wanted: Signal[[str, str]] = Signal()  # the page, already open, and the path
        self.full_page_wanted: Signal[[PageSpec]] = Signal()  # opened for a field that the simple view does not have
        self.top_bar_wanted: Signal[[str]] = Signal()  # the path of a choice in the top bar

    def open(self, key: str) -> None:
        """Show a page."""
        self.page = self._valid_page(key)
        self.page_wanted(self.page)

    def go_to(self, path: str) -> bool:
        """Show the field at a path, or the nearest one that contains it; return whether the window has it."""
        if path in TOP_BAR:
            self.top_bar_wanted(path)
            return True
        page = page_of(type(self._form.config), path)
        if page is None:
            return False
        field = nearest_field(self._form.config, path)
        is_simple = self._is_simple()
        key = SIMPLE if is_simple and self._is_on_simple(field) else page.key
        self.open(key)
        self.field_wanted(key, field)
        if is_simple and key != SIMPLE:
            self.full_page_wanted(page)
        return True

    def _valid_page(self, key: str) -> str:
        """Return the key of a page; the first page's for an unknown key."""
        return key if key in self._pages else self._pages[0]
