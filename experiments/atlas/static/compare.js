"use strict";

/** A against B: what sets two encodings apart, in numbers that posjax computed when the site was made. */
(() => {
  const {data, el, href} = atlas;
  const START = {a: "rope", b: "alibi"};

  const shown = (x, unit = "") => (x === null || x === undefined ? "nothing that far out" : `${typeof x === "string" ? x : live.number(x)}${unit}`);

  /** The numbers of this page: title, what it is, and the cell of a row. */
  function facts(about) {
    const none = about.pictures.find((each) => each.name === "none");
    return [
      ["Shift invariance", `largest change of a logit as all tokens move to position ${about.far.toLocaleString("en")}, over the standard deviation of logits; 0 is relative`, (row) => shown(row.shift)],
      ["Error of bfloat16 positions", `largest change of a logit at position ${about.far.toLocaleString("en")} as positions are rounded to bfloat16, over the same`, (row) => shown(row.bf16)],
      ["Collisions", "pairs of places whose queries attend alike, where all tokens are one word", (row) => shown(row.same, " %")],
      ["Cost: operations", `of computing the logits of ${about.length} tokens (a grid: 49 patches), times those without an encoding`, (row) => (row.operations === null ? "not known" : `× ${live.number(row.operations / none.operations)}`)],
      ["Cost: learned numbers", `in a layer of ${about.heads} heads with 32 channels, tables for ${8 * about.length} places`, (row) => row.parameters.toLocaleString("en")],
    ];
  }

  const MEASURES = {U_coll: "pairs of places closer than 0.001 of the norm (%)", U_coll_bf16: "the same far out, in bfloat16 (%)",
    X_range: "logits at new distances outside the known range (share)", X_mass: "attention of the last query to new distances (share)", X_ent: "entropy of attention, times that at the known length",
    X_phase: "rotations that do not finish a turn (share)", rho_same: "rank correlation of logit and distance"};

  const judged = (cell) => (!cell ? "not measured" : cell.value === null ? "does not apply" : `${live.number(Number(cell.value))} ${{pass: "✓", fail: "✗", handled: "!"}[cell.verdict] ?? ""}`);

  function numbers(about, a, b) {
    const own = facts(about).map(([title, text, of]) => [title, text, of(a), of(b)]);
    const measured = [a, b].some((row) => Object.keys(row.measures).length);
    const scored = !measured ? [] : Object.entries(MEASURES).map(([name, text]) => [`Scorecard: ${name}`, text, judged(a.measures[name]), judged(b.measures[name])]);
    return atlas.table("A against B", ["measure", `A: ${a.name}`, `B: ${b.name}`],
      [...own, ...scored].map(([title, text, x, y]) => [[title, el("div", {class: "note"}, text)], x, y]), {table: "facts", cell: "number"});
  }

  /** The encodings that are the same here, and the nearest others. */
  function neighbours(about, at, letter) {
    const others = about.pictures.map((each, i) => [each.name, about.apart[at][i]]).filter(([, apart], i) => i !== at && apart !== null);
    const same = others.filter(([, apart]) => apart === 0).map(([name]) => name);
    const near = others.filter(([, apart]) => apart > 0).sort((x, y) => x[1] - y[1]).slice(0, 5);
    return el("div", {},
      same.length ? el("p", {}, `The same as ${letter} on these ${about.pictures[at].grid ? "patches" : `${about.length} tokens, the trained length`}: ${same.join(", ")}. They part elsewhere: in longer texts, on packed rows, on other axes, in values or in training.`) : null,
      el("p", {}, `Nearest to ${letter}: ${near.map(([name, apart]) => `${name} (${live.number(apart / 10)} %)`).join(", ")}.`));
  }

  function picture(row) {
    const rows = live.decoded(row).map((values, i) => values.map((value, j) => (!row.grid && j > i ? null : value)));
    const range = live.extent(rows.flat());
    const view = live.canvas((context, width, height, colors) => {
      live.heat(context, width, height, colors, {rows, range, ...live.axes(row)});
      return `Logits of ${row.name} between ${row.size} queries (rows) and keys (columns), one word everywhere, from ${live.number(range[0])} to ${live.number(range[1])}.`;
    }, {height: live.square(1, 1), most: 380});
    return el("section", {}, el("h2", {}, row.name), view.node, live.legend(range, true), el("p", {class: "note"}, row.summary), el("p", {}, ...live.card(row.name), el("code", {}, row.spec)));
  }

  function verdict(about, i, j) {
    const apart = about.apart[i][j];
    if (apart === null) return el("p", {}, "One of them takes a line of tokens, the other a grid only: their attention cannot be laid over each other.");
    const moved = apart ? `${live.number(apart / 10)} % of the attention goes to other keys under B than under A` : `Here B is the same as A: no attention goes to other keys`;
    return el("div", {}, el("p", {}, el("strong", {}, moved), " (random words and projections, seed 0, mean over heads and queries)."),
      neighbours(about, i, "A"), neighbours(about, j, "B"));
  }

  function render(root, query) {
    const state = live.stateOf(START, query);
    const about = data("landscapes");
    const names = about.pictures.map((each) => each.name);
    const index = (name, other) => names.indexOf(names.includes(name) ? name : other);
    const [said, panels, table, more] = [el("div", {"aria-live": "polite"}), el("div", {class: "panels"}), el("div"), el("div")];
    const draw = () => {
      const [i, j] = [index(state.a, START.a), index(state.b, START.b)];
      const [a, b] = [about.pictures[i], about.pictures[j]];
      said.replaceChildren(verdict(about, i, j));
      panels.replaceChildren(picture(a), picture(b));
      table.replaceChildren(numbers(about, a, b));
      more.replaceChildren(el("p", {}, "Any other two, compositions and patterns over layers included: ",
        el("code", {}, `python -m experiments.atlas --out=site --compare "rope() + alibi()" "rope, rope, none"`), " writes them into this page. Of a pattern over layers the pictures are means, and the worst layer counts."),
        el("p", {}, "Scorecard measures are those of ", el("code", {}, "results/scorecard/scorecard.json"), ` on ${about.scored} tokens. Of others: `, el("code", {}, `python -m experiments.scorecard "${a.spec}" "${b.spec}" --out=runs/two`)));
      more.append(...Object.entries(about.refused).map(([name, why]) => el("p", {class: "note"}, `Left out: ${name}. ${why}`)));
      live.remember("compare", state, START);
    };
    const options = () => [...names].sort((x, y) => Number(about.own.includes(y)) - Number(about.own.includes(x)) || x.localeCompare(y));
    [state.a, state.b] = [names[index(state.a, START.a)], names[index(state.b, START.b)]];
    root.append(el("h1", {}, "A against B"),
      el("p", {}, "Two encodings on the same tokens: how much of the attention they move, and what sets them apart. ", el("a", {href: href("landscape")}, "Pictures with sliders"), "."),
      el("div", {class: "controls"}, live.choice(state, "a", "A", options(), draw), live.choice(state, "b", "B", options(), draw)), said, panels, table, more);
    draw();
  }

  atlas.page({name: "compare", title: "A against B", render});
})();
