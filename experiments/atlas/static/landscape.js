"use strict";

/** The logit of every query and key as a picture: computed here where there is a closed form, else as posjax has it. */
(() => {
  const {data, el, href} = atlas;
  const {KINDS, DEFAULTS, control} = kinds;
  const START = {...DEFAULTS, name: "rope", length: 128, causal: true, query: 96, key: 32};

  function rowsOf(state, picture) {
    const hide = (i, j) => state.causal && j > i;
    if (picture) return live.decoded(picture).map((row, i) => row.map((x, j) => (hide(i, j) && !picture.grid ? null : x)));
    const at = KINDS[state.name].make(state);
    return Array.from({length: state.length}, (_, i) => Array.from({length: state.length}, (_, j) => (hide(i, j) ? null : at(i, j))));
  }

  function pictureOf(state) {
    return Object.hasOwn(KINDS, state.name) ? null : data("landscapes").pictures.find((each) => each.name === state.name);
  }

  const place = (picture, at) => (picture?.grid ? `(row ${Math.floor(at / picture.grid[1])}, column ${at % picture.grid[1]})` : String(at));

  function reading(state, picture, rows) {
    const [q, k] = [Math.min(state.query, rows.length - 1), Math.min(state.key, rows.length - 1)];
    const unit = picture ? "logit" : KINDS[state.name].unit ?? "logit";
    const value = rows[q][k];
    const said = value === null ? "not seen" : `${unit} ${live.number(value)}`;
    return `Query at ${place(picture, q)}, key at ${place(picture, k)}${picture?.grid ? "" : `, ${Math.abs(q - k)} apart`}: ${said}.`;
  }

  function controlsOf(state, picture, update) {
    const size = picture ? picture.size : state.length;
    const found = picture ? [] : [live.slider(state, "length", {label: "length", values: [16, 32, 64, 96, 128, 192, 256, 384, 512]}, update),
      ...KINDS[state.name].controls.map((name) => control(name, state, update))];
    if (!picture?.grid) found.push(live.check(state, "causal", "causal", update));
    const most = picture ? size - 1 : 511;
    found.push(live.slider(state, "query", {label: "query", low: 0, high: most}, update), live.slider(state, "key", {label: "key", low: 0, high: most}, update));
    return found;
  }

  function about(state, picture) {
    const spec = picture ? picture.spec : KINDS[state.name].spec(state);
    const made = picture
      ? `${picture.summary} Computed by posjax: the mean logit of ${data("landscapes").words} random words with themselves, ${picture.grid ? `on a grid of ${picture.grid.join(" by ")} patches in raster order` : `${picture.size} tokens`}, head 1 of ${data("landscapes").heads}, parameters as initialised (random where they start at zero).`
      : KINDS[state.name].about;
    return [el("p", {}, made), el("p", {}, ...live.card(state.name), "Spec: ", el("code", {}, spec), ". To explain it with all numbers: ", el("code", {}, `posjax explain "${spec}"`))];
  }

  function render(root, query) {
    const state = live.stateOf(START, query);
    const pictures = data("landscapes").pictures.filter((each) => !Object.hasOwn(KINDS, each.name));
    if (!Object.hasOwn(KINDS, state.name) && !pictures.some((each) => each.name === state.name)) state.name = "rope";
    const [controls, words, key] = [el("div", {class: "controls"}), el("div"), el("div")];
    const read = el("p", {"aria-live": "polite"});
    let picture = null;
    let rows = [];
    let box = [0, 0, 1, 1];
    const view = live.canvas((context, width, height, colors) => {
      const range = live.extent(rows.flat());
      box = live.heat(context, width, height, colors, {rows, range, ...live.axes(picture ?? {})});
      const [left, top, wide, high] = box;
      const [x, y] = [left + (state.key + 0.5) * wide / rows.length, top + (state.query + 0.5) * high / rows.length];
      context.strokeStyle = live.css(colors.ink);
      context.setLineDash([3, 3]);
      context.strokeRect(x, top, 0, high);
      context.strokeRect(left, y, wide, 0);
      context.setLineDash([]);
      return `Logits of ${rows.length} queries (rows, downwards) and keys (columns, to the right), from ${live.number(range[0])} to ${live.number(range[1])}. ${reading(state, picture, rows)}`;
    }, {height: live.square(1, 1), most: 620});
    const draw = () => {
      picture = pictureOf(state);
      rows = rowsOf(state, picture);
      key.replaceChildren(live.legend(live.extent(rows.flat()), rows.flat().includes(null)));
      words.replaceChildren(...about(state, picture));
      read.textContent = reading(state, picture, rows);
      view.redraw();
      live.remember("landscape", state, START);
    };
    const rebuild = () => {
      picture = pictureOf(state);
      controls.replaceChildren(...controlsOf(state, picture, draw));
      draw();
    };
    const point = (event) => {
      [state.query, state.key] = live.cellAt(event, box, rows.length, rows.length);
      read.textContent = reading(state, picture, rows);
      view.redraw();
    };
    for (const each of ["pointermove", "pointerdown"]) view.node.addEventListener(each, point);
    const select = live.grouped(state, "name", {"with sliders": Object.keys(KINDS), "as posjax computes it": pictures.map((each) => each.name)}, rebuild);
    root.append(el("h1", {}, "Logit landscape"),
      el("p", {}, "Rows are queries, columns are keys. A logit says how much a query looks at a key before the softmax: blue is less, red is more. ",
        el("a", {href: href("distance")}, "The same by distance"), "."),
      el("div", {class: "controls"}, select),
      el("div", {class: "panels"}, el("section", {}, view.node, key, read), el("section", {}, controls, words)));
    rebuild();
  }

  atlas.page({name: "landscape", title: "Landscape", render});
})();
