"use strict";

/** The first page, in two languages: what a positional encoding is, which one to take, a tour, and the ways to code and documents. */
(() => {
  const {data, el, href} = atlas;
  const TOKENS = 24;
  const SHOWN = ["none", "rope", "alibi"];

  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));

  /** A step of the tour; names between stars are pages, or words on them. */
  function step(text) {
    return text.split("*").map((part, index) => {
      const page = atlas.titled(part);
      return index % 2 === 0 ? part : page ? el("a", {href: href(page.name)}, part) : el("em", {}, part);
    });
  }

  /** Causal attention of equal words, from the logit of a query and a key. */
  function attention(at) {
    return Array.from({length: TOKENS}, (_, q) => {
      const weights = Array.from({length: q + 1}, (_, k) => Math.exp(at(q, k) ?? -Infinity));
      const sum = weights.reduce((a, b) => a + b);
      return Array.from({length: TOKENS}, (_, k) => (k > q ? null : weights[k] / sum));
    });
  }

  function picture(name, text) {
    const kind = kinds.KINDS[name];
    const rows = attention(kind ? kind.make({...kinds.DEFAULTS, dim: 16}) : () => 0);
    const view = live.canvas((context, width, height, colors) => {
      live.heat(context, width, height, colors, {rows, range: [0, 0.4], across: "key", down: "query"});
      const last = rows[TOKENS - 1];
      return fill(text.picture, {count: TOKENS, name, own: live.number(last[TOKENS - 1] ?? 0), first: live.number(last[0] ?? 0)});
    }, {height: live.square(1, 1), most: 300});
    return el("section", {}, el("h2", {}, el("a", {href: href("card", {name})}, name)), view.node);
  }

  function ways(about, text, end) {
    const ways = [...Object.entries(about.urls), [text.from_zero, `from_zero${end}.html`], [text.vit_and_llm, `vit_and_llm${end}.html`],
      [text.answers, "answers.html"], [text.audit, "audit.html"], [fill(text.licence, {name: about.license}), "LICENSE.txt"]];
    return el("ul", {}, ...ways.map(([name, address]) => el("li", {}, el("a", {href: address}, name))));
  }

  function render(root, query) {
    const about = data("home"), language = query.get("lang") === "zh" ? "zh" : "en", text = about.words[language];
    const {cards} = data("cards");
    const search = el("input", {type: "search", id: "find", placeholder: "2104.09864, sinusoids, linear bias"});
    const find = (event) => {
      event.preventDefault();
      location.hash = href("map", {search: search.value});
    };
    const question = (each) => el("li", {}, el("a", {href: href("which", {for: each.title})}, text.questions?.[each.question] ?? each.question));
    const [before, after] = text.library.split("{code}");
    root.append(el("div", {lang: language}, el("h1", {}, text.title),
      el("p", {}, language === "en" ? el("a", {href: href("home", {lang: "zh"}), lang: "zh"}, "中文") : el("a", {href: href("home"), lang: "en"}, "English")),
      el("p", {class: "summary"}, text.summary),
      el("div", {class: "panels trio"}, ...SHOWN.map((name) => picture(name, text))),
      el("p", {class: "note"}, fill(text.note, {count: TOKENS})),
      el("h2", {}, el("a", {href: href("which")}, text.which)),
      el("ul", {class: "questions"}, ...data("which").map(question)),
      el("h2", {}, text.find),
      el("form", {class: "filters", role: "search", submit: find}, el("label", {}, fill(text.search, {count: cards.length}), search), el("button", {}, text.go), el("a", {href: href("map")}, text.map)),
      el("h2", {}, text.newcomer),
      ...text.tour.map((each) => el("details", {class: "tour"}, el("summary", {}, each.question), el("ol", {}, ...each.steps.map((words) => el("li", {}, ...step(words)))))),
      el("h2", {}, text.ways), ways(about, text, language === "en" ? "" : ".zh"),
      el("p", {}, before, el("code", {}, "import posjax as pj"), after)));
  }

  atlas.page({name: "home", title: "Start", hidden: true, render});
})();
