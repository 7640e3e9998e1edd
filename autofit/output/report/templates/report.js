"use strict";

// Copying: a button copies the element that it names, or the one before it.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy) || button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 4000);
});

// Plotly comes compressed, as text: unpacked here, without a network.
async function plotly() {
  const text = document.getElementById("plotly-gz").textContent.trim();
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  return window.Plotly;
}

// Enough for a phone held upright: fewer ticks, and labels that need no room at the side.
function fitted(layout, width) {
  if (width > 560) return layout;
  return { ...layout, margin: { ...layout.margin, l: 44, r: 4 }, font: { ...layout.font, size: 11 } };
}

async function draw() {
  const plots = [...document.querySelectorAll(".plot")];
  if (!plots.length) return;
  try {
    const library = await plotly();
    for (const plot of plots) {
      const figure = JSON.parse(document.getElementById(plot.dataset.figure).textContent);
      plot.textContent = "";
      const layout = fitted(figure.layout, plot.clientWidth);
      await library.newPlot(plot, figure.data, layout, { displayModeBar: false, responsive: true });
      // So that the drawing can be scaled to the width of a sheet of paper.
      for (const svg of plot.querySelectorAll(".main-svg")) {
        svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
      }
      plot.on("plotly_relayout", () => {});
    }
  } catch (error) {
    for (const plot of plots) {
      if (!plot.querySelector("svg")) plot.textContent = "This browser cannot draw the plot; the text below says what it shows.";
      plot.style.minHeight = "0";
    }
  }
  document.documentElement.dataset.plots = "done";
}

draw();
