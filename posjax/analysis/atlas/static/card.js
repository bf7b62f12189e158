// @ts-check
"use strict";

/** One encoding: what it is, what it declares, how it is written. */
(() => {
  const {data, el, href} = atlas;

  /**
   * @param {HTMLElement} root
   * @param {URLSearchParams} query
   */
  function render(root, query) {
    const card = data("cards").find((/** @type {any} */ each) => each.name === query.get("name"));
    if (!card) {
      root.append(el("h1", {}, "No such encoding"), el("p", {}, el("a", {href: href("map")}, "All encodings")));
      return;
    }
    const facts = [["spec", card.spec], ["acts", card.hooks.join(", ")], ["axes", card.axes.join(", ")]];
    root.append(el("h1", {}, card.name), el("p", {}, card.summary),
      el("table", {}, el("tbody", {}, ...facts.map(([name, value]) => el("tr", {}, el("th", {scope: "row"}, name), el("td", {}, el("code", {}, value)))))));
  }

  atlas.page({name: "card", title: "An encoding", hidden: true, render});
})();
