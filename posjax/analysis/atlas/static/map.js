// @ts-check
"use strict";

/** All encodings by family, with filters and a search. */
(() => {
  const {data, el, href} = atlas;

  /** @param {any} card */
  function shown(card) {
    const family = data("families")[card.family];
    return el("li", {style: `--family: ${family.color}`},
      el("a", {href: href("card", {name: card.name})}, el("code", {}, card.name)), ` ${family.glyph} `,
      el("span", {class: "note"}, card.citation ?? ""), el("br"), card.summary);
  }

  /**
   * @param {HTMLElement} root
   * @param {URLSearchParams} query
   */
  function render(root, query) {
    const cards = /** @type {any[]} */ (data("cards"));
    const list = el("ul", {class: "cards"});
    const count = el("p", {class: "note", "aria-live": "polite"});
    const search = el("input", {type: "search", id: "search", value: query.get("search") ?? ""});
    const update = () => {
      const word = search.value.trim().toLowerCase();
      const kept = cards.filter((card) => `${card.name} ${card.summary} ${card.citation ?? ""}`.toLowerCase().includes(word));
      list.replaceChildren(...kept.map(shown));
      count.textContent = `${kept.length} of ${cards.length}`;
    };
    search.addEventListener("input", update);
    root.append(el("h1", {}, "All encodings"), el("div", {class: "filters"}, el("label", {for: "search"}, "Search"), search), count, list);
    update();
  }

  atlas.page({name: "map", title: "Map", render});
})();
