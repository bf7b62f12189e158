"use strict";

/** Published models: the encodings of their layers, and what was measured in some of them. */
(() => {
  const {data, el, href} = atlas;

  function row({after, spec, layers, names}) {
    const cards = names.map((name) => el("a", {href: href("card", {name})}, name));
    return [after, el("code", {}, spec), layers, cards.flatMap((link, at) => (at ? [", ", link] : [link]))];
  }

  /** The study of real models: its finding, its pages, and verdicts on papers. */
  function studied() {
    const {studies, claims} = data("measured");
    const study = studies.find((each) => each.folder === "real_models");
    if (!study) return [];
    const judged = claims.filter((each) => each.folder === study.folder);
    return [el("h2", {}, "Measured in some of them"), el("p", {}, study.says),
      el("ul", {}, ...Object.entries(data("models").pages).map(([name, title]) => el("li", {}, el("a", {href: `${name}.html`}, title)))),
      el("details", {}, el("summary", {}, `${judged.length} claims of papers on published models`), el("ul", {}, ...judged.map((each) => el("li", {}, el("a", {href: href("measured", {claim: each.id})}, each.says), ` ${each.verdict}.`)))),
      el("p", {class: "note"}, "Command: ", el("code", {}, study.command))];
  }

  function render(root, query) {
    const {source, layers} = data("models");
    const search = el("input", {type: "search", id: "model", value: query.get("search") ?? ""});
    const [shown, count] = [el("div"), el("p", {class: "note", role: "status"})];
    const update = () => {
      const kept = layers.filter((each) => words.matches(search.value, `${each.model} ${each.after} ${each.spec}`));
      shown.replaceChildren(atlas.table("Models", ["made after", "encoding", "layers", "cards"], kept.map(row)));
      count.textContent = `${kept.length} of ${layers.length} rows shown.`;
    };
    search.addEventListener("input", update);
    root.append(el("h1", {}, "Published models"), ...studied(), el("h2", {}, "The encodings of their layers"),
      el("p", {}, `As posjax.from_hf_layers reads the default configurations of ${source}. Each class was made after the checkpoint named here, whose own configuration may differ.`),
      el("div", {class: "filters"}, el("label", {}, "Search", search)), count, shown);
    update();
  }

  atlas.page({name: "models", title: "Models", render});
})();
