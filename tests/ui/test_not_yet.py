"""Unsupported settings: hidden unless a file uses them; then marked, and hidden again once changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest

from modules.config.records import record_at
from modules.config.schema import Config
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When
from tests.builders.variants import variants
from tests.ui.conftest import Window
from tests.ui.driving import inside, pick
from ui.features.search.model import Index
from ui.forms.binding import A_STEP
from ui.forms.fields import Row
from ui.forms.model import FormModel, Source
from ui.forms.records import (
    CHOOSE_ANOTHER,
    NO_EFFECT,
    NOT_YET,
    UNSUPPORTED,
    available_choices,
    is_out_of_reach,
    is_shown,
    support_note,
)
from ui.widgets.controls import Choice


class Done(Section):
    """A supported variant."""

    name: Literal["done"] = "done"
    depth: Annotated[int, Setting("Depth", "How deep.")] = 3


class Other(Section):
    """Another one."""

    name: Literal["other"] = "other"


class Later(Section):
    """A variant that is not supported yet."""

    name: Literal["later"] = "later"
    height: Annotated[int, Setting("Height", "How high.")] = 4


class Garden(Section):
    """Fields of which some are supported."""

    herbs: Annotated[bool, Setting("Herbs", "Whether.", not_yet="refused")] = False
    herb_count: Annotated[int, Setting("Number of herbs", "How many.", applies_when=When("herbs", (True,)))] = 5
    gnomes: Annotated[int, Setting("Gnomes", "How many.", not_yet="ignored")] = 0
    fence: Annotated[
        Literal["none", "wood", "iron"],
        Setting("Fence", "Of what.", choice_labels={"iron": "Iron"}, not_yet_choices=frozenset({"iron"})),
    ] = "none"
    spikes: Annotated[int, Setting("Spikes", "How many.", applies_when=When("fence", ("iron",)))] = 9
    gate: Annotated[Literal["open", "shut"], Setting("Gate", "How it stands.", not_yet_choices=frozenset({"shut"}))] = (
        "open"
    )
    pond: Annotated[
        Done | Other | Later,
        *variants("done", Done, Other, Later),
        Setting("Pond", "Of which kind.", not_yet_choices=frozenset({"later"})),
    ] = Done()
    watering: Annotated[Every, Setting("Watering", "How often.")] = Every(n=2, unit="step")


class GardenConfig(Config):
    """The config with an extra section."""

    garden: Garden = Garden()


def garden(**values: object) -> GardenConfig:
    return GardenConfig.model_validate({"garden": values})


def record(config: Config, name: str) -> Any:
    found = record_at(config, f"garden.{name}")
    assert found is not None
    return found


def shown(config: Config, *, show_advanced: bool = True) -> set[str]:
    names = Garden.model_fields
    return {n for n in names if is_shown(config, record(config, n), show_advanced=show_advanced)}


def test_an_unsupported_field_is_shown_only_if_a_file_sets_it() -> None:
    assert shown(garden()) == {"fence", "pond", "watering"}
    assert shown(garden(herbs=True, gnomes=2, gate="shut"), show_advanced=False) == {
        "herbs", "herb_count", "gnomes", "fence", "gate", "pond", "watering",
    }  # fmt: skip


def test_an_unsupported_choice_is_offered_only_while_chosen() -> None:
    fence = record(garden(), "fence")
    assert available_choices(fence, "none") == {"none": "none", "wood": "wood"}
    assert available_choices(fence, "iron") == {"none": "none", "wood": "wood", "iron": f"Iron {NOT_YET}"}


def test_a_note_explains_an_unsupported_value() -> None:
    config = garden(herbs=True, gnomes=2, fence="iron", pond="later")
    words = {name: support_note(config, record(config, name)) for name in Garden.model_fields}
    assert words["herbs"] == UNSUPPORTED
    assert words["gnomes"] == NO_EFFECT
    assert words["fence"] == words["pond"] == CHOOSE_ANOTHER
    assert words["watering"] == words["gate"] == ""


def test_unsupported_fields_are_not_found() -> None:
    config = garden()
    hidden = {n for n in Garden.model_fields if is_out_of_reach(config, record(config, n))}
    assert hidden == {"herbs", "herb_count", "gnomes", "spikes"}
    assert hidden.isdisjoint(m.path.removeprefix("garden.") for m in Index(config).find("herbs").matches)
    assert {m.path for m in Index(garden(herbs=True)).find("herbs").matches} == {"garden.herbs", "garden.herb_count"}


@pytest.fixture
def rows(open_window: Callable[..., Window]) -> Callable[..., dict[str, Row]]:
    window = open_window()

    def load(config: GardenConfig) -> dict[str, Row]:
        window.app.form.load(config, Source("garden"))
        window.open_page("training")
        window.settle()
        page: Any = window.app.shell.pages["training"]
        return {r.record.name: r for r in page.form_view.rows() if r.record.path.startswith("garden.")}

    load.window = window  # type: ignore[attr-defined]
    return load


def test_unsupported_choices_vanish_once_changed(rows: Any) -> None:
    window: Window = rows.window
    found = rows(garden(fence="iron", pond="later"))
    fence, pond = (inside(found[n].control.frame, Choice) for n in ("fence", "pond"))
    assert (fence.get(), pond.get()) == (f"Iron {NOT_YET}", f"later {NOT_YET}")
    assert list(pond.choices) == ["done", "other", "later"]
    assert found["fence"]._reason is not None
    assert found["fence"]._reason.cget("text") == CHOOSE_ANOTHER
    assert found["fence"]._reason.winfo_ismapped()
    assert found["fence"]._reason.token == "muted"
    assert CHOOSE_ANOTHER in found["pond"].tip()
    pick(fence, "wood")
    pick(pond, "other")
    window.settle()
    assert window.app.form.value("garden.fence") == "wood"
    assert window.app.form.value("garden.pond").name == "other"
    assert list(fence.choices) == ["none", "wood"]
    assert list(pond.choices) == ["done", "other"]
    assert fence.menu.index("end") == 1
    assert not found["fence"]._reason.winfo_ismapped()
    window.app.form.undo()
    window.app.form.undo()
    assert (fence.get(), pond.get()) == (f"Iron {NOT_YET}", f"later {NOT_YET}")


def test_fields_of_an_old_file_are_hidden_when_another_is_loaded(rows: Any) -> None:
    found = rows(garden(herbs=True, gate="shut"))
    assert {n for n, row in found.items() if row.is_shown} >= {"herbs", "herb_count", "gate"}
    found = rows(garden())
    assert {n for n, row in found.items() if row.is_shown} == {"fence", "pond", "depth", "watering"}


def test_a_step_is_explained_where_one_is_counted(rows: Any) -> None:
    found = rows(garden())
    assert A_STEP in found["watering"].tip()
    assert A_STEP not in found["fence"].tip()


def test_the_top_bar_hides_choices_with_one_option(window: Window) -> None:
    bar, form = window.app.shell.top_bar, window.app.form
    method = form.record("training.method")
    assert method is not None
    can_choose = len(available_choices(method, "denoise")) > 1
    window.settle()
    assert bool(bar.choices["training.method"].winfo_ismapped()) is can_choose
    form.choose_variant("training.method", "alignprop")
    window.settle()
    assert bar.choices["training.method"].winfo_ismapped()
    pick(bar.choices["training.method"], "denoise")
    window.settle()
    assert form.config.training.method.name == "denoise"
    assert bool(bar.choices["training.method"].winfo_ismapped()) is can_choose


def test_remembered_variants_are_no_change() -> None:
    form = FormModel(garden())
    form.edit("garden.pond.depth", 8)
    form.choose_variant("garden.pond", "other")
    form.choose_variant("garden.pond", "done")
    assert form.value("garden.pond.depth") == 8
    form.edit("garden.pond.depth", 3)
    assert not form.is_changed
