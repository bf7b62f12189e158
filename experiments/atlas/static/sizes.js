"use strict";

/** Trends: rows along the size of the model, the share of the data and the number of heads. */
(() => {
  const {data, el, href} = atlas;

  function values(found, chart, rows) {
    const names = new Map(found.names);
    return Object.entries(chart.rows).flatMap(([label, points]) => points.map((each) => ({
      label, x: each.x, where: names.get(each.x), mean: each.mean, low: each.mean - (each.half ?? 0), high: each.mean + (each.half ?? 0), text: each.text,
      color: rows[label].color, dash: rows[label].dash, shape: rows[label].shape})));
  }

  const named = (study, label) => [measured.swatch(study.rows[label]), " ", measured.name(study, label)];

  const table = (head, lines, name, study) => atlas.table(name, head, lines.map(([row, ...cells]) => [named(study, row), ...cells]), {cell: "number"});

  function charted(found, chart, study) {
    const holder = el("div", {class: "chart"});
    const rows = Object.entries(chart.rows);
    const cells = rows.map(([label, points]) => [label, ...found.names.map(([x]) => points.find((each) => each.x === x)?.text ?? "–")]);
    const draw = () => charts.draw(holder, "lines", values(found, chart, study.rows), `${chart.title} of ${rows.map(([label]) => label).join(", ")} along the ${found.axis}; the numbers stand in the table below`, (spec) => {
      const names = Object.fromEntries(found.names);
      spec.layer = spec.layer.filter((each) => each.mark.type !== "rule"); // no place is the trained one
      for (const {encoding: {x}} of spec.layer) if (x?.axis) Object.assign(x.axis, {values: found.names.map(([at]) => at), labelExpr: `${JSON.stringify(names)}[datum.value]`});
    });
    return {node: el("section", {}, el("h2", {}, chart.title), el("p", {class: "axis"}, `over the ${found.axis}`), holder, table(["row", ...found.names.map(([, name]) => name)], cells, chart.title, study)), draw};
  }

  function render(root, query) {
    const all = data("sizes");
    const found = all.find((each) => each.folder === query.get("study")) ?? all.find((each) => each.lines.length) ?? all[0];
    root.append(el("h1", {}, "Over size"));
    if (!found) {
      root.append(el("p", {}, "No study along an axis has been run."));
      return;
    }
    const study = data("measured").studies.find((each) => each.folder === found.folder);
    const made = found.charts.map((chart) => charted(found, chart, study));
    root.append(el("nav", {"aria-label": "Studies"}, el("ul", {class: "tabs"}, ...all.map((each) => el("li", {}, el("a", {href: href("sizes", {study: each.folder}), "aria-current": each === found ? "true" : null}, each.axis))))),
      el("p", {class: "summary"}, study.says), el("div", {class: "panels wide"}, ...made.map((each) => each.node)),
      found.lines.length ? el("h2", {}, "Leads and their slopes") : "",
      found.lines.length ? el("p", {}, "A lead is the loss of the reference less the row's, in nats, with 95 % intervals over seeds. Words are said after Holm's correction.") : "",
      found.lines.length ? table(found.head, found.lines, "Leads and their slopes", study) : "",
      el("p", {}, el("a", {href: href("measured", {study: study.folder, view: study.kinds[0]})}, "All numbers of the study"), ". Command: ", el("code", {}, study.command)));
    for (const each of made) each.draw();
  }

  atlas.page({name: "sizes", title: "Over size", render});
})();
