"""The catalogue of pages in the order of the side bar: Home, settings, then work.

The class of a page is imported when the page is first opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from ui.forms.setting_pages import HOME, SETTING_PAGES, SIMPLE, PageSpec

_RUN_TABS = (("runs", "Run history"), ("queue", "Queue"))
PAGES: tuple[PageSpec, ...] = (
    PageSpec(HOME, "Home", "Begin, or continue."),
    PageSpec(
        SIMPLE,
        "Train a LoRA",
        "What a LoRA needs, in this order. Then press Start.",
    ),
    *SETTING_PAGES,
    PageSpec(
        "run",
        "Run",
        "The current run, or the last one.",
        actions=(
            "sample_now",
            "validate_now",
            "backup_now",
            "save_now",
            "open_run_folder",
            "tensorboard",
            "report_images",
        ),
    ),
    PageSpec(
        "runs", "Run history", "All runs so far, and what each has left.", tabs=_RUN_TABS, entry_title="Runs & queue"
    ),
    PageSpec("queue", "Queue", "Configs to train one after another.", tabs=_RUN_TABS),
    PageSpec(
        "sample",
        "Generate",
        "Sample images of any model, with any LoRAs, without training.",
    ),
    PageSpec(
        "tools",
        "Tools",
        "Inspect and convert files; merge, combine, resize, extract and scale LoRAs.",
        actions=("captions",),
    ),
    PageSpec(
        "choose",
        "Choose",
        "Your choices are the reward.",
        on_demand=True,
    ),
)
_LETTERS: Mapping[str, str] = {
    "embeddings": "E",
    "run": "R",
    "choose": "G",
    "sample": "M",
    "tools": "L",
    "runs": "H",
    "queue": "U",
}
_FORM_PAGE = "ui.forms.form_page:FormPage"
_VIEWS: Mapping[str, str] = {
    HOME: "ui.app.home_page:HomePage",
    "concepts": "ui.features.concepts.page:ConceptsPage",
    "rewards": "ui.features.rewards.page:rewards_page",
    SIMPLE: "ui.features.simple.page:SimplePage",
    "sampling": "ui.features.lists:sampling_page",
    "embeddings": "ui.features.lists:embeddings_page",
    "run": "ui.features.run.page:RunPage",
    "runs": "ui.features.runs.page:RunsPage",
    "queue": "ui.features.queue.page:QueuePage",
    "sample": "ui.features.generate.page:SamplePage",
    "tools": "ui.features.tools.page:ToolsPage",
    "choose": "ui.features.choose.page:ChoosePage",
}


def view_of(page: PageSpec) -> str:
    """Return the class of a page, as "module:name"; a form of the page's sections if it has none of its own."""
    return _VIEWS.get(page.key, _FORM_PAGE)


def page_named(key: str) -> PageSpec:
    """Return the page of a key; the first page for an unknown key."""
    return next((p for p in PAGES if p.key == key), PAGES[0])


def page_shortcut(page: PageSpec) -> str:
    """Return the shortcut that opens a page: its letter, or the digit of its place among the others.

    The simple page has none: Ctrl+B changes between the views.
    """
    if page.key == SIMPLE:
        return ""
    with_digit = [p.key for p in PAGES if p.key not in _LETTERS and p.key != SIMPLE]
    return f"Ctrl+{_LETTERS.get(page.key) or with_digit.index(page.key) + 1}"
