"use strict";

/** The attention of small trained models, by distance in decoders and by direction in vision transformers. */
(() => {
  const {data, el, href} = atlas;
  const LAYERS = ["first layer", "second layer", "third layer"];
  const KINDS = {
    decoder: {title: "Decoders", about: "Each line is a head: its mean attention to the token so many places before, in units of uniform attention: a head that ignores positions gives 1 everywhere. The axis is logarithmic, and what is below 0.01 is drawn there. Three layers of four heads, trained on windows of 128 bytes of Python's documentation.", draw: lines},
    vit: {title: "Vision transformers", about: "Each map is a head of the first layer: its mean attention to patches by their offset from the query, which is the middle, in units of uniform attention. Trained on digits of 8 × 8 pixels, each a token.", draw: maps},
  };

  function lines(name, {heads}) {
    const distances = heads[0][0].length;
    const [low, high] = [0.01, Math.max(...heads.flat(2))];
    const series = heads.flatMap((layer, at) => layer.map((head) => ({label: LAYERS[at], color: live.COLORS[at], dash: live.DASHES[at], points: head.map((y, d) => [d, Math.max(y, low)])})));
    const mean = (at, d) => live.number(heads[at].reduce((sum, head) => sum + head[d], 0) / heads[at].length);
    return [live.canvas((context, width, height, colors) => {
      live.curves(context, width, height, colors, {series, x: {label: "distance (bytes)", low: 0, high: distances - 1}, y: {label: "times uniform", low, high, log: true}});
      return `Attention by distance in the decoder with ${name}. Means of the heads at the token before and ${distances - 1} places back: ${heads.map((layer, at) => `${LAYERS[at]} ${mean(at, 1)} and ${mean(at, distances - 1)}`).join(", ")}.`;
    }, {height: 200, most: 420})];
  }

  /** The heads of a vision transformer, as heat maps around the query. */
  function maps(name, {heads}) {
    return heads.map((rows, at) => {
      const half = (rows.length - 1) / 2;
      const high = Math.max(...rows.flat());
      const [itself, beside, far] = [rows[half][half], rows[half][half + 1], rows[0][0]].map(live.number);
      return live.canvas((context, width, height, colors) => {
        live.heat(context, width, height, colors, {rows, range: [0, high], across: "columns", down: "rows", first: -half});
        return `Head ${at + 1} of the vision transformer with ${name}: ${itself} times uniform attention to the query itself, ${beside} to its right neighbour, ${far} to the opposite corner. Brightest: ${live.number(high)}.`;
      }, {height: live.square(rows.length, rows[0].length), most: 190});
    });
  }

  function render(root, query) {
    const all = data("trained");
    const kind = query.get("kind") === "vit" ? "vit" : "decoder";
    const {title, about, draw} = KINDS[kind];
    const names = new Set(data("cards").cards.map((each) => each.name));
    const made = Object.entries(all[kind]).map(([name, found]) => {
      const views = draw(name, found);
      const folder = `results/trained/${kind}/${name}`;
      const heading = names.has(name) ? el("a", {href: href("card", {name})}, name) : name;
      return {views, node: el("section", {id: name}, el("h2", {}, heading), el("p", {class: "note"}, el("code", {}, found.spec)), el("div", {class: kind === "vit" ? "heads" : ""}, ...views.map((view) => view.node)), el("p", {class: "note"}, el("code", {}, folder)))};
    });
    root.append(el("h1", {}, "Trained"),
      el("p", {}, "The attention of small models that were trained under each encoding. One seed each: this shows what an encoding allows, and not which one is better. ",
        "The models are in the repository, half a megabyte each, and every command takes their folders as checkpoints."),
      el("nav", {"aria-label": "Kinds of models"}, el("ul", {class: "tabs"}, ...Object.entries(KINDS).map(([name, each]) => el("li", {}, el("a", {href: href("trained", {kind: name}), "aria-current": name === kind ? "true" : null}, each.title))))),
      el("p", {}, about), ...(kind === "decoder" ? [live.key(LAYERS.map((label, at) => ({label, color: live.COLORS[at], dash: live.DASHES[at]})))] : []),
      el("div", {class: "panels"}, ...made.map((each) => each.node)),
      el("p", {}, "Command: ", el("code", {}, "python -m experiments.atlas.trained")));
    for (const each of made) for (const view of each.views) view.redraw();
    document.getElementById(query.get("row") ?? "")?.scrollIntoView();
  }

  atlas.page({name: "trained", title: "Trained", render});
})();
