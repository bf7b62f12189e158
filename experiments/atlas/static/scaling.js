"use strict";

/** The scaling lab: what PI, NTK, YaRN, LongRoPE and Llama 3 do to each frequency, laid over each other. */
(() => {
  const {el, href} = atlas;
  const {control} = kinds;
  const START = {base: 10000, dim: 128, trained: 4096, factor: 8, fast: 32, slow: 1, shown: "linear,ntk,yarn,llama3,longrope", what: "wavelength"};
  const TITLES = {none: "none (RoPE)", linear: "PI (linear)", ntk: "NTK-aware", ntk_by_parts: "NTK by parts", yarn: "YaRN", llama3: "Llama 3", longrope: "LongRoPE", dynamic_ntk: "dynamic NTK", dynamic_yarn: "dynamic YaRN"};
  const TURN = 2 * Math.PI;

  /** LongRoPE's factors are searched for; here they rise evenly from 1 to s, as in the scorecard's example. */
  const longFactors = (state) => Array.from({length: state.dim / 2}, (_, c) => 1 + ((state.factor - 1) * c) / (state.dim / 2 - 1));

  function scalingOf(kind, state) {
    const parts = kind === "llama3" ? {fast: 4, slow: 1} : {fast: state.fast, slow: state.slow};
    return {kind, factor: state.factor, trained: state.trained, length: state.trained * state.factor, short: Array(state.dim / 2).fill(1), long: longFactors(state), ...parts};
  }

  /** Sliders of YaRN's turns. Fewer are slow than fast: the one that is moved moves the other along. */
  function turnsOf(state, draw) {
    const fastest = () => live.slider(state, "fast", {label: "YaRN keeps pairs from (turns)", low: 2, high: 64}, () => {
      state.slow = Math.min(state.slow, state.fast - 1);
      follow(1, slowest());
      draw();
    });
    const slowest = () => live.slider(state, "slow", {label: "and divides them below (turns)", low: 1, high: 16}, () => {
      state.fast = Math.max(state.fast, state.slow + 1);
      follow(0, fastest());
      draw();
    });
    const follow = (index, made) => {
      shown[index].replaceWith(made);
      shown[index] = made;
    };
    const below = slowest();
    state.fast = Math.max(state.fast, state.slow + 1);
    const shown = [fastest(), below];
    return shown;
  }

  const VIEWS = {
    wavelength: {title: "positions for a full turn", log: true, of: (w, by) => TURN / (w * by)},
    multiplier: {title: "multiplier of the frequency", log: false, of: (w, by) => by},
  };

  function seriesOf(state) {
    const frequency = forms.geometric(state.base, state.dim / 2);
    const names = ["none", ...state.shown.split(",").filter((name) => Object.hasOwn(TITLES, name) && name !== "none")];
    return names.map((name) => {
      const scaling = scalingOf(name, state);
      const by = forms.multipliers(state.base, state.dim / 2, scaling);
      const index = forms.scalings.indexOf(name);
      const now = frequency.map((w, c) => w * by[c]);
      return {name, label: TITLES[name], color: name === "none" ? "#8a8a8a" : live.COLORS[(index + 7) % 8], dash: live.DASHES[index % 8], scaling,
        unseen: forms.newAngles(frequency, state.trained, now, state.trained * state.factor).filter(Boolean).length,
        points: frequency.map((w, c) => [c, VIEWS[state.what].of(w, by[c])])};
    });
  }

  function table(state, series) {
    const rows = series.map((each) => {
      const slowed = forms.multipliers(state.base, state.dim / 2, each.scaling);
      const numbers = [slowed[0], slowed.at(-1) ?? 1, slowed.filter((by) => by > 1 - 1e-9).length, each.unseen, forms.attentionFactor(each.scaling) ** 2];
      return [each.label, ...numbers.map(live.number)];
    });
    return atlas.table("What each scaling does", ["scaling", "fastest pair ×", "slowest pair ×", "pairs unchanged", "pairs with new angles", "logits ×"], rows, {cell: "number"});
  }

  function render(root, query) {
    const state = live.stateOf(START, query);
    let series = [];
    const [key, numbers] = [el("div"), el("div")];
    const view = live.canvas((context, width, height, colors) => {
      const {title, log} = VIEWS[state.what];
      const [low, high] = live.extent(series.flatMap((each) => each.points.map((point) => point[1])));
      const length = {at: state.trained, label: "trained length N", axis: "y"};
      const target = {at: state.trained * state.factor, label: `${state.factor} N`, axis: "y"};
      live.curves(context, width, height, colors, {series, x: {label: "pair of channels, fastest first", low: 0, high: state.dim / 2 - 1},
        y: {label: title, low: log ? low : 0, high: log ? high * 1.3 : 1.05, log}, marks: log ? [length, ...(state.factor === 1 ? [] : [target])] : []});
      return `${title} of ${state.dim / 2} pairs of channels under ${series.map((each) => each.label).join(", ")}. The table below has the numbers.`;
    }, {height: 400});
    const draw = () => {
      series = seriesOf(state);
      key.replaceChildren(live.key(series));
      numbers.replaceChildren(table(state, series));
      view.redraw();
      live.remember("scaling", state, START);
    };
    const boxes = Object.keys(TITLES).filter((name) => name !== "none").map((name) => live.toggle(state, name, TITLES[name], draw));
    root.append(el("h1", {}, "Scaling lab"),
      el("p", {}, "A model trained on N positions is to read s times as many. Each scaling makes hands of RoPE slower, so that they meet fewer angles that training did not show. ",
        "PI slows all of them alike, which blurs neighbours. NTK slows the fast ones little; YaRN and Llama 3 leave them alone. ", el("a", {href: href("clocks", {scaling: "yarn", trained: state.trained})}, "See the hands"), "."),
      el("fieldset", {class: "controls"}, el("legend", {}, "Scalings"), ...boxes),
      view.node, key,
      el("div", {class: "controls"}, ...["base", "dim", "trained", "factor"].map((name) => control(name, state, draw)),
        ...turnsOf(state, draw), live.choice(state, "what", "Shown", [["wavelength", "wavelength"], ["multiplier", "multiplier"]], draw)),
      numbers,
      el("p", {class: "note"}, "LongRoPE's factors are searched for and differ between models. Here they rise evenly from 1 to s, as in the scorecard's example. ",
        "Dynamic scalings are shown for a document of s N positions. The attention factor of YaRN and LongRoPE multiplies logits by its square."));
    draw();
  }

  atlas.page({name: "scaling", title: "Scaling", render});
})();
