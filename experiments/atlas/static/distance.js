"use strict";

/** Biases and kernels against distance, on a logarithmic scale. */
(() => {
  const {data, el, href} = atlas;
  const {KINDS, DEFAULTS, control} = kinds;
  const NAMES = Object.keys(KINDS).filter((name) => KINDS[name].unit === undefined);
  const START = {...DEFAULTS, trained: 1024, dim: 64, shown: "rope,alibi", longest: 65536, lowest: -12};

  /** Whole distances, evenly on a logarithmic scale. */
  function distances(longest) {
    const all = Array.from({length: 400}, (_, i) => Math.round(longest ** (i / 399)));
    return [...new Set(all)];
  }

  /** The encodings that posjax computes for a few tokens: all that have no closed form here. */
  const pictures = () => data("landscapes").pictures.filter((each) => !NAMES.includes(each.name));

  /** The label of an encoding, and its logits by distance: null where a key is not seen, NaN where nothing is computed. */
  function curveOf(name, state) {
    if (NAMES.includes(name)) {
      const at = KINDS[name].make(state);
      const query = Math.max(state.longest, 8 * state.trained) - 1; // it looks back over all distances
      const head = KINDS[name].controls.includes("head") ? `, head ${Math.min(state.head, state.heads)} of ${state.heads}` : "";
      return {label: KINDS[name].spec(state) + head, at: (d) => (d > query ? NaN : at(query, query - d)), far: state.longest};
    }
    const picture = pictures().find((each) => each.name === name);
    return picture ? {label: picture.spec, at: (d) => (d < picture.by_distance.length ? picture.by_distance[d] : NaN), far: picture.by_distance.length - 1} : null;
  }

  function seriesOf(state) {
    const all = [...NAMES, ...pictures().map((each) => each.name)];
    return state.shown.split(",").flatMap((name) => {
      const curve = curveOf(name, state);
      const index = all.indexOf(name);
      return curve ? [{label: curve.label, at: curve.at, color: live.COLORS[index % live.COLORS.length], dash: live.DASHES[(index + Math.floor(index / live.COLORS.length)) % live.DASHES.length],
        points: distances(Math.min(state.longest, curve.far)).map((d) => [d, curve.at(d) ?? NaN])}] : [];
    });
  }

  /** What a key weighs at some distances, beside one next to the query. */
  function table(state, series) {
    const at = [1, 16, state.trained, 2 * state.trained, 8 * state.trained];
    const times = (x) => (Number.isFinite(x) ? ` (×${live.number(Math.exp(x)).replace(/^0$/, "less than 1e-300")})` : "");
    const cell = (each, value) => (value === null ? "not seen" : Number.isNaN(value) ? "–" : `${live.number(value)}${times(value - (each.at(1) ?? NaN))}`);
    return atlas.table("Logits at some distances", ["encoding", ...at.map(live.number)], series.map((each) => [el("code", {}, each.label), ...at.map((d) => cell(each, each.at(d)))]),
      {cell: "number", caption: "Logit at a distance, and in brackets how many times the attention of a key right beside the query"});
  }

  function render(root, query) {
    const state = live.stateOf(START, query);
    let series = [];
    const [controls, key, numbers] = [el("div", {class: "controls"}), el("div"), el("div")];
    const view = live.canvas((context, width, height, colors) => {
      const values = series.flatMap((each) => each.points.map((point) => point[1]));
      const [low, high] = live.extent(values);
      live.curves(context, width, height, colors, {series, x: {label: "distance of key and query (positions)", low: 1, high: state.longest, log: true},
        y: {label: "logit", low: Math.max(low, state.lowest) - 0.5, high: Math.max(high, 0) + 0.5}, marks: [{at: state.trained, label: "trained length"}]});
      return `Logit against distance from 1 to ${state.longest} for ${series.map((each) => each.label).join("; ") || "nothing"}. The table below has the numbers.`;
    }, {height: 380});
    const draw = () => {
      series = seriesOf(state);
      key.replaceChildren(live.key(series));
      numbers.replaceChildren(table(state, series));
      view.redraw();
      live.remember("distance", state, START);
    };
    const rebuild = () => {
      const used = [...new Set(state.shown.split(",").filter((name) => NAMES.includes(name)).flatMap((name) => KINDS[name].controls))];
      controls.replaceChildren(...["trained", ...used.filter((name) => name !== "trained")].map((name) => control(name, state, draw)),
        live.slider(state, "longest", {label: "longest distance", values: live.powers(6, 20)}, draw),
        live.slider(state, "lowest", {label: "lowest logit shown", values: [-100, -50, -25, -12, -6, -3]}, draw));
      draw();
    };
    const box = (name) => live.toggle(state, name, name, rebuild);
    const others = pictures().map((each) => each.name);
    const asked = others.some((name) => state.shown.split(",").includes(name));
    const {length, heads} = data("landscapes");
    root.append(el("h1", {}, "Against distance"),
      el("p", {}, "What an encoding adds to a logit, by how far apart key and query are. For rotations it is the mean logit of like content. ",
        "A logit that is lower by 1 has 0.37 times the attention. ", el("a", {href: href("landscape")}, "The same by query and key"), "."),
      el("fieldset", {class: "controls"}, el("legend", {}, "With sliders, at any distance"), ...NAMES.map(box)),
      el("details", {open: asked}, el("summary", {}, `All ${others.length} others, as posjax computes them`),
        el("p", {class: "note"}, `The last of ${length} tokens looks back, or the first patch of a grid along its row: head 1 of ${heads}, parameters as initialised (random where they start at zero).`),
        el("fieldset", {class: "controls"}, el("legend", {}, "To a distance of a few tokens"), ...others.map(box))),
      view.node, key, controls, numbers);
    rebuild();
  }

  atlas.page({name: "distance", title: "Distance", render});
})();
