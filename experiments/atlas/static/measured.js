"use strict";

/** What was measured: verdicts on papers, and charts with the numbers behind them; each number leads to its records. */
const measured = (() => {
  const {data, el, href} = atlas;
  const VIEWS = [["verdicts", "Paper verdicts"], ["length", "By length"], ["depth", "Recall by depth"], ["resolution", "By resolution"], ["one", "At the trained size"]];
  const FIRST = ["none", "sinusoidal", "learned", "rope", "alibi", "t5", "fire", "fox"]; // shown at first, where they are there
  const MOST = 8;
  const VERDICTS = ["holds", "fails at this size", "not settled", "not run"];
  const FEW = 12; // claims that are shown unfolded
  const MANY = ["hold", "fail at this size", "are not settled", "have not been run"]; // the same of several claims

  function labelled(words, select) {
    return el("label", {}, words, select);
  }

  function leading(id, values, chosen, to) {
    const go = (event) => { location.hash = to(event.target.value); };
    return el("select", {id, change: go}, ...values.map((value) => el("option", {value, selected: value === chosen}, value)));
  }

  function run(study) {
    const told = study.count === undefined ? [`Not run. `] : [`${study.count} records, at most ${study.cost}, commits ${study.commits.join(", ")}. Records: `, el("code", {}, `results/${study.folder}/results.jsonl`), ". "];
    return el("p", {class: "note"}, study.asks, " ", ...told, "Command: ", el("code", {}, study.command));
  }

  function swatch(row) {
    return el("span", {class: "glyph", "aria-hidden": "true", style: `--family: ${row.color}`}, row.glyph);
  }

  function boxes(study, labels, chosen, update) {
    const box = (label) => el("label", {}, el("input", {type: "checkbox", checked: chosen.has(label), change: (event) => {
      if (event.target.checked) chosen.add(label);
      else chosen.delete(label);
      update();
    }}), swatch(study.rows[label]), label);
    return el("fieldset", {class: "rows"}, el("legend", {}, "Rows"), ...labels.map(box));
  }

  function first(labels) {
    const liked = labels.filter((label) => FIRST.includes(label));
    return new Set([...liked, ...labels.filter((label) => !liked.includes(label))].slice(0, Math.max(MOST, liked.length)));
  }

  function recorded(study, table, metric, label) {
    return href("record", {folder: study.folder, table, metric, row: label});
  }

  function numbers(study, table, metric, shown) {
    const axis = axisOf(study, study.tables[table]);
    const head = ["row", ...shown.at.map((at) => (at === null ? metric : `${at} ${axis}`))];
    const rows = Object.entries(shown.points).map(([label, points]) => [name(study, label),
      ...points.map((each) => (each ? el("a", {href: recorded(study, table, metric, label)}, each.text) : "not finite"))]);
    return el("details", {open: shown.at.length === 1}, el("summary", {}, "The numbers: mean ± half-width of the 95 % interval over seeds; each leads to its records"), atlas.table("The numbers", head, rows));
  }

  /** A row's name, as a way to its card. */
  function name(study, label) {
    const {card} = study.rows[label];
    return card ? el("a", {href: href("card", {name: card})}, label) : label;
  }

  function axisOf(study, table) {
    return table.axis || `${study.text}s`;
  }

  function values(study, table, shown, chosen) {
    const axis = axisOf(study, table);
    return Object.entries(shown.points).filter(([label]) => chosen.has(label)).flatMap(([label, points]) => points.map((each, index) => each && ({
      label, x: shown.at[index] ?? 0, where: shown.at[index] === null ? "the trained size" : `${shown.at[index]} ${axis}`, mean: each.mean,
      low: each.mean - (each.half ?? 0), high: each.mean + (each.half ?? 0), text: each.text, seeds: each.seeds,
      color: study.rows[label].color, dash: study.rows[label].dash, shape: study.rows[label].shape, trained: table.trained ?? 0, reference: label === "none",
    })).filter((each) => each));
  }

  /** The ticks of a chart of lines at what was measured; shares within 0 and 100 %, though an interval may reach beyond. */
  function scaled(spec, made, shown) {
    for (const {encoding: {x, y}} of spec.layer) {
      if (x?.axis) Object.assign(x.axis, {values: shown.at, format: "d", labelOverlap: true});
      if (y?.scale && shown.suffix.includes("%") && made.length) {
        y.scale.domain = [Math.max(0, Math.min(...made.map((each) => each.low))), Math.min(100, Math.max(...made.map((each) => each.high)))];
      }
    }
  }

  /** A chart of dots as high as its rows; the rule at no encoding is the first layer, and left out where that was not run. */
  function stacked(spec, made, count) {
    spec.height = 28 * count;
    if (!made.some((each) => each.reference)) spec.layer = spec.layer.slice(1);
  }

  /** A study's metric as a chart with boxes for its rows, and its numbers. */
  function charted(root, view, study, table, metric) {
    const found = study.tables[table];
    const shown = found.metrics[metric];
    const labels = Object.keys(shown.points);
    const chosen = view === "one" ? new Set(labels) : first(labels);
    const chart = el("div", {class: "chart"});
    const axis = axisOf(study, found);
    const lines = shown.at.length > 1;
    const better = shown.best ? `; ${shown.best} is better` : "";
    const says = () => `${metric}${shown.suffix} of ${[...chosen].join(", ") || "no row"}${lines ? ` over ${shown.at[0]} to ${shown.at.at(-1)} ${axis}` : ""}; the numbers stand in the table below`;
    const update = () => {
      const made = values(study, found, shown, chosen);
      charts.draw(chart, lines ? "lines" : "dots", made, says(), (spec) => (lines ? scaled(spec, made, shown) : stacked(spec, made, chosen.size)));
    };
    root.append(el("p", {class: "axis"}, `${metric}${shown.suffix}${better}${lines ? `, over ${axis}${found.trained ? `; the broken line is the trained size, ${found.trained}` : ""}` : ". Ticks are seeds"}`),
      chart, boxes(study, labels, chosen, update), numbers(study, table, metric, shown));
    update();
  }

  /** Shows the study of a view that the address names, with its select, and the studies that have not been run. */
  function pick(root, view, query, show) {
    const found = data("measured").studies.filter((each) => each.kinds.includes(view));
    const [there, missing] = [true, false].map((has) => found.filter((each) => (each.count !== undefined) === has));
    const study = there.find((each) => each.folder === query.get("study")) ?? there[0];
    if (study) {
      show(study, labelled("Study", leading("study", there.map((each) => each.folder), study.folder, (value) => href("measured", {view, study: value}))));
      root.append(run(study));
    }
    if (!missing.length) return;
    root.append(el("section", {}, el("h2", {}, "Not run"), el("ul", {}, ...missing.map((each) => el("li", {}, el("b", {}, each.folder), `: ${each.asks} `, el("code", {}, each.command))))));
  }

  function byMetric(root, view, query) {
    pick(root, view, query, (study, select) => {
      const of = (table) => Object.keys(study.tables[table].metrics).filter((metric) => study.tables[table].metrics[metric].kind === view);
      const tables = Object.keys(study.tables).filter((table) => of(table).length);
      const table = tables.find((each) => each === query.get("table")) ?? tables[0];
      const metric = of(table).find((each) => each === query.get("metric")) ?? of(table)[0];
      const to = (change) => href("measured", {view, study: study.folder, table, metric, ...change});
      root.append(el("div", {class: "filters"}, select, labelled("Table", leading("table", tables, table, (value) => to({table: value}))),
        labelled("Metric", leading("metric", of(table), metric, (value) => to({metric: value})))));
      charted(root, view, study, table, metric);
    });
  }

  function byDepth(root, query) {
    pick(root, "depth", query, (study, select) => {
      const tasks = Object.keys(study.depth);
      const task = tasks.find((each) => each === query.get("task")) ?? tasks[0];
      const what = query.get("what") ?? "parts of answers";
      const to = (change) => href("measured", {view: "depth", study: study.folder, task, what, ...change});
      root.append(el("div", {class: "filters"}, select, labelled("Task", leading("task", tasks, task, (value) => to({task: value}))),
        labelled("Share of", leading("what", ["parts of answers", "whole answers"], what, (value) => to({what: value})))));
      mapped(root, study, task, what === "whole answers" ? 0 : 1, what);
    });
  }

  /** Maps of what is found by length and depth. `which` is 0 for whole answers, 1 for parts. */
  function mapped(root, study, task, which, what) {
    const rows = study.depth[task];
    const labels = Object.keys(rows);
    const chosen = first(labels);
    const holder = el("div", {class: "chart"});
    const update = () => {
      const cells = labels.filter((label) => chosen.has(label)).flatMap((label) => rows[label].map((cell) => (
        {label, length: cell[0], depth: cell[1], share: cell[2 + which], text: cell[4 + which], where: `length ${cell[0]}, depth ${cell[1]}`})));
      charts.draw(holder, "depth", cells, `${task}: share of ${what} found (%), by length (across) and depth (down), of ${[...chosen].join(", ") || "no row"}; the numbers stand in the table below`,
        (spec) => {
          spec.facet.sort = labels;
          spec.columns = Math.max(1, Math.floor(root.clientWidth / 230));
        });
    };
    const table = Object.keys(study.tables)[0];
    const numbers = labels.flatMap((label) => rows[label].map((cell) => [name(study, label), cell[0], cell[1],
      el("a", {href: recorded(study, table, `${task} ${which ? "accuracy" : "exact match"}`, label)}, cell[4 + which])]));
    root.append(el("p", {class: "axis"}, `${task}: ${what} found (%), by length in ${study.text}s (across) and depth in the window (down), mean over seeds`),
      holder, boxes(study, labels, chosen, update), el("details", {}, el("summary", {}, "The numbers, with 95 % intervals over seeds"), atlas.table("The numbers", ["row", "length", "depth", `${what} (%)`], numbers)));
    update();
  }

  /** A number of ours with links to its records: itself a link where one table has them all. */
  function sourced({text, records}) {
    const link = (each, words) => el("a", {href: href("record", each)}, words);
    if (records.length === 1) return [link(records[0], text)];
    const metrics = new Set(records.map((each) => each.metric)).size > 1;
    return [`${text}, from `, ...records.flatMap((each, index) => [index ? ", " : "", link(each, metrics ? `${each.table} (${each.metric})` : each.table)])];
  }

  function claimed(claim, asked) {
    const ours = claim.ours.map((each) => el("li", {}, `${each.name}: `, ...(each.text ? sourced(each) : ["not run"]), ` (the claim: ${each.asked})`));
    const command = data("measured").studies.find((each) => each.folder === claim.folder)?.command;
    return el("article", {class: `claim ${claim.verdict.replaceAll(" ", "-")}${claim.id === asked ? " asked" : ""}`, id: `claim-${claim.id}`, tabindex: "-1"},
      el("h2", {}, claim.says), el("p", {}, el("b", {}, claim.verdict), claim.p ? ` (${claim.p} after Holm's correction over ${claim.tests} tests)` : ""),
      el("p", {}, "Paper: ", claim.arxiv ? el("a", {href: `https://arxiv.org/abs/${claim.arxiv}`, rel: "noreferrer"}, claim.source) : claim.source, `, ${claim.place}${claim.paper.length ? `: ${claim.paper.join("; ")}` : ""}.`),
      el("p", {}, "Ours:"), el("ul", {}, ...ours), claim.regime ? el("p", {class: "note"}, `Regime: ${claim.regime}.`) : null,
      claim.doubt ? el("p", {}, `Doubt: ${claim.doubt}`) : null,
      claim.tried ? el("p", {}, `Tried: ${claim.tried}`) : null,
      claim.looked.length ? el("p", {}, `Beside it: ${claim.looked.join("; ")}.`) : null,
      claim.remains ? el("p", {}, `Open: ${claim.remains}`) : null,
      el("p", {class: "note"}, claim.id, ". Command: ", el("code", {}, command)));
  }

  /** The claims of a study, folded. */
  function grouped(folder, claims, asked, open) {
    const study = data("measured").studies.find((each) => each.folder === folder);
    const counts = VERDICTS.map((verdict) => [verdict, claims.filter((each) => each.verdict === verdict).length]).filter(([, count]) => count);
    return el("details", {class: "group", open: open || claims.some((each) => each.id === asked)},
      el("summary", {}, el("b", {}, study.title), el("span", {class: "note"}, ` ${counts.map(([verdict, count]) => `${verdict}: ${count}`).join(", ")}`)),
      ...claims.map((each) => claimed(each, asked)));
  }

  function verdicts(root, query) {
    const {claims} = data("measured");
    const chosen = query.get("verdict") ?? "any";
    const counts = VERDICTS.map((verdict, index) => `${claims.filter((each) => each.verdict === verdict).length} ${MANY[index]}`);
    const list = el("div", {});
    const status = el("p", {class: "note", role: "status"});
    const search = el("input", {type: "search", id: "claims", value: query.get("search") ?? ""});
    const select = el("select", {id: "verdict"}, ...["any", ...VERDICTS].map((value) => el("option", {value, selected: value === chosen}, value)));
    const update = () => {
      const word = search.value.trim().toLowerCase();
      const kept = claims.filter((each) => (select.value === "any" || each.verdict === select.value) && `${each.id} ${each.says} ${each.source}`.toLowerCase().includes(word));
      list.replaceChildren(...[...Map.groupBy(kept, (each) => each.folder)].map(([folder, group]) => grouped(folder, group, query.get("claim"), kept.length <= FEW)));
      status.textContent = `${kept.length} of ${claims.length} claims shown.`;
    };
    for (const each of [search, select]) each.addEventListener("input", update);
    root.append(el("p", {}, `${claims.length} claims of papers, judged by our own records: ${counts.join(", ")}. Ours are means over seeds with ${data("measured").level} intervals. A claim holds if ours lies in the range that it says, after Holm's correction over the claims of its study.`),
      el("div", {class: "filters"}, labelled("Verdict", select), labelled("Search", search)), status, list);
    update();
    const asked = document.getElementById(`claim-${query.get("claim")}`);
    if (asked) requestAnimationFrame(() => {
      asked.scrollIntoView({block: "center", behavior: "instant"});
      asked.focus({preventScroll: true});
    });
  }

  function render(root, query) {
    const view = VIEWS.find(([each]) => each === query.get("view"))?.[0] ?? "verdicts";
    const tabs = VIEWS.map(([each, words]) => el("li", {}, el("a", {href: href("measured", {view: each}), "aria-current": each === view ? "true" : null}, words)));
    root.append(el("h1", {}, "Measured"), el("nav", {"aria-label": "What was measured"}, el("ul", {class: "tabs"}, ...tabs)));
    if (view === "verdicts") verdicts(root, query);
    else if (view === "depth") byDepth(root, query);
    else byMetric(root, view, query);
  }

  /** The records behind a number: every seed of a row, or of all rows of a table. */
  function record(root, query) {
    const study = data("measured").studies.find((each) => each.folder === query.get("folder") && each.count !== undefined);
    const own = (of, key) => (of && Object.hasOwn(of, key) ? of[key] : undefined);
    const table = own(study?.tables, query.get("table") ?? "");
    const metric = query.get("metric") ?? "";
    const shown = own(table?.metrics, metric);
    if (!shown) {
      root.append(el("h1", {}, "No such records"), el("p", {}, el("a", {href: href("measured")}, "What was measured")));
      return;
    }
    const row = query.get("row") ?? "";
    const labels = Object.hasOwn(shown.points, row) ? [row] : Object.keys(shown.points);
    const axis = axisOf(study, table);
    const head = ["row", "seed", ...shown.at.map((at) => (at === null ? `${metric}${shown.suffix}` : `${metric}${shown.suffix}, ${at} ${axis}`)), "steps", "parameters", "data", "config", "device", "commit"];
    const rows = labels.flatMap((label) => table.runs[label].map((made, seed) => [name(study, label), made.seed,
      ...shown.points[label].map((each) => (each ? each.seeds[seed] : "not finite")), made.steps, made.parameters, made.data, made.config, made.device, made.commit]));
    root.append(el("h1", {}, `Records of ${query.get("table")}`), run(study),
      el("p", {}, el("a", {href: href("measured", {view: shown.kind, study: study.folder, table: query.get("table") ?? "", metric})}, "The chart"), row ? ", " : null,
        row ? el("a", {href: href("record", {folder: study.folder, table: query.get("table") ?? "", metric})}, "All rows") : null),
      atlas.table("Records", head, rows));
  }

  atlas.page({name: "measured", title: "Measured", render});
  atlas.page({name: "record", title: "Records", hidden: true, render: record});
  return {name, swatch};
})();
