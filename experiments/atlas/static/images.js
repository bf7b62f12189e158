"use strict";

/** Images: what the chosen patch sees, on the trained grid and on one of another size, which a model treats in three ways. */
(() => {
  const {data, el} = atlas;
  const START = {name: "axial_rope", height: 6, width: 10, row: 3, column: 3, base: 100, dim: 64, heads: 12, head: 1, fov: "90", slope: 2, p: 1, a: 0.5};

  const [LEAST, MOST] = [2, 24]; // patches of a side

  const headOf = (s) => Math.min(s.head, s.heads) - 1;
  const KINDS = {
    axial_rope: {about: "Axial RoPE gives half of the channels to rows, half to columns. Shown is the mean logit of like content.", unit: "logit", controls: ["base", "dim"],
      spec: (s) => `axial_rope(base=${s.base})`, of: (s) => (r, c) => forms.axialExpected(s.base, s.dim, r, c)},
    alibi: {about: "ALiBi on two axes subtracts a slope times the Euclidean distance.", unit: "logit", controls: ["heads", "head"],
      spec: () => "alibi()", of: (s) => (r, c) => forms.alibi(data("forms").slopes[s.heads][headOf(s)], r, c)},
    lookhere: {about: "LookHere lets each head look one way, and subtracts a slope times the distance.", unit: "logit", controls: ["heads", "head", "fov", "slope"],
      spec: (s) => `lookhere(fov=${s.fov}, slope=${s.slope})`,
      of: (s) => (r, c) => forms.lookhere(data("forms").views[s.fov][s.heads][headOf(s)], s.slope, r, c)},
    kerple: {about: "KERPLE on two axes adds a kernel of the Euclidean distance, here -p ln(1 + a d).", unit: "logit", controls: ["p", "a"],
      spec: () => "kerple()", of: (s) => (r, c) => forms.kerple("log", s.p, s.a, Math.hypot(r, c))},
    sinusoidal: {about: "Sinusoidal codes of rows and columns. Shown is how alike two codes are, their inner product over its greatest value.", unit: "likeness", controls: ["dim"],
      spec: () => "sinusoidal()", of: (s) => (r, c) => (forms.sinusoidalProduct(10000, s.dim / 2, r) + forms.sinusoidalProduct(10000, s.dim / 2, c)) / (s.dim / 2)},
    "learned (resized)": {about: "A learned table has a row for each patch. Shown is how alike two rows are after torch's bicubic resize, where the rows were independent as at the start of training. A trained table adds what it has learned.",
      unit: "likeness", controls: [], spec: () => "learned()"},
  };
  const CONTROLS = {
    base: {label: "base", values: [10, 30, 100, 300, 1000, 10000]}, dim: {label: "channels", values: [16, 32, 64, 96, 128, 256]},
    heads: {label: "number of heads", values: Object.keys(data("forms").views[90]).map(Number)}, head: {label: "head", low: 1, high: 16}, slope: {label: "slope", low: 0.25, high: 4, step: 0.25},
    p: {label: "p", low: 0.1, high: 2, step: 0.1}, a: {label: "a", low: 0.05, high: 2, step: 0.05},
  };

  /** The place in another grid that a patch of the trained grid corresponds to. */
  function patchIn(s, height, width) {
    const at = (p, n) => Math.min(n - 1, Math.floor(((p + 0.5) * n) / s.trained));
    return [at(s.row, height), at(s.column, width)];
  }

  const board = (height, width, value) => Array.from({length: height}, (_, r) => Array.from({length: width}, (_, c) => value(r, c)));

  function livePanels(s) {
    const [qr, qc] = patchIn(s, s.height, s.width);
    const trained = {title: `Trained grid, ${s.trained} × ${s.trained}`, height: s.trained, width: s.trained, at: [s.row, s.column]};
    const other = {height: s.height, width: s.width, at: [qr, qc]};
    const size = `${s.height} × ${s.width}`;
    if (!KINDS[s.name].of) {
      const likeness = (panel) => {
        const [rows, columns] = [panel.height, panel.width].map((side, axis) => data("forms").likeness[side][panel.at[axis]]);
        return {...panel, rows: board(panel.height, panel.width, (r, c) => rows[r] * columns[c])};
      };
      return [likeness(trained), likeness({...other, title: `Resized to ${size}`, about: "The table is resized once. Neighbours share entries where the grid grows."}),
        {...other, title: `Rescaled to ${size}`, refused: "Rows are looked up at whole positions: fit_grid gives fractions. The resize takes its place."},
        {...other, title: `Extrapolated to ${size}`, refused: s.height > s.trained || s.width > s.trained ? "The table has no rows for patches outside the trained grid: posjax refuses." : "A corner of the table is read."}];
    }
    const of = KINDS[s.name].of(s);
    return [{...trained, rows: board(s.trained, s.trained, (r, c) => of(r - s.row, c - s.column))},
      {...other, title: `Resized to ${size}`, refused: "There is no table to resize: see extrapolated."},
      {...other, title: `Rescaled to ${size}`, about: "fit_grid stretches the new grid onto the trained one: far patches stay about as far apart as in training, and distances in between are new.", rows: board(s.height, s.width, (r, c) => of(forms.fittedApart(r, qr, s.trained, s.height), forms.fittedApart(c, qc, s.trained, s.width)))},
      {...other, title: `Extrapolated to ${size}`, about: "Patches keep their spacing: far ones are at distances that training did not show.", rows: board(s.height, s.width, (r, c) => of(r - qr, c - qc))}];
  }

  function storedPanels(s, encoding) {
    const {trained, other} = data("images");
    const whole = {trained: `Trained grid, ${trained.join(" × ")}`, resized: `Resized to ${other.join(" × ")}`, rescaled: `Rescaled to ${other.join(" × ")}`, extrapolated: `Extrapolated to ${other.join(" × ")}`};
    return Object.entries(whole).map(([name, title]) => {
      const [height, width] = name === "trained" ? trained : other;
      const at = name === "trained" ? [s.row, s.column] : patchIn(s, height, width);
      const picture = encoding[name];
      if (picture.refused) return {title, height, width, at, refused: picture.refused};
      const seen = live.decoded(picture)[at[0] * width + at[1]];
      return {title, height, width, at, rows: board(height, width, (r, c) => seen[r * width + c])};
    });
  }

  function boardOf(panel, state, unit, range, chosen) {
    if (panel.refused) return el("section", {}, el("h2", {}, panel.title), el("p", {class: "note"}, panel.refused));
    const {height, width, at, rows} = panel;
    let box = [0, 0, 1, 1];
    const view = live.canvas((context, wide, high, colors) => {
      box = live.heat(context, wide, high, colors, {rows, range, across: "column", down: "row", first: 1});
      const side = box[2] / width;
      context.strokeStyle = live.css(colors.ink);
      context.lineWidth = 3;
      context.strokeRect(box[0] + at[1] * side + 1, box[1] + at[0] * side + 1, side - 2, side - 2);
      const near = rows[at[0]][(at[1] + 1) % width];
      return `${panel.title}: what the patch in row ${at[0] + 1}, column ${at[1] + 1} sees. Itself: ${live.number(rows[at[0]][at[1]])}; the patch to its right: ${near === null ? "not seen" : live.number(near)}; corners: ${[rows[0][0], rows[height - 1][width - 1]].map((x) => (x === null ? "not seen" : live.number(x))).join(" and ")} (${unit}).`;
    }, {height: live.square(height, width), focus: true, most: 420});
    view.node.addEventListener("click", (event) => {
      const [row, column] = live.cellAt(event, box, height, width);
      const back = (p, n) => Math.min(state.trained - 1, Math.floor(((p + 0.5) * state.trained) / n));
      [state.row, state.column] = [back(row, height), back(column, width)];
      chosen(panel.title);
    });
    view.node.addEventListener("keydown", (event) => {
      const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
      if (!step) return;
      event.preventDefault();
      const to = (p) => Math.min(state.trained - 1, Math.max(0, p));
      [state.row, state.column] = [to(state.row + step[0]), to(state.column + step[1])];
      chosen(panel.title);
    });
    return el("section", {}, el("h2", {}, panel.title), view.node, ...(panel.about ? [el("p", {class: "note"}, panel.about)] : []));
  }

  /** The new grid beside the trained one, to be dragged; sliders are the keyboard's way. */
  function sizerOf(state, changed) {
    const view = live.canvas((context, width, height, colors) => {
      const side = width / MOST;
      const [wide, high] = [state.width * side, state.height * side];
      context.fillStyle = live.css(live.blend(colors.paper, colors.ink, 0.12));
      context.fillRect(0, 0, wide, high);
      context.strokeStyle = live.css(colors.line);
      context.lineWidth = 0.5;
      for (let i = 0; i <= MOST; i++) {
        context.strokeRect(i * side, -1, 0, height + 2);
        context.strokeRect(-1, i * side, width + 2, 0);
      }
      context.strokeStyle = context.fillStyle = live.css(colors.ink);
      context.lineWidth = 2;
      context.strokeRect(1, 1, wide - 1, high - 1);
      context.setLineDash([4, 3]);
      context.strokeRect(1, 1, state.trained * side, state.trained * side);
      context.setLineDash([]);
      context.beginPath();
      context.arc(wide, high, 6, 0, 2 * Math.PI);
      context.fill();
      return `The new grid, ${state.height} × ${state.width} patches, over the trained one, ${state.trained} × ${state.trained}.`;
    }, {height: (width) => width, most: 144});
    const follow = (event) => {
      const box = view.node.getBoundingClientRect();
      const cells = (pixels) => Math.min(MOST, Math.max(LEAST, Math.round((pixels / box.width) * MOST)));
      const [height, width] = [cells(event.clientY - box.top), cells(event.clientX - box.left)];
      if (height === state.height && width === state.width) return;
      [state.height, state.width] = [height, width];
      changed();
    };
    view.node.addEventListener("pointerdown", (event) => {
      view.node.setPointerCapture(event.pointerId);
      follow(event);
    });
    view.node.addEventListener("pointermove", (event) => {
      if (view.node.hasPointerCapture(event.pointerId)) follow(event);
    });
    return {node: el("figure", {class: "sizer"}, view.node, el("figcaption", {class: "note"}, "Drag the corner of the new grid. Dashed: the trained one.")), redraw: view.redraw};
  }

  function controlsOf(state, stored, draw) {
    const place = [live.slider(state, "row", {label: "row", low: 0, high: state.trained - 1, show: (x) => String(x + 1)}, draw),
      live.slider(state, "column", {label: "column", low: 0, high: state.trained - 1, show: (x) => String(x + 1)}, draw)];
    if (stored) return place;
    const own = KINDS[state.name].controls.map((name) => (name === "fov" ? live.choice(state, "fov", "field of view", ["180", "90", "45"], draw) : live.slider(state, name, CONTROLS[name], draw)));
    return [...place, live.slider(state, "height", {label: "new height", low: LEAST, high: MOST}, draw), live.slider(state, "width", {label: "new width", low: LEAST, high: MOST}, draw), ...own];
  }

  function render(root, query) {
    const state = {...live.stateOf(START, query), trained: data("forms").trained};
    const stored = data("images").encodings;
    const storedOf = () => (Object.hasOwn(KINDS, state.name) ? null : stored.find((each) => each.name === state.name));
    if (!Object.hasOwn(KINDS, state.name) && !storedOf()) state.name = START.name;
    const [controls, panels, key, words] = [el("div", {class: "controls"}), el("div", {class: "panels"}), el("div"), el("div")];
    const sizer = sizerOf(state, () => {
      controls.replaceChildren(...controlsOf(state, false, () => draw("")));
      draw("");
    });
    const draw = (focused) => {
      const encoding = storedOf();
      const unit = encoding ? "logit" : KINDS[state.name].unit;
      const shown = encoding ? storedPanels(state, encoding) : livePanels(state);
      const range = live.extent(shown.flatMap((panel) => panel.rows?.flat() ?? []));
      panels.replaceChildren(...shown.map((panel) => boardOf(panel, state, unit, range, (title) => {
        controls.replaceChildren(...controlsOf(state, Boolean(encoding), () => draw("")));
        draw(title);
      })));
      sizer.node.hidden = Boolean(encoding);
      sizer.redraw();
      if (focused) [...panels.querySelectorAll("section")].find((each) => each.querySelector("h2")?.textContent === focused)?.querySelector("canvas")?.focus();
      key.replaceChildren(live.legend(range, shown.some((panel) => panel.rows?.flat().includes(null))));
      const spec = encoding ? encoding.spec : KINDS[state.name].spec(state);
      words.replaceChildren(el("p", {}, encoding ? `${encoding.summary} Computed by posjax with parameters as initialised (random where they start at zero): the mean logit of a few words with themselves.` : KINDS[state.name].about),
        el("p", {}, ...live.card(state.name), "Spec: ", el("code", {}, spec),
          ...(shown[2].refused ? [] : [", or rescaled ", el("code", {}, `fit_grid(height=${state.trained}, width=${state.trained}) >> ${spec}`)]), ". With all numbers: ", el("code", {}, `posjax explain "${spec}" --grid=${state.height}x${state.width}`)));
      live.remember("images", state, START);
    };
    const rebuild = () => {
      if (storedOf()) [state.height, state.width] = data("images").other;
      controls.replaceChildren(...controlsOf(state, Boolean(storedOf()), () => draw("")));
      draw("");
    };
    const names = {"with sliders": Object.keys(KINDS), "as posjax computes it": stored.map((each) => each.name)};
    root.append(el("h1", {}, "What a patch sees"),
      el("p", {}, "Choose a patch: click it, or use the arrow keys. The first picture is the trained grid. The others are a grid of another size, treated in three ways: its table is resized, its positions are rescaled, or they are extrapolated."),
      el("div", {class: "controls"}, live.grouped(state, "name", names, rebuild)), el("div", {class: "sized"}, controls, sizer.node), key, panels, words);
    rebuild();
  }

  atlas.page({name: "images", title: "Images", render});
})();
