"use strict";

/**
 * Encodings whose logits the page computes itself, from `forms`, as sliders ask. Each kind has its controls, its spec in
 * posjax's own text for what the sliders say, and `make(state)`: the logit of a query and a key, null where it is not seen.
 */
const kinds = (() => {
  const {data} = atlas;
  const {powers, slider, choice} = live;

  const DEFAULTS = {
    base: 10000, dim: 64, scaling: "none", factor: 4, trained: 128, proportion: 0.75, heads: 8, head: 1, scaleBase: 512, gamma: 0.4,
    kernel: "log", p: 1, a: 0.5, buckets: 32, most: 128, size: 32, dilation: 2, sinks: 4, group: 4, content: "like", draw: 1, step: 0, chunk: 96, local: 16, global: 1,
  };
  const BASES = [10, 100, 1000, 5000, 10000, 50000, 100000, 500000, 1000000, 10000000];
  const CONTROLS = {
    base: {label: "base", values: BASES},
    dim: {label: "head channels", values: [8, 16, 32, 64, 96, 128, 256]},
    scaling: {label: "scaling", options: ["none", "linear", "ntk", "ntk_by_parts", "llama3", "yarn"]},
    content: {label: "content", options: [["like", "like: mean"], ["drawn", "drawn pair"]]},
    draw: {label: "draw", low: 1, high: 20},
    factor: {label: "context grows by", values: [1, 1.5, 2, 3, 4, 6, 8, 16, 32, 64]},
    trained: {label: "trained length", values: powers(4, 17)},
    proportion: {label: "share of the pairs that turn", low: 0, high: 1, step: 0.05},
    heads: {label: "number of heads", values: Object.keys(data("forms").slopes).map(Number)},
    head: {label: "head", low: 1, high: 32},
    scaleBase: {label: "scale base", values: powers(5, 12)},
    gamma: {label: "gamma", low: 0.05, high: 1, step: 0.05},
    kernel: {label: "kernel", options: ["log", "power"]},
    p: {label: "p", low: 0.05, high: 2, step: 0.05},
    a: {label: "a", low: 0.01, high: 2, step: 0.01},
    buckets: {label: "buckets", values: [8, 16, 32, 64]},
    most: {label: "largest distance told apart", values: [64, 128, 256]},
    size: {label: "size of the window", values: [2, 4, 8, 16, 24, 32, 48, 64, 96, 128]},
    dilation: {label: "dilation", low: 1, high: 8},
    sinks: {label: "sinks", low: 0, high: 16},
    group: {label: "positions in a group", values: [2, 4, 8, 16]},
    step: {label: "step beyond the window", values: [0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]},
    chunk: {label: "chunk", values: [16, 32, 48, 64, 96, 128]},
    local: {label: "exact distances across chunks", values: [1, 4, 8, 16]},
    global: {label: "global tokens", low: 0, high: 8},
  };

  const ROTARY = ["rope", "p_rope", "hope"]; // whose frequencies the page computes

  /** Head h of H, from 1, and not beyond them. */
  const headOf = (s) => Math.min(s.head, s.heads) - 1;
  function once(f) {
    const known = new Map();
    return (d) => {
      let value = known.get(d);
      if (value === undefined) known.set(d, (value = f(d)));
      return value;
    };
  }
  /** The logit of a query and a key from that of their distance, or of its size. */
  const between = (at, away = (d) => d) => (q, k) => at(away(q - k));

  function scalingText(s) {
    if (s.scaling === "none") return "";
    const trained = ["linear", "ntk"].includes(s.scaling) ? "" : `, original_length=${s.trained}`;
    return `scaling=${s.scaling}(factor=${s.factor}${trained})`;
  }

  const ropeText = (s, ...more) => `rope(${[`base=${s.base}`, ...more].filter(Boolean).join(", ")})`;

  /** Standard normal numbers of a seed: mulberry32, then Box and Muller. */
  function normals(count, seed) {
    let state = Math.imul(seed, 0x9e3779b9);
    const uniform = () => {
      state = (state + 0x6d2b79f5) | 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 4294967296;
    };
    return Array.from({length: count}, () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
  }

  /** The logit of the content by distance (query less key), under scaled frequencies: the mean of like content, or one drawn pair. */
  function rotary(s, rotary = {}) {
    const scaling = {kind: s.scaling, factor: s.factor, trained: s.trained};
    const bare = forms.frequencies({base: s.base, dim: s.dim, ...rotary});
    const frequency = forms.scaled(bare, s.base, scaling);
    const factor = forms.attentionFactor(scaling);
    if (s.content === "like") return once((d) => forms.rotaryExpected(frequency, s.dim, d, factor));
    const [q, k] = [normals(s.dim, 2 * s.draw), normals(s.dim, 2 * s.draw + 1)];
    return once((d) => forms.rotaryLogit(q, k, frequency, d, factor));
  }

  /** rope under a mask (+) or seen through a position map (>>). `of` gives its arguments as posjax names them. */
  function hosting(name, joint, about, controls, of) {
    return {
      about, controls: [...controls, "base", "dim"],
      spec: (s) => `${name}(${Object.entries(of(s)).map((pair) => pair.join("=")).join(", ")}) ${joint} ${ropeText(s)}`,
      make: (s) => {
        const at = rotary({...s, scaling: "none"});
        return (q, k) => (forms.seen(name, of(s), q, k) ? at(forms.apparent(name, of(s), q, k)) : null);
      },
    };
  }

  const evenDistance = (x) => 2 * Math.ceil(x / 2);
  const LIKE = "Shown is the mean logit of a query and a key of the same random content, or the logit of one drawn query and key.";
  const KINDS = {
    rope: {
      about: `RoPE turns pairs of channels by angles that grow with the position. ${LIKE}`,
      controls: ["base", "dim", "content", "draw", "scaling", "factor", "trained"],
      spec: (s) => ropeText(s, scalingText(s)),
      make: (s) => between(rotary(s)),
    },
    p_rope: {
      about: `p-RoPE stops the slowest pairs of channels. ${LIKE}`, controls: ["proportion", "base", "dim", "content", "draw"],
      spec: (s) => `p_rope(base=${s.base}, proportion=${s.proportion})`,
      make: (s) => between(rotary({...s, scaling: "none"}, {proportion: s.proportion})),
    },
    hope: {
      about: `HoPE stops the pairs that do not turn once within the trained length. ${LIKE}`, controls: ["trained", "base", "dim", "content", "draw"],
      spec: (s) => `hope(original_length=${s.trained}, base=${s.base})`,
      make: (s) => between(rotary({...s, scaling: "none"}, {trained: s.trained})),
    },
    xpos: {
      about: `xPos is RoPE whose pairs of channels also fade with the distance. It is made for causal models. ${LIKE}`,
      controls: ["scaleBase", "gamma", "base", "dim"],
      spec: (s) => `xpos(base=${s.base}, scale_base=${s.scaleBase}, gamma=${s.gamma})`,
      make: (s) => between(once((d) => forms.xposExpected({base: s.base, dim: s.dim, scaleBase: s.scaleBase, gamma: s.gamma}, d))),
    },
    alibi: {
      about: "ALiBi subtracts a slope times the distance from the logit. Each head has its own slope.", controls: ["heads", "head"],
      spec: () => "alibi()",
      make: (s) => {
        const slope = data("forms").slopes[s.heads][headOf(s)];
        return (q, k) => forms.alibi(slope, q - k);
      },
    },
    kerple: {
      about: "KERPLE adds a kernel of the distance, with a learned p and a learned a for each head.", controls: ["kernel", "p", "a"],
      spec: (s) => `kerple(kind='${s.kernel}')`,
      make: (s) => (q, k) => forms.kerple(s.kernel, s.kernel === "power" ? Math.min(s.p, 1.99) : s.p, s.a, Math.abs(q - k)),
    },
    sandwich: {
      about: "Sandwich adds the inner product of two sinusoidal codes of 128 channels, less of it in later heads.",
      controls: ["heads", "head", "base"], spec: (s) => `sandwich(base=${s.base})`,
      make: (s) => between(once((d) => forms.sandwich(headOf(s), s.heads, 128, s.base, d)), Math.abs),
    },
    sinusoidal: {
      about: "Shown is the inner product of two sinusoidal codes, which tokens carry into the first layer. Learned projections stand between it and a logit.",
      unit: "inner product", controls: ["dim", "base"], spec: (s) => `sinusoidal(base=${s.base})`,
      make: (s) => between(once((d) => forms.sinusoidalProduct(s.base, s.dim, d)), Math.abs),
    },
    t5: {
      about: "T5 learns one bias for each head and bucket of distances. Shown is the number of the bucket; far distances share the last one.",
      unit: "bucket", controls: ["buckets", "most"],
      spec: (s) => `t5(num_buckets=${s.buckets}, max_distance=${s.most}, bidirectional=False)`,
      make: (s) => {
        const buckets = data("forms").buckets[`${s.buckets},${s.most}`];
        return (q, k) => buckets[Math.min(Math.max(q - k, 0), s.most)];
      },
    },
    interpolate: hosting("interpolate", ">>", "Position interpolation divides all positions by a factor.", ["factor"], (s) => ({factor: s.factor})),
    self_extend: hosting("self_extend", ">>", "Self-Extend sees keys beyond the window in groups, so that they seem nearer.", ["size", "group"],
      (s) => ({group: s.group, window: s.size})),
    rerope: hosting("rerope", ">>", "ReRoPE sees all keys beyond the window at nearly one distance.", ["size", "step"], (s) => ({window: s.size, step: s.step})),
    dual_chunk: hosting("dual_chunk", ">>", "Dual chunk attention counts positions within chunks, and moves queries behind the keys of earlier chunks.", ["chunk", "local"],
      (s) => ({chunk: s.chunk, local: s.local})),
    streaming: hosting("streaming", ">>", "StreamingLLM sees the first tokens and the last ones, as if no gap lay between.", ["sinks", "size"],
      (s) => ({num_sinks: s.sinks, window: s.size})),
    window: hosting("window", "+", "A query sees the nearest keys only; RoPE tells their logits.", ["size"], (s) => ({size: s.size})),
    dilated: hosting("dilated", "+", "A query sees every second, third, ... key near it.", ["size", "dilation"], (s) => ({size: s.size, dilation: s.dilation})),
    chunked: hosting("chunked", "+", "A query sees its own chunk only.", ["size"], (s) => ({size: s.size})),
    longformer: hosting("longformer", "+", "A window, and global tokens that see all and are seen by all.", ["size", "global"],
      (s) => ({window: evenDistance(s.size), num_global: s.global})),
    sinks: hosting("sinks", "+", "A window, and the first tokens, which every query sees.", ["sinks", "size"], (s) => ({num_sinks: s.sinks, window: s.size})),
  };

  function control(name, state, changed) {
    const of = CONTROLS[name];
    if (of.options) return choice(state, name, of.label, of.options, changed);
    return slider(state, name, of, changed);
  }

  return {KINDS, ROTARY, DEFAULTS, control};
})();
