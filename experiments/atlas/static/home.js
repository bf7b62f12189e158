// @ts-check
"use strict";

/** The first page: what a positional encoding is, which one to take, a tour, and the ways to code and documents. */
(() => {
  const {data, el, href} = atlas;
  const TOKENS = 24;
  const SHOWN = ["none", "rope", "alibi"];

  /** A step of the tour; names between stars are pages, or words on them. @param {string} text */
  function step(text) {
    return text.split("*").map((part, index) => {
      const page = atlas.titled(part);
      return index % 2 === 0 ? part : page ? el("a", {href: href(page.name)}, part) : el("em", {}, part);
    });
  }

  /** Causal attention of equal words, from the logit of a query and a key. @param {(q: number, k: number) => number|null} at */
  function attention(at) {
    return Array.from({length: TOKENS}, (_, q) => {
      const weights = Array.from({length: q + 1}, (_, k) => Math.exp(at(q, k) ?? -Infinity));
      const sum = weights.reduce((a, b) => a + b);
      return Array.from({length: TOKENS}, (_, k) => (k > q ? null : weights[k] / sum));
    });
  }

  function picture(name) {
    const kind = kinds.KINDS[name];
    const rows = attention(kind ? kind.make({...kinds.DEFAULTS, dim: 16}) : () => 0);
    const view = live.canvas((context, width, height, colors) => {
      live.heat(context, width, height, colors, {rows, range: [0, 0.4], across: "key", down: "query"});
      return `Attention of ${TOKENS} equal words under ${name}. The last one gives itself ${live.number(rows[TOKENS - 1][TOKENS - 1] ?? 0)} and the first one ${live.number(rows[TOKENS - 1][0] ?? 0)}.`;
    }, {height: live.square(1, 1), most: 300});
    return el("section", {}, el("h2", {}, el("a", {href: href("card", {name})}, name)), view.node);
  }

  /** Ways to code, documents and licence. @param {any} about */
  function ways(about) {
    const ways = [...Object.entries(about.urls), ["The positions of a ViT and of a language model", "vit_and_llm.html"],
      ["Audit somebody's positional code", "audit.html"], [`Licence: ${about.license}`, "LICENSE.txt"]];
    return el("ul", {}, ...ways.map(([name, address]) => el("li", {}, el("a", {href: address}, name))));
  }

  function render(root) {
    const about = data("home");
    const {cards} = data("cards");
    const search = el("input", {type: "search", id: "find", placeholder: "2104.09864, sinusoids, linear bias"});
    const find = (/** @type {Event} */ event) => {
      event.preventDefault();
      location.hash = href("map", {search: search.value});
    };
    root.append(el("h1", {}, "Positional encodings"),
      el("p", {class: "summary"}, "Attention compares tokens by their content; by itself it does not know in which order they stand. A positional encoding tells it: it adds a code to each token, rotates queries and keys, or adds a bias to the logits. The choice decides how far a model looks, and what it does with longer texts and larger images than in training."),
      el("div", {class: "panels trio"}, ...SHOWN.map(picture)),
      el("p", {class: "note"}, `Attention among ${TOKENS} equal words, each of which sees itself and the words before it; red is more. Without an encoding all count the same; RoPE and ALiBi look nearby.`),
      el("h2", {}, el("a", {href: href("which")}, "Which one?")),
      el("ul", {class: "questions"}, ...data("which").map((/** @type {any} */ each) => el("li", {}, el("a", {href: href("which", {for: each.title})}, each.question)))),
      el("h2", {}, "Find one"),
      el("form", {class: "filters", role: "search", submit: find}, el("label", {}, `Name, paper or words, among ${cards.length} encodings`, search), el("button", {}, "Search"), el("a", {href: href("map")}, "Map of all")),
      el("h2", {}, "Three questions of a newcomer"),
      ...about.tour.map((/** @type {any} */ each) => el("details", {class: "tour"}, el("summary", {}, each.question), el("ol", {}, ...each.steps.map((/** @type {string} */ text) => el("li", {}, ...step(text)))))),
      el("h2", {}, "Code, documents, licence"), ways(about),
      el("p", {}, "The library: ", el("code", {}, "import posjax as pj"), "; each card has the lines that use its encoding."));
  }

  atlas.page({name: "home", title: "Start", hidden: true, render});
})();
