"""The report as a browser shows it: no errors, no overflow, readable in light and dark."""

from __future__ import annotations

import re

import pytest
from output.browser import Browser
from output.report_sample import KINDS

from autofit.output.report.html_report import html_report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PRESET = "version = 1\n\n[model]\nmodel = /models/model.gguf\n"

# Contrast as WCAG 2 defines it, of an element's colour with the page's background.
CONTRAST = """
const light = (text) => {
  const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const page = light(getComputedStyle(document.body).backgroundColor);
const contrast = (element, name) => {
  const own = light(getComputedStyle(element)[name]);
  return (Math.max(own, page) + 0.05) / (Math.min(own, page) + 0.05);
};
const all = (selector, name) =>
  [...document.querySelectorAll(selector)].map((element) => contrast(element, name));
const texts = "p, h1, h2, h3, td, th, dt, dd, a, li, figcaption, summary, .evidence, .outcome";
"""


@pytest.fixture
def browser(tmp_path) -> Browser:
    """A browser of this test alone."""
    folder = tmp_path / "browser"
    folder.mkdir()
    return Browser(folder)


def page_of(kind: str, folder) -> str:
    """Return the report of a kind of study."""
    return html_report(KINDS[kind](folder / kind), preset=PRESET)


@pytest.mark.parametrize("kind", KINDS)
def test_every_study_is_drawn_without_an_error(browser, tmp_path, kind):
    """Each plot of each kind of study is drawn at its height, and the console stays silent."""
    page = page_of(kind, tmp_path)
    seen = browser.see(
        page,
        """
        return [...document.querySelectorAll(".plot")].map((plot) => {
          const svg = plot.querySelector("svg.main-svg").getBoundingClientRect();
          return [plot.clientHeight, svg.height, svg.width / plot.clientWidth,
                  plot.querySelectorAll(".xtick, .ytick, .xtick2").length];
        });
        """,
    )

    assert seen.alarms == []
    assert seen.console == []
    assert len(seen.found) == page.count('class="plot"')
    for height, drawn, share, ticks in seen.found:
        assert drawn == pytest.approx(height, abs=1)
        assert share == pytest.approx(1.0, abs=0.02)
        assert ticks > 0


def test_hostile_text_is_text_also_in_hover_labels(browser, tmp_path):
    """The hover label of every trace has no tag, no link and no script."""
    seen = browser.see(
        page_of("hostile", tmp_path),
        """
        let hovered = 0, texts = "";
        for (const plot of document.querySelectorAll(".plot")) {
          plot.data.forEach((trace, curveNumber) => {
            if (trace.hoverinfo === "skip") return;
            const subplot = (trace.xaxis || "x") + (trace.yaxis || "y");
            (trace.x || []).slice(0, 3).forEach((_, pointNumber) => {
              Plotly.Fx.hover(plot, [{ curveNumber, pointNumber }], subplot);
              const label = plot.querySelector(".hoverlayer");
              if (label.textContent) { hovered += 1; texts += label.textContent; }
            });
          });
        }
        return {
          hovered,
          shows: texts.includes("<" + "/script><script>alert('x')<" + "/script>"),
          foreign: document.querySelectorAll("img, b, main a:not([href^='#']), svg a").length,
        };
        """,
    )

    assert seen.alarms == []
    assert seen.console == []
    assert seen.found["hovered"] > 20
    assert seen.found["shows"]
    assert seen.found["foreign"] == 0


@pytest.mark.parametrize("kind", ["whole", "three_devices", "hostile"])
@pytest.mark.parametrize("width", [360, 768])
def test_nothing_is_wider_than_a_phone(browser, tmp_path, kind, width):
    """The page never scrolls sideways; wide parts scroll within themselves."""
    seen = browser.see(
        page_of(kind, tmp_path),
        """
        const wide = [...document.querySelectorAll("main *")].filter((element) =>
          element.getBoundingClientRect().right > innerWidth + 1
          && !element.closest(".wide, svg, pre, .plot"));
        const sources = wide.map((element) => element.outerHTML.slice(0, 80));
        return [innerWidth, document.documentElement.scrollWidth, sources];
        """,
        width=width,
    )

    assert seen.alarms == []
    assert seen.found[0] == width
    assert seen.found[1] <= width
    assert seen.found[2] == []


@pytest.mark.parametrize("kind", ["whole", "three_devices", "large"])
@pytest.mark.parametrize("width", [390, 1024, 1280])
def test_no_column_of_a_table_is_cut(browser, tmp_path, kind, width):
    """Each table shows its last column without scrolling, on a phone and on a wide screen."""
    seen = browser.see(
        page_of(kind, tmp_path),
        """
        return [...document.querySelectorAll("section > .wide")].map((table) =>
          table.scrollWidth - table.clientWidth);
        """,
        width=width,
    )

    assert seen.alarms == []
    assert seen.found
    assert max(seen.found) <= 0


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_light_and_dark(browser, tmp_path, dark):
    """Text has a contrast of 4.5 with the page, also within plots."""
    seen = browser.see(
        page_of("failures", tmp_path),
        CONTRAST
        + """
        return [page, Math.min(...all(texts, "color")),
                Math.min(...all(".plot .xtick text, .plot .ytick text", "fill")),
                Math.min(...all(".plot .legendtext, .plot .xtitle, .plot .ytitle", "fill"))];
        """,
        dark=dark,
    )

    assert (seen.found[0] < 0.1) == dark
    assert min(seen.found[1:]) >= 4.5


def test_all_can_be_reached_by_keyboard(browser, tmp_path):
    """Buttons, links, folded parts and wide tables can have the focus, and show it."""
    seen = browser.see(
        page_of("whole", tmp_path),
        """
        const reached = {};
        for (const element of document.querySelectorAll("button, a, summary, .wide, pre[id]")) {
          if (!element.checkVisibility()) continue;
          element.focus({ focusVisible: true });
          const is = document.activeElement === element
            && getComputedStyle(element).outlineStyle !== "none";
          const name = element.tagName.toLowerCase();
          reached[name] = [...(reached[name] || []), is];
        }
        return reached;
        """,
    )

    assert {name: all(reached) for name, reached in seen.found.items()} == dict.fromkeys(
        ("a", "button", "div", "pre", "summary"), True
    )


def test_the_button_copies_the_preset_or_selects_it(browser, tmp_path):
    """If the page cannot use the clipboard, it selects the preset."""
    seen = browser.see(
        page_of("whole", tmp_path),
        """
        const button = document.querySelector("button[data-copy=preset]");
        button.click();
        await new Promise((resume) => setTimeout(resume, 1000));  // wording: quote
        let copied = getSelection().toString();
        if (button.textContent === "Copied") copied = await navigator.clipboard.readText();
        return [button.textContent, copied];
        """,
    )

    assert seen.found[0] in ("Copied", "Selected: press Ctrl+C")
    assert seen.found[1].strip() == PRESET.strip()


def test_browser_that_cannot_unpack_plots_shows_text(browser, tmp_path):
    """If the browser cannot unpack the script of the plots, each plot says so."""
    page = page_of("whole", tmp_path)
    old = page.replace("<head>", "<head><script>delete window.DecompressionStream;</script>", 1)
    seen = browser.see(
        old, 'return [...document.querySelectorAll(".plot")].map((plot) => plot.textContent);'
    )

    assert seen.alarms == []
    assert len(seen.found) == 8
    assert all("cannot draw the plot" in text for text in seen.found)


def test_plots_are_redrawn_when_the_window_changes(browser, tmp_path):
    """Plots are as wide as the page after it changes its width."""
    seen = browser.see(
        page_of("whole", tmp_path),
        """
        document.body.style.maxWidth = "500px";
        dispatchEvent(new Event("resize"));
        await new Promise((resume) => setTimeout(resume, 2000));  // wording: quote
        return [...document.querySelectorAll(".plot")].map((plot) =>
          plot.querySelector("svg.main-svg").getBoundingClientRect().width / plot.clientWidth);
        """,
    )

    assert seen.found == pytest.approx([1.0] * 8, abs=0.02)


def test_the_page_can_be_printed(browser, tmp_path):
    """On paper the report takes a few sheets."""
    paper = tmp_path / "report.pdf"
    browser.print(page_of("whole", tmp_path), paper)

    pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
    assert 4 <= pages <= 16
