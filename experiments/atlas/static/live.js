"use strict";

/**
 * What the live views share: sliders with their values, pictures of matrices, curves, and colours of the theme.
 *
 * A view has a state, a plain object that its controls change; `draw` shows it and says in words what is seen.
 */
const live = (() => {
  const {el} = atlas;

  // Okabe and Ito's colours, told apart by colour-blind readers; dashes tell curves apart without colour.
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a", "#a06bd6"];
  const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [14, 4], [5, 5], [1, 4], [12, 3, 2, 3, 2, 3]];
  let made = 0;

  function number(x) {
    if (Number.isNaN(x)) return "not a number";
    if (!Number.isFinite(x)) return "never";
    if (x !== 0 && (Math.abs(x) >= 1e6 || Math.abs(x) < 1e-3)) return x.toExponential(1);
    return Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(3)));
  }

  /** A labelled slider over given values, or from low to high in steps; it writes state[key]. */
  function slider(state, key, {label, values, low = 0, high = 1, step = 1, show = number}, changed) {
    const id = `live-${++made}`;
    const output = el("output", {for: id});
    const nearest = () => (values ? values.reduce((best, x, i) => (Math.abs(x - state[key]) < Math.abs(values[best] - state[key]) ? i : best), 0) : state[key]);
    const input = el("input", {type: "range", id, min: values ? 0 : low, max: values ? values.length - 1 : high, step: values ? 1 : step, value: nearest()});
    const read = () => {
      state[key] = values ? values[Number(input.value)] : Number(input.value);
      output.textContent = show(state[key]);
      input.setAttribute("aria-valuetext", show(state[key]));
    };
    input.addEventListener("input", () => {
      read();
      changed();
    });
    read();
    return el("div", {class: "slider"}, el("label", {for: id}, label), output, input);
  }

  /** A labelled choice; options are values, or [value, text]. A state that is none of them becomes the first. */
  function choice(state, key, label, options, changed) {
    const id = `live-${++made}`;
    const pairs = options.map((each) => (Array.isArray(each) ? each : [each, each]));
    if (pairs.length && !pairs.some(([value]) => value === state[key])) state[key] = pairs[0][0];
    const select = el("select", {id, change: () => {
      state[key] = select.value;
      changed();
    }}, ...pairs.map(([value, text]) => el("option", {value, selected: value === String(state[key])}, text)));
    return el("div", {class: "slider"}, el("label", {for: id}, label), select);
  }

  function grouped(state, key, groups, changed) {
    const made = choice(state, key, "Encoding", [], changed);
    made.querySelector("select").append(...Object.entries(groups).map(([label, names]) =>
      el("optgroup", {label}, ...names.map((name) => el("option", {value: name, selected: name === state[key]}, name)))));
    return made;
  }

  function check(state, key, label, changed) {
    const id = `live-${++made}`;
    const input = el("input", {type: "checkbox", id, checked: Boolean(state[key]), change: () => {
      state[key] = input.checked;
      changed();
    }});
    return el("div", {class: "check"}, input, el("label", {for: id}, ...words.breakable(label)));
  }

  /** A box that adds a name to the names in state.shown, with commas between, or takes it out. */
  function toggle(state, name, label, changed) {
    const own = {on: state.shown.split(",").includes(name)};
    return check(own, "on", label, () => {
      const others = state.shown.split(",").filter((each) => each && each !== name);
      state.shown = (own.on ? [...others, name] : others).join(",");
      changed();
    });
  }

  /** Powers of two (or of `base`) from one exponent to another. */
  const powers = (from, to, base = 2) => Array.from({length: to - from + 1}, (_, i) => base ** (from + i));

  /** Colours of the theme as [r, g, b], as they are now. */
  function theme(near) {
    const of = (name) => {
      const probe = el("span", {style: `color: var(--${name})`});
      near.parentElement?.append(probe);
      const found = getComputedStyle(probe).color;
      probe.remove();
      return rgb(found);
    };
    return {paper: of("paper"), ink: of("ink"), faint: of("faint"), line: of("line"), card: of("card")};
  }

  /** The parts of a color as browsers give it, or of #rrggbb. */
  function rgb(color) {
    if (color.startsWith("#")) return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return (color.match(/[\d.]+/g) ?? ["0", "0", "0"]).slice(0, 3).map(Number);
  }

  const css = (color) => `rgb(${color.map(Math.round).join(" ")})`;
  /** Mixes two colors: all of a at share 0, all of b at 1. */
  const blend = (a, b, share) => a.map((x, i) => x + (b[i] - x) * share);
  const dark = (color) => color[0] + color[1] + color[2] < 384;

  /** A canvas that is drawn anew as it changes its size and as the theme changes, and that says what it shows. `draw` returns the text alternative, `most` is its largest width. */
  function canvas(draw, {height = 320, focus = false, most = 1200} = {}) {
    const node = el("canvas", {role: "img", class: "live", style: `max-width: ${most}px`, tabindex: focus ? 0 : null});
    const redraw = () => {
      const width = Math.round(node.clientWidth);
      if (!node.isConnected || !width) return;
      const high = Math.round(typeof height === "function" ? height(width) : height);
      const ratio = devicePixelRatio || 1;
      if (node.width !== Math.round(width * ratio) || node.height !== Math.round(high * ratio)) {
        [node.width, node.height] = [Math.round(width * ratio), Math.round(high * ratio)];
        node.style.height = `${high}px`;
      }
      const context = node.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, high);
      context.font = "13px system-ui, sans-serif";
      node.setAttribute("aria-label", draw(context, width, high, theme(node)));
    };
    new ResizeObserver(redraw).observe(node);
    node.addEventListener("theme", redraw);
    return {node, redraw};
  }

  /** Tells all canvases on the page that the theme has changed. */
  const themeChanged = () => document.querySelectorAll("canvas.live").forEach((node) => node.dispatchEvent(new Event("theme")));
  new MutationObserver(themeChanged).observe(document.documentElement, {attributes: true, attributeFilter: ["style"]});
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);

  const [BLUE, RED] = [[0, 98, 190], [200, 40, 20]];

  /** The colour of a value: blue below 0, red above, paper at 0; where all have one sign, from the low end to the high one. */
  function palette(low, high, colors) {
    const pole = (color) => (dark(colors.paper) ? blend(color, [255, 255, 255], 0.35) : color);
    if (low < 0 && high > 0) {
      const most = Math.max(-low, high);
      return (x) => blend(colors.paper, pole(x < 0 ? BLUE : RED), Math.min(Math.abs(x) / most, 1) ** 0.7);
    }
    const end = pole(high <= 0 && low < 0 ? BLUE : RED);
    const span = high - low || 1;
    return (x) => {
      const share = Math.min(Math.max((x - low) / span, 0), 1);
      return blend(colors.paper, end, low < 0 ? 1 - share : share);
    };
  }

  function extent(values) {
    let [low, high] = [Infinity, -Infinity];
    for (const x of values) {
      if (x === null || !Number.isFinite(x)) continue;
      low = Math.min(low, x);
      high = Math.max(high, x);
    }
    return low <= high ? [low, high] : [0, 1];
  }

  /** A matrix as coloured cells, hidden ones hatched, in a box of the canvas. */
  function cells(context, rows, [x, y, width, height], range, colors) {
    const [high, wide] = [rows.length, rows[0].length];
    const image = new ImageData(wide, high);
    const color = palette(range[0], range[1], colors);
    const hidden = blend(colors.paper, colors.ink, 0.28);
    rows.forEach((row, i) => row.forEach((value, j) => {
      image.data.set([...(value === null ? hidden : color(value)).map(Math.round), 255], 4 * (i * wide + j));
    }));
    const small = el("canvas", {width: wide, height: high});
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, x, y, width, height);
    context.strokeStyle = css(colors.line);
    context.lineWidth = 1;
    context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
  }

  const FRAME = {left: 50, right: 6, top: 4, bottom: 40}; // pixels beside the cells of a heat map

  /** The height of a canvas whose heat map of so many rows and columns has square cells. */
  const square = (rows, columns) => (width) => ((width - FRAME.left - FRAME.right) * rows) / columns + FRAME.top + FRAME.bottom;

  /** A heat map: a matrix with ticks and names on its axes. Gives the box of its cells: x, y, width, height. `first` numbers the first row and column; ticks stand at multiples of `every`. */
  function heat(context, width, height, colors, {rows, range, across, down, first = 0, every = 1}) {
    const side = Math.min((width - FRAME.left - FRAME.right) / rows[0].length, (height - FRAME.top - FRAME.bottom) / rows.length);
    const [x, y, wide, high] = [FRAME.left, FRAME.top, side * rows[0].length, side * rows.length];
    cells(context, rows, [x, y, wide, high], range, colors);
    const at = (count, pixels) => {
      const step = Math.max(1, ...ticks({label: "", low: 0, high: count / every}, pixels / 40).slice(1, 2));
      return Array.from({length: count}, (_, i) => first + i).filter((place) => place % (step * every) === 0);
    };
    context.fillStyle = context.strokeStyle = css(colors.faint);
    context.textAlign = "center";
    for (const t of at(rows[0].length, wide)) {
      const middle = x + (t - first + 0.5) * side;
      context.fillRect(middle, y + high, 1, 4);
      context.fillText(tick(t), middle, y + high + 17);
    }
    context.fillText(`${across} →`, x + wide / 2, y + high + 34);
    context.textAlign = "right";
    for (const t of at(rows.length, high)) {
      const middle = y + (t - first + 0.5) * side;
      context.fillRect(x - 4, middle, 4, 1);
      context.fillText(tick(t), x - 7, middle + 4);
    }
    context.save();
    context.textAlign = "center";
    context.translate(11, y + high / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(`← ${down}`, 0, 0);
    context.restore();
    return [x, y, wide, high];
  }

  /** The cell under a pointer, [row, column]. */
  function cellAt(event, [x, y, wide, high], rows, columns) {
    const {left, top} = event.currentTarget.getBoundingClientRect();
    const at = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
    return [at((event.clientY - top - y) / high, rows), at((event.clientX - left - x) / wide, columns)];
  }

  /** A picture of posjax's as rows; 255 is a key that is not seen. */
  function decoded({size, low, high, cells: packed}) {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const value = (b) => (b === 255 ? null : low + ((high - low) * b) / 254);
    return Array.from({length: size}, (_, i) => Array.from({length: size}, (_, j) => value(bytes[i * size + j])));
  }

  /** The axes of a picture of posjax's: tokens, or patches of a grid, whose rows the ticks count. */
  function axes({grid}) {
    return grid ? {across: "patch as key, row by row", down: "patch as query", every: grid[1]} : {across: "key", down: "query"};
  }

  /** The colours of a range with its ends, as an element. */
  function legend([low, high], unseen) {
    const bar = canvas((context, width, height, colors) => {
      const [color, ramp] = [palette(low, high, colors), context.createLinearGradient(0, 0, width, 0)];
      for (let i = 0; i <= 16; i++) ramp.addColorStop(i / 16, css(color(low + ((high - low) * i) / 16)));
      context.fillStyle = ramp;
      context.fillRect(0, 0, width, height);
      return `Colours from ${number(low)} to ${number(high)}`;
    }, {height: 14, most: 224});
    return el("p", {class: "legend"}, number(low), bar.node, number(high),
      ...(unseen ? [el("span", {class: "unseen"}, el("span", {class: "swatch"}), " not seen")] : []));
  }

  /** A number beside an axis, short: 100k. */
  const tick = (x) => (Math.abs(x) >= 1e6 ? `${x / 1e6}M` : Math.abs(x) >= 1e4 ? `${x / 1e3}k` : number(x));

  function ticks({low, high, log}, count) {
    if (log) {
      const all = powers(Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9), 10);
      return all.filter((_, i) => i % Math.ceil(all.length / count) === 0);
    }
    const rough = (high - low) / count;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough) ?? rough;
    return Array.from({length: Math.floor((high - low) / step) + 2}, (_, i) => (Math.ceil(low / step) + i) * step).filter((t) => t <= high + 1e-9 * step);
  }

  function straight(context, x, y, toX, toY) {
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(toX, toY);
    context.stroke();
  }

  function curves(context, width, height, colors, {series, x, y, marks = []}) {
    const [left, right, top, bottom] = [56, 14, 22, 44];
    const scale = (axis, from, to) => {
      const f = axis.log ? Math.log : (v) => v;
      return (v) => from + ((f(v) - f(axis.low)) / (f(axis.high) - f(axis.low))) * (to - from);
    };
    const [px, py] = [scale(x, left, width - right), scale(y, height - bottom, top)];
    context.lineWidth = 1;
    context.fillStyle = css(colors.faint);
    context.strokeStyle = css(colors.line);
    context.textAlign = "center";
    for (const t of ticks(x, Math.max(3, width / 110))) {
      straight(context, px(t), top, px(t), height - bottom);
      context.fillText(tick(t), px(t), height - bottom + 16);
    }
    context.textAlign = "right";
    for (const t of ticks(y, 6)) {
      straight(context, left, py(t), width - right, py(t));
      context.fillText(tick(t), left - 6, py(t) + 4);
    }
    context.textAlign = "center";
    context.fillText(x.label, (left + width - right) / 2, height - 8);
    context.textAlign = "left";
    context.fillText(y.label, 4, 12);
    context.save();
    context.beginPath();
    context.rect(left, top, width - left - right, height - top - bottom);
    context.clip();
    for (const each of series) drawSeries(context, each, px, py, dark(colors.paper));
    context.restore();
    for (const mark of marks) drawMark(context, mark, px, py, [left, width - right, top, height - bottom], colors);
  }

  function drawSeries(context, series, px, py, onDark) {
    context.strokeStyle = context.fillStyle = css(onDark ? blend(rgb(series.color), [255, 255, 255], 0.3) : rgb(series.color));
    context.lineWidth = 2;
    context.setLineDash(series.dash ?? []);
    context.beginPath();
    series.points.forEach(([a, b], i) => (Number.isFinite(series.points[i - 1]?.[1]) ? context.lineTo(px(a), py(b)) : context.moveTo(px(a), py(b))));
    context.stroke();
    context.setLineDash([]);
    for (const [a, b] of series.dots ? series.points : []) {
      context.beginPath();
      context.arc(px(a), py(b), 2.5, 0, 2 * Math.PI);
      context.fill();
    }
  }

  function drawMark(context, mark, px, py, [left, right, top, bottom], colors) {
    context.strokeStyle = context.fillStyle = css(colors.ink);
    context.lineWidth = 1;
    const level = mark.axis === "y";
    const at = level ? py(mark.at) : px(mark.at);
    const [a, b] = level ? [top, bottom] : [left, right];
    if (at < a - 0.5 || at > b + 0.5) return;
    context.setLineDash([5, 4]);
    straight(context, ...(level ? [left, at, right, at] : [at, top, at, bottom]));
    context.setLineDash([]);
    const wide = context.measureText(mark.label).width;
    if (level) {
      context.textAlign = "left";
      context.fillText(mark.label, left + 6, at - 5 < top + 8 ? at + 14 : at - 5);
    } else {
      context.textAlign = at + wide + 8 > right ? "right" : "left";
      context.fillText(mark.label, context.textAlign === "right" ? at - 5 : at + 5, top + 12);
    }
  }

  function card(name) {
    const known = atlas.data("cards").cards.some((each) => each.name === name);
    return known ? [el("a", {href: atlas.href("card", {name})}, `All about ${name}`), ". "] : [];
  }

  /** What each curve is, beside its colour and dash. */
  function key(series) {
    return el("ul", {class: "key"}, ...series.map((each) => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      line.setAttribute("viewBox", "0 0 34 10");
      line.setAttribute("aria-hidden", "true");
      const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
      stroke.setAttribute("d", "M0 5H34");
      stroke.setAttribute("stroke", each.color);
      stroke.setAttribute("stroke-width", "3");
      stroke.setAttribute("stroke-dasharray", (each.dash ?? []).join(" "));
      line.append(stroke);
      return el("li", {}, line, " ", each.label);
    }));
  }

  /** A state from defaults and the address; what is not a number stays a text. */
  function stateOf(defaults, query) {
    const state = {...defaults};
    for (const [name, value] of query) {
      if (!Object.hasOwn(state, name)) continue;
      if (typeof state[name] === "number") state[name] = Number.isFinite(Number(value)) && value !== "" ? Number(value) : state[name];
      else state[name] = typeof state[name] === "boolean" ? value === "true" : value;
    }
    return state;
  }

  /** Writes what differs from the defaults into the address, so that a view can be sent. */
  function remember(page, state, defaults) {
    const changed = Object.entries(state).filter(([name, value]) => Object.hasOwn(defaults, name) && value !== defaults[name]);
    history.replaceState(null, "", atlas.href(page, Object.fromEntries(changed.map(([name, value]) => [name, String(value)]))));
  }

  return {COLORS, DASHES, number, slider, choice, grouped, check, powers, canvas, heat, square, cellAt, decoded, axes, legend, extent, curves, straight, card, key, css, blend, stateOf, remember, toggle};
})();
