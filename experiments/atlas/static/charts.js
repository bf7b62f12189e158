"use strict";

/** Charts of Vega-Lite in the page's own colours, redrawn as the theme changes. What they show stands in tables beside them. */
const charts = (() => {
  const live = new Set();
  const scheme = matchMedia("(prefers-color-scheme: dark)");

  /** Whether the page is dark, by its button or else by the system. */
  function dark() {
    const told = getComputedStyle(document.documentElement).colorScheme;
    return told.includes("dark") && (!told.includes("light") || scheme.matches);
  }

  /** A family's colour, lighter where the page is dark. */
  function shade(color) {
    if (!dark()) return color;
    const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return `#${parts.map((each) => Math.round(each + 0.5 * (255 - each)).toString(16).padStart(2, "0")).join("")}`;
  }

  function look() {
    const ink = dark() ? "#e8e8ea" : "#1b1b1f";
    const line = dark() ? "#3a3d46" : "#d9d9e0";
    return {
      background: "transparent", font: "system-ui, sans-serif", view: {stroke: null}, rule: {color: ink}, text: {color: ink},
      axis: {labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12},
      header: {labelColor: ink, labelFontSize: 12}, title: {color: ink},
    };
  }

  /** Draws a chart of data("charts") into a place, and says in words what it shows. `change` may alter its spec. */
  function draw(holder, name, values, words, change = () => {}) {
    for (const each of live) if (!each.holder.isConnected || each.holder === holder) live.delete(each);
    const say = () => {
      holder.setAttribute("role", "img");
      holder.setAttribute("aria-label", words);
    };
    const again = () => {
      say();
      const spec = structuredClone(atlas.data("charts")[name]);
      spec.datasets = {values: values.map((each) => (each.color ? {...each, color: shade(each.color)} : each))};
      change(spec);
      const options = {renderer: "svg", actions: false, config: look(), tooltip: {theme: dark() ? "dark" : "light"}};
      // @ts-ignore: vega.js defines it
      const made = window.vegaEmbed(holder, spec, options);
      made.then(() => {
        holder.querySelector("svg")?.setAttribute("aria-hidden", "true");
        say(); // Vega has written words of its own
      });
    };
    live.add({holder, draw: again});
    again();
  }

  function redraw() {
    for (const each of [...live]) {
      if (each.holder.isConnected) each.draw();
      else live.delete(each);
    }
  }
  scheme.addEventListener("change", redraw);
  new MutationObserver(redraw).observe(document.documentElement, {attributes: true, attributeFilter: ["style"]});

  return {draw, shade, dark};
})();
