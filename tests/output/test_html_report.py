"""The HTML report: one file, no network, no foreign markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from output.report_sample import KINDS
from output.tune_sample import HOSTILE, make_study

from autofit.output.report.html_report import html_report


class _Page(HTMLParser):
    """The tags of a page with their attributes, and the text of each kind of tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Note a tag."""
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        """Close a tag, which must be the one that is open."""
        assert self._open.pop() == tag

    def handle_data(self, data):
        """Note a text under its tag."""
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def count(self, tag: str) -> int:
        """Return how many of a tag there are."""
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[bool, _Page]:
    """The parsed reports of a plain study and of one with hostile text."""
    folder = tmp_path_factory.mktemp("html")
    return {
        hostile: _Page(
            html_report(make_study(folder / str(hostile), hostile=hostile), preset="[x]\na = b\n")
        )
        for hostile in (False, True)
    }


def test_conclusion_settings_and_preset_are_there(pages):
    """Headline, settings, boundary, preset to copy and every launch are on the page."""
    page = pages[False]

    assert any("1.42x as fast" in text for text in page.texts["p"])
    assert "[x]\na = b\n" in page.texts["pre"]
    assert "19 layers" in page.texts["td"]
    assert page.count("tr") > 17
    # One for the preset, one for the winner's command, one for each launch.
    assert page.count("button") == 2 + 17


def test_time_spent_has_a_table_of_its_own(pages):
    """The table is in the menu and has phases, lengths of tests and times."""
    page = pages[False]

    assert "Time spent" in page.texts["h2"]
    assert {"full requests", "16 min 30 s"} <= set(page.texts["td"])
    assert ("a", {"href": "#spent"}) in page.tags
    assert ("section", {"id": "spent"}) in page.tags


def test_every_plot_has_a_title_and_a_text(pages):
    """Each plot is an image for screen readers, with its heading as name and its caption."""
    ids = {attributes.get("id") for _, attributes in pages[False].tags}
    drawn = [a for tag, a in pages[False].tags if tag == "div" and a.get("class") == "plot"]
    captions = [text for text in pages[False].texts["figcaption"] if text.strip()]

    assert len(drawn) == len(captions) == pages[False].count("figure") == 7
    for plot in drawn:
        assert plot["role"] == "img"
        assert {plot["aria-labelledby"], plot["aria-describedby"], plot["data-figure"]} <= ids
    assert captions[0].startswith(
        "7 launches measured with 20 to 32 host expert layers; the best single launch is #16 "
        "with 5.25 at 20. 6 failed: "
    )


def test_plots_without_data_are_listed_with_the_reason(pages):
    """A plot that is not drawn is named with its reason."""
    left_out = [text for text in pages[False].texts["li"] if text.startswith("Layers over")]

    assert left_out == ["Layers over devices: no launch reported the number of layers"]


def test_nothing_is_fetched(pages):
    """No tag refers to anything outside of the page, and its policy forbids it."""
    for tag, attributes in pages[False].tags:
        assert not {"src", "srcset", "action"} & set(attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    assert any("default-src 'none'" in (a.get("content") or "") for _, a in pages[False].tags)


def test_hostile_text_adds_no_tag(pages):
    """Text from logs and file names is shown as text: the page has the same tags as without."""
    plain, hostile = pages[False], pages[True]

    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert any("<script>alert('x')</script>" in text for text in hostile.texts["span"])
    for script in hostile.texts["script"]:
        assert "<script>" not in script
        assert HOSTILE not in script


@pytest.mark.parametrize("kind", KINDS)
def test_page_of_every_kind_of_study_is_small_enough_to_mail(tmp_path, kind):
    """From no launch to 500 launches, the page is small and its tags are closed."""
    page = html_report(KINDS[kind](tmp_path / kind))

    assert len(page.encode()) < (4_000_000 if kind == "large" else 2_500_000)
    assert _Page(page).count("h1") == 1
    if kind == "large":
        assert page.count('<tr class="') == 500


def test_study_without_data_has_a_page_without_plots(tmp_path):
    """A study that has just begun makes a small page that says so."""
    page = html_report(KINDS["empty"](tmp_path / "study"))

    assert "--resume" in page
    assert "No launch yet" in page
    assert len(page) < 20_000


def test_report_of_a_comparison_has_a_table_of_both_sides(tmp_path):
    """Its title says that it is a comparison."""
    page = _Page(html_report(KINDS["comparison"](tmp_path / "study")))

    assert page.texts["title"] == ["Qwen3-30B-A3B-Q4_K_M: comparison"]
    assert "speed of B" in page.texts["th"]
    assert "better: B is 1.10x as fast as A" in page.texts["p"]
