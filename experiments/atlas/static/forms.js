"use strict";

/**
 * Closed forms of encodings, as posjax computes them; the tests compare each with posjax to 1e-5 in a browser.
 *
 * Letters as in posjax: q and k are positions of a query and a key, H heads, D channels of a head, C = D/2 pairs of channels,
 * N the trained length, s the factor by which the context grows. Nothing here touches the page.
 */
const forms = (() => {

  const range = (count) => Array.from({length: count}, (_, i) => i);
  const clip = (x, low, high) => Math.min(Math.max(x, low), high);
  const sum = (xs) => xs.reduce((total, x) => total + x, 0);
  const TURN = 2 * Math.PI;

  /** base^(-c / count): radians by which pair c turns for each position. */
  const geometric = (base, count) => range(count).map((c) => base ** (-c / count));

  /** The frequencies of rope, p_rope and hope before any scaling. Pairs that never turn have 0. p_rope has a proportion of pairs that turn; hope stops pairs that do not turn once within `trained`. */
  function frequencies({base, dim, proportion = 1, trained = Infinity}) {
    const count = dim / 2;
    return geometric(base, count).map((w, c) => (c < Math.floor(proportion * count) && TURN / w <= trained ? w : 0));
  }

  // How a share of each frequency is divided by s: by turns in N tokens, or evenly over the channels (YaRN).

  const mixed = (share, factor) => 1 - share + share / factor;

  function byTurns(base, count, factor, trained, most, least) {
    return geometric(base, count).map((w) => mixed(clip((most - (trained * w) / TURN) / (most - least), 0, 1), factor));
  }

  function yarn(base, count, factor, {trained = 1, fast = 32, slow = 1}) {
    const pair = (turns) => (count * Math.log(trained / (TURN * turns))) / Math.log(base);
    const [low, high] = [Math.floor(pair(fast)), Math.ceil(pair(slow))].map((x) => clip(x, 0, 2 * count - 1));
    return range(count).map((c) => mixed(1 - clip((high - c) / Math.max(high - low, 0.001), 0, 1), factor));
  }

  const ntk = (count, factor) => range(count).map((c) => factor ** (-c / (count - 1)));

  const MULTIPLIERS = {
    none: (base, count) => range(count).map(() => 1),
    linear: (base, count, {factor = 1}) => range(count).map(() => 1 / factor),
    ntk: (base, count, {factor = 1}) => ntk(count, factor),
    ntk_by_parts: (base, count, {factor = 1, trained = 1, fast = 32, slow = 1}) => byTurns(base, count, factor, trained, fast, slow),
    llama3: (base, count, {factor = 8, trained = 8192, fast = 4, slow = 1}) => byTurns(base, count, factor, trained, fast, slow),
    yarn: (base, count, s) => yarn(base, count, s.factor ?? 1, s),
    dynamic_ntk: (base, count, {factor = 1, trained = 1, length = 1}) => ntk(count, 1 + factor * Math.max(0, (length - trained) / trained)),
    dynamic_yarn: (base, count, s) => yarn(base, count, Math.max(1, (s.length ?? 1) / (s.trained ?? 1)), s),
    longrope: (base, count, {trained = 1, length = 1, short = [], long = []}) => (length > trained ? long : short).map((x) => 1 / x),
  };

  const multipliers = (base, count, scaling) => MULTIPLIERS[scaling.kind ?? "none"](base, count, scaling);

  /** The attention factor, which multiplies rotated queries and rotated keys: logits by its square. */
  function attentionFactor({kind = "none", factor = 1, trained = 1, length = 1}) {
    if (kind === "yarn") return 0.1 * Math.log(factor) + 1;
    if (kind === "dynamic_yarn") return 0.1 * Math.log(Math.max(1, length / trained)) + 1;
    if (kind === "longrope") return Math.sqrt(1 + Math.log(factor) / Math.log(trained));
    return 1;
  }

  /** Frequencies times multipliers. The series has as many as there are frequencies. */
  function scaled(frequency, base, scaling) {
    const by = multipliers(base, frequency.length, scaling);
    return frequency.map((w, c) => w * by[c]);
  }

  const turns = (frequency, length) => frequency.map((w) => (w * length) / TURN);

  /** Which pairs meet angles that training has not shown: those that did not turn once, and now turn further. `trained` and `now` are frequencies. */
  function newAngles(trained, trainedLength, now, length) {
    const [before, after] = [turns(trained, trainedLength), turns(now, length)];
    return before.map((seen, c) => seen < 1 && after[c] > seen * (1 + 1e-3));
  }

  // Logits of rotary encodings. Content is standard normal in every channel; scaled by D^-1/2 as attention does.

  /** The mean logit of a query and a key of the same content, a distance apart. For independent contents the mean is 0. */
  function rotaryExpected(frequency, dim, distance, factor = 1) {
    const turned = 2 * sum(frequency.map((w) => Math.cos(w * distance))) * factor ** 2;
    return (turned + dim - 2 * frequency.length) / Math.sqrt(dim);
  }

  /** The logit of given content: pairs of channels are (c, c + C), as in layout="half". */
  function rotaryLogit(q, k, frequency, distance, factor = 1) {
    const C = frequency.length;
    const turned = sum(frequency.map((w, c) => {
      const [cos, sin] = [Math.cos(w * distance), Math.sin(w * distance)];
      return cos * (q[c] * k[c] + q[c + C] * k[c + C]) + sin * (q[c] * k[c + C] - q[c + C] * k[c]);
    }));
    const rest = sum(range(q.length - 2 * C).map((i) => q[2 * C + i] * k[2 * C + i]));
    return (factor ** 2 * turned + rest) / Math.sqrt(q.length);
  }

  /** xPos: the mean logit of like content; zeta_c^(distance / scaleBase) damps pair c. */
  function xposExpected({base, dim, scaleBase, gamma}, distance) {
    const C = dim / 2;
    const damped = geometric(base, C).map((w, c) => ((c / C + gamma) / (1 + gamma)) ** (distance / scaleBase) * Math.cos(w * distance));
    return (2 * sum(damped)) / Math.sqrt(dim);
  }

  const sinusoidalProduct = (base, width, distance) => sum(geometric(base, width / 2).map((w) => Math.cos(w * distance)));

  // Biases. An offset is k - q; a distance is not negative.

  /** ALiBi of any number of axes: Euclidean distance. */
  const alibi = (slope, ...offset) => -slope * Math.hypot(...offset);

  const kerple = (kind, p, a, distance) => (kind === "log" ? -p * Math.log(1 + a * distance) : -a * distance ** p);

  /** Head h counts from 0. */
  const sandwich = (h, heads, dim, base, distance) => (heads / (8 * (h + 1))) * sinusoidalProduct(base, dim, distance);

  // Masks: whether a query sees a key, beside causality.

  const MASKS = {
    none: () => true,
    window: (q, k, {size}) => Math.abs(q - k) < size,
    dilated: (q, k, {size, dilation}) => Math.abs(q - k) <= (size - 1) * dilation && (q - k) % dilation === 0,
    chunked: (q, k, {size}) => Math.floor(k / size) === Math.floor(q / size),
    longformer: (q, k, {window, num_global}) => Math.abs(q - k) <= window / 2 || k < num_global || q < num_global,
    sinks: (q, k, {num_sinks, window}) => Math.abs(q - k) < window || k < num_sinks,
    streaming: (q, k, {num_sinks, window}) => Math.abs(q - k) < window || k < num_sinks,
  };

  const seen = (kind, of, q, k) => (MASKS[kind] ?? MASKS.none)(q, k, of);

  // Views: how far apart (q - k) a pair of tokens seems under a position map.

  const VIEWS = {
    none: (q, k) => q - k,
    interpolate: (q, k, {factor}) => (q - k) / factor,
    self_extend: (q, k, {group, window}) => (q - k < window ? q - k
      : Math.floor(q / group) + window - Math.floor(window / group) - Math.floor(k / group)),
    rerope: (q, k, {window, step}) => (Math.abs(q - k) < window ? q - k : step * (q - k) + (1 - step) * window),
    dual_chunk: (q, k, {chunk, local}) => {
      const before = Math.floor(q / chunk) - Math.floor(k / chunk);
      const last = chunk + local - 1;
      const within = q % chunk;
      const at = before === 0 ? within : before === 1 ? Math.min(within + chunk, last) : last;
      return at - (k % chunk);
    },
    streaming: (q, k, {num_sinks, window}) => (k < num_sinks ? Math.min(q, num_sinks + window - 1) : q) - k,
  };

  const apparent = (kind, of, q, k) => (VIEWS[kind] ?? VIEWS.none)(q, k, of);

  // Images. An offset is (row, column), key less query.

  /** The mean logit of like content under axial_rope: each axis has D/4 pairs of channels. */
  const axialExpected = (base, dim, row, column) => (2 * sum(geometric(base, dim / 4).flatMap((w) => [Math.cos(w * row), Math.cos(w * column)]))) / Math.sqrt(dim);

  /** LookHere's bias; null where the head does not look. A view is a slope and two bounds. */
  function lookhere([share, r1, c1, r2, c2], slope, row, column) {
    const inside = c1 * row - r1 * column >= 0 && c2 * row - r2 * column >= 0;
    return inside ? -slope * share * Math.hypot(row, column) : null;
  }

  /** How far apart fit_grid puts a key and a query, subtracted in float32 as posjax does. */
  const fittedApart = (key, query, trained, n) => Math.fround(Math.fround((key * trained) / n) - Math.fround((query * trained) / n));

  return {
    geometric, frequencies, multipliers, attentionFactor, scaled, turns, newAngles, rotaryExpected, rotaryLogit, xposExpected,
    sinusoidalProduct, alibi, kerple, sandwich, seen, apparent, axialExpected, lookhere, fittedApart,
    scalings: Object.keys(MULTIPLIERS),
  };
})();
Object.assign(globalThis, {forms}); // node: require("./forms.js"), then forms
