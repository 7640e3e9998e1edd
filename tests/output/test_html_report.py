"""The HTML report: one file, no network, no foreign markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from output.tune_sample import HOSTILE, make_study
from results.study_sample import header, measurement, trial

from autofit.output.html_report import html_report
from autofit.results.study import Study


class _Page(HTMLParser):
    """What a browser would see: its tags, their attributes and the text of each kind of tag."""

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
        """How many of a tag there are."""
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[bool, _Page]:
    """The report of a plain study and of one with hostile text, taken apart."""
    folder = tmp_path_factory.mktemp("html")
    return {
        hostile: _Page(
            html_report(make_study(folder / str(hostile), hostile=hostile), preset="[x]\na = b\n")
        )
        for hostile in (False, True)
    }


def test_answer_settings_and_preset_are_there(pages):
    """Headline, settings, boundary, preset to copy and every launch are on the page."""
    page = pages[False]

    assert any("42% faster" in text for text in page.texts["p"])
    assert "[x]\na = b\n" in page.texts["pre"]
    assert "n_cpu_moe 19" in page.texts["td"]
    assert page.count("details") == 17
    assert page.count("button") == 2


def test_every_plot_has_a_title_and_a_text(pages):
    """Each figure has a heading and words that say what it shows."""
    titles = [text for text in pages[False].texts["h2"] if text.strip()]
    captions = [text for text in pages[False].texts["figcaption"] if text.strip()]

    assert pages[False].count("figure") == len(captions) == 3
    assert "Seconds per request against host expert layers" in titles
    assert captions[0] == (
        "7 launches measured with 14 to 32 host expert layers; best 5.25 at 20. "
        "6 failed, at 14, 15, 16, 17, 18, 19."
    )
    assert captions[2] == "winner: 5.32, 5.29, 5.25; baseline: 8.56, 8.44, 8.32."


def test_nothing_is_fetched(pages):
    """No tag refers to anything outside of the page, and its policy forbids it."""
    for tag, attributes in pages[False].tags:
        assert not {"src", "href", "srcset", "action"} & set(attributes), tag
    assert any("default-src 'none'" in (a.get("content") or "") for _, a in pages[False].tags)


def test_hostile_text_adds_no_tag(pages):
    """Text from logs and file names is shown as text: the page has the same tags as without."""
    plain, hostile = pages[False], pages[True]

    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert any("<script>alert('x')</script>" in text for text in hostile.texts["p"])
    assert not any(HOSTILE in script for script in hostile.texts["script"])


def test_500_launches_stay_under_8_mb(tmp_path):
    """A large study is still one page that can be mailed."""
    with Study.create(tmp_path / "study", header()) as study:
        for number in range(1, 501):
            measured = measurement(20.0 + number / 50)
            study.write_trial(trial(number, n_cpu_moe=number % 49, measured=measured))

        page = html_report(study)

    assert len(page.encode()) < 8_000_000
    assert _Page(page).count("details") == 500


def test_study_without_data_has_a_page_without_plots(tmp_path):
    """A study that has just begun makes a small page that says so."""
    Study.create(tmp_path / "study", header()).close()

    page = html_report(Study.open(tmp_path / "study"))

    assert "not finished" in page
    assert len(page) < 20_000
