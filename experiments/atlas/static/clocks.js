"use strict";

/** Rotary clocks: each pair of channels is a hand that turns with the position; training shows it some of its dial. */
(() => {
  const {el, href} = atlas;
  const {DEFAULTS, ROTARY, control} = kinds;
  const START = {...DEFAULTS, kind: "rope", dim: 64, trained: 4096, factor: 4, length: 16384, position: 5000};
  const TURN = 2 * Math.PI;
  const GOOD = "#009e73";
  const PART = "#56b4e9";
  const NEW = "#d55e00";

  function ratesOf(state) {
    const more = state.kind === "p_rope" ? {proportion: state.proportion} : state.kind === "hope" ? {trained: state.trained} : {};
    const bare = forms.frequencies({base: state.base, dim: state.dim, ...more});
    return {trained: bare, now: forms.scaled(bare, state.base, {kind: state.scaling, factor: state.factor, trained: state.trained})};
  }

  function specOf(state) {
    const scaling = state.scaling === "none" ? "" : `, scaling=${state.scaling}(factor=${state.factor}${["linear", "ntk"].includes(state.scaling) ? "" : `, original_length=${state.trained}`})`;
    const own = {rope: "", p_rope: `, proportion=${state.proportion}`, hope: `, original_length=${state.trained}`}[state.kind];
    return `${state.kind}(base=${state.base}${own}${scaling})`;
  }

  /** One dial: the arc that training has shown, and the hand at the position. `seen` is in radians. */
  function drawDial(context, x, y, r, {seen, angle, unseen, never}, colors) {
    const up = -Math.PI / 2;
    context.lineWidth = Math.max(2, r / 5);
    context.strokeStyle = live.css(colors.line);
    context.beginPath();
    context.arc(x, y, r, 0, TURN);
    context.stroke();
    if (never) return;
    context.strokeStyle = GOOD;
    context.beginPath();
    context.arc(x, y, r, up, up + Math.min(seen, TURN));
    context.stroke();
    context.strokeStyle = unseen ? NEW : live.css(colors.ink);
    context.lineWidth = unseen ? 3 : 1.5;
    live.straight(context, x, y, x + 0.9 * r * Math.cos(up + angle), y + 0.9 * r * Math.sin(up + angle));
  }

  function dialsOf(state) {
    const {trained, now} = ratesOf(state);
    return now.map((rate, c) => {
      const seen = trained[c] * state.trained;
      const reached = rate * state.position;
      return {seen, angle: reached % TURN, reached, unseen: seen < TURN && reached > seen * (1 + 1e-3), never: rate === 0, wavelength: TURN / rate};
    });
  }

  function summary(state) {
    const {trained, now} = ratesOf(state);
    const full = forms.turns(trained, state.trained).filter((turns) => turns >= 1).length;
    const never = now.filter((rate) => rate === 0).length;
    const unseen = forms.newAngles(trained, state.trained, now, state.length).filter(Boolean).length;
    return {full, never, partial: now.length - full - never, unseen, count: now.length};
  }

  function drawDials(state, context, width, height, colors) {
    const dials = dialsOf(state);
    const columns = Math.min(dials.length, Math.max(4, Math.ceil(Math.sqrt((dials.length * width) / height))));
    const cell = Math.min(width / columns, height / Math.ceil(dials.length / columns));
    dials.forEach((dial, c) => {
      const [x, y] = [((c % columns) + 0.5) * cell, (Math.floor(c / columns) + 0.5) * cell];
      drawDial(context, x, y, 0.36 * cell, dial, colors);
      if (cell < 34) return;
      context.fillStyle = live.css(colors.faint);
      context.font = "10px system-ui, sans-serif";
      context.textAlign = "center";
      context.fillText(String(c), x, y + 0.36 * cell + 11);
    });
    const odd = dials.filter((dial) => dial.unseen).length;
    return `${dials.length} dials, one for each pair of channels, fastest first, at position ${state.position}. ${odd ? `${odd} hands stand` : "No hand stands"} at an angle that training did not show.`;
  }

  function drawWaves(state, context, width, height, colors) {
    const dials = dialsOf(state);
    const turning = dials.map((dial, c) => [c, dial.wavelength]).filter(([, wave]) => Number.isFinite(wave));
    const {trained, now} = ratesOf(state);
    const unseen = forms.newAngles(trained, state.trained, now, state.length);
    const full = turning.filter(([c]) => dials[c].seen >= TURN);
    const partial = turning.filter(([c]) => dials[c].seen < TURN && !unseen[c]);
    const beyond = turning.filter(([c]) => unseen[c]);
    const series = [[GOOD, full], [PART, partial], [NEW, beyond]]
      .map(([color, points]) => ({label: "", color, dash: [0, 9], points, dots: true}));
    const high = Math.max(state.length * 2, ...turning.map(([, wave]) => wave * 1.5));
    live.curves(context, width, height, colors, {series, x: {label: "pair of channels", low: -0.5, high: dials.length - 0.5}, y: {label: "positions for a full turn", low: 4, high, log: true},
      marks: [{at: state.trained, label: "trained length", axis: "y"}, ...(state.length === state.trained ? [] : [{at: state.length, label: "context", axis: "y"}])]});
    return `Wavelength of each pair, on a logarithmic scale. ${full.length} pairs turn fully within the trained length, ${partial.length} turn in part and meet nothing new, ${beyond.length} meet new angles in the context.`;
  }

  function words(state) {
    const {full, never, partial, unseen, count} = summary(state);
    return [el("p", {}, `Within ${live.number(state.trained)} trained positions ${full} of ${count} pairs turn fully, ${partial} turn in part${never ? `, and ${never} never turn` : ""}. `,
      unseen ? el("strong", {}, `In a context of ${live.number(state.length)}, ${unseen} pairs meet angles that training did not show.`)
        : el("strong", {}, `In a context of ${live.number(state.length)} no pair meets an angle that training did not show.`)),
    el("p", {}, "Spec: ", el("code", {}, specOf(state)), ". A decoder's own: ", el("code", {}, `posjax explain --checkpoint=FOLDER --lengths=${state.length}`))];
  }

  function table(state) {
    const {trained, now} = ratesOf(state);
    const [before, after, unseen] = [forms.turns(trained, state.trained), forms.turns(now, state.length), forms.newAngles(trained, state.trained, now, state.length)];
    const rows = now.map((rate, c) => [c, TURN / rate, before[c], after[c]]);
    return atlas.table("Numbers of each pair", ["pair", "positions for a full turn", "turns in training", "turns in the context", "new angles"],
      rows.map((row, c) => [...row.map(live.number), unseen[c] ? "yes" : now[c] ? "no" : "never turns"]), {first: "td", cell: "number"});
  }

  function key() {
    const meanings = [[GOOD, "turned fully in training"], [PART, "turned in part, nothing new in the context"], [NEW, "meets new angles in the context"]];
    return el("ul", {class: "key"}, ...meanings.map(([color, text]) => el("li", {}, el("span", {class: "dot", style: `background: ${color}`}), " ", text)));
  }

  function render(root, query) {
    const state = live.stateOf(START, query);
    const [controls, said] = [el("div", {class: "controls"}), el("div", {"aria-live": "polite"})];
    const numbers = el("div");
    const dials = live.canvas((...of) => drawDials(state, ...of), {height: 300});
    const waves = live.canvas((...of) => drawWaves(state, ...of), {height: 300});
    const draw = () => {
      said.replaceChildren(...words(state));
      numbers.replaceChildren(table(state));
      dials.redraw();
      waves.redraw();
      live.remember("clocks", state, START);
    };
    const rebuild = () => {
      const own = state.kind === "p_rope" ? ["proportion"] : [];
      controls.replaceChildren(...["base", "dim", "trained", "scaling", "factor", ...own].map((name) => control(name, state, draw)),
        live.slider(state, "length", {label: "context", values: live.powers(6, 20)}, draw),
        live.slider(state, "position", {label: "token at", low: 0, high: 131072, step: 8}, draw));
      draw();
    };
    const encoding = live.choice(state, "kind", "Encoding", ROTARY, rebuild);
    root.append(el("h1", {}, "Rotary clocks"),
      el("p", {}, "RoPE gives each pair of channels a hand that turns as the position grows. Green is what training showed of each dial. ",
        "A slow hand shows a part only. In a longer text it reaches angles that the model has never seen: an orange hand. ",
        "A scaling slows hands down. ", el("a", {href: href("scaling", {trained: state.trained})}, "What each scaling does to the hands"), "."),
      said, el("div", {class: "panels"}, el("section", {}, el("h2", {}, "Hands at the position"), dials.node), el("section", {}, el("h2", {}, "Wavelengths"), waves.node, key())),
      el("div", {class: "controls"}, encoding), controls,
      el("details", {}, el("summary", {}, "Turns of each pair, in numbers"), numbers));
    rebuild();
  }

  atlas.page({name: "clocks", title: "Clocks", render});
})();
