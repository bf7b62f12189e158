"use strict";

/** Where sources disagree: docs/errata.md, row by row. */
const errata = (() => {
  const {data, el, href} = atlas;

  /** Text with `code` in it, and links to issues named as owner/repository#1. */
  function linked(text) {
    return words.rich(text).flatMap((part) => (typeof part === "string" ? issues(part) : [part]));
  }

  function issues(text) {
    return text.split(/([\w.-]+\/[\w.-]+#\d+)/).map((part, index) => {
      if (index % 2 === 0) return part;
      const [repository, number] = part.split("#");
      return el("a", {href: `https://github.com/${repository}/issues/${number}`, rel: "external"}, part);
    });
  }

  /** What others do, what posjax does, and the test. */
  function facts(row) {
    const cells = [["Who says what", row.who], ["posjax", row.posjax], ["Test", row.pinned]];
    return el("dl", {class: "erratum"}, ...cells.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, ...linked(text))]));
  }

  function render(root, query) {
    const rows = Object.entries(data("errata"));
    root.append(el("h1", {}, "Where sources disagree"),
      el("p", {}, "Papers, their official code and popular ports differ. Each row says who does what, which side posjax takes, and which test holds it there. The rows are those of ", el("code", {}, "docs/errata.md"), "."));
    for (const section of new Set(rows.map(([, row]) => row.section))) {
      root.append(el("h2", {}, section));
      for (const [name, row] of rows.filter(([, each]) => each.section === section)) {
        root.append(el("article", {id: name, class: `bug${query.get("row") === name ? " asked" : ""}`}, el("h3", {}, ...linked(row.what)), facts(row)));
      }
    }
    document.getElementById(query.get("row") ?? "")?.scrollIntoView({block: "center", behavior: "instant"});
  }

  atlas.page({name: "errata", title: "Errata", hidden: true, render});
  return {facts, linked, link: (name, text) => el("a", {href: href("errata", {row: name})}, text)};
})();
