"use strict";

/** One encoding: its formula, what it declares, what was measured, where it is from and how it is used. */
(() => {
  const {data, el, table, href} = atlas;
  const {rich, math} = words;
  const MANY = 6; // rows of a table before it is folded

  function copied(name, text) {
    const code = el("code", {}, text);
    const said = el("span", {class: "note", role: "status"});
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(text);
        said.textContent = "Copied.";
      } catch { // a page opened from disk may not write to the clipboard: the text is selected instead
        getSelection()?.selectAllChildren(code);
        said.textContent = document.execCommand("copy") ? "Copied." : "Selected: press Ctrl+C.";
      }
    };
    return el("div", {class: "copied"}, el("h3", {}, name), el("pre", {class: "scroll", tabindex: "0", "aria-label": name}, code),
      el("button", {type: "button", "aria-label": `Copy: ${name}`, click: copy}, "Copy"), said);
  }

  function section(title, ...children) {
    return el("section", {}, el("h2", {}, title), ...children);
  }

  function formula(card) {
    const letters = data("cards").letters.map(([letter, meaning]) => el("li", {}, math(letter), ` ${meaning}`));
    const part = (source) => el("div", {class: "scroll", tabindex: "0", role: "math", "aria-label": math(source).getAttribute("alttext")}, math(source));
    return el("div", {class: "formula"}, ...card.formula.map((line) => el("div", {class: "line"}, ...line.map(part))),
      el("details", {}, el("summary", {}, "Letters"), el("ul", {class: "plain"}, ...letters)));
  }

  function declared(card) {
    const {meanings} = data("cards");
    const star = (fact) => (card.by_arguments.includes(fact) ? " (depends on its arguments; as shown here)" : "");
    const rows = [
      ["Acts", card.acts.join(", ") || "nowhere"],
      ["Learns", card.learns],
      ["Position axes", `${card.axes.join(", ")}${star("dimensions")}`],
      ["Relative", `${card.relative ? "yes" : "no"}: ${meanings.relative}${star("relative")}`],
      ...card.needs.map((need) => ["Needs", `${need.replaceAll("_", " ")}: ${meanings[need]}`]),
      ...(card.reach === null ? [] : [["Reach", `${card.reach}: ${meanings.reach}`]]),
    ].map(([name, value]) => el("tr", {}, el("th", {scope: "row"}, name), el("td", {}, ...rich(value))));
    return section("What it declares", el("table", {class: "facts"}, el("tbody", {}, ...rows)),
      el("p", {class: "note"}, "Code: ", el("code", {}, card.module)));
  }

  function scored(card) {
    const command = "python -m experiments.scorecard --out=results/scorecard";
    if (!card.measured) return section("What the scorecard measured", el("p", {}, "Not measured yet: ", el("code", {}, command)));
    const {measures} = data("cards");
    const groups = Map.groupBy(Object.entries(measures), ([, about]) => about.group);
    const shown = [...groups].map(([group, members]) => {
      const cells = members.map(([key, about]) => ({about, cell: card.measured.cells[key]}));
      const applies = cells.filter(({cell}) => cell[0] !== "·");
      const good = applies.filter(({cell}) => cell[0] === "✓").length;
      const rows = cells.map(({about, cell: [mark, value, note]}) => [about.title, `${WORDS[mark]} ${value}`, [about.about, ...(note ? [el("span", {class: "note"}, ` (${note})`)] : [])]]);
      return el("details", {}, el("summary", {}, `${group}: ${applies.length ? `${good} of ${applies.length} as an ideal encoding` : "does not apply"}`),
        table(group, ["measure", "found", "what it is"], rows, {first: "td"}));
    });
    return section("What the scorecard measured",
      el("p", {}, "As initialised, of ", el("code", {}, card.measured.spec), ` at ${card.measured.on.join(" × ")} positions. Record: `,
        el("code", {}, "results/scorecard/scorecard.json"), ". Command: ", el("code", {}, command)), ...shown);
  }
  const WORDS = {"✓": "✓ as ideal", "✗": "✗ not", "!": "! handled", "·": "does not apply"};

  function trained(card) {
    if (!card.studied.length) return null;
    const rows = card.studied.map((each) => [
      each.what, each.sign, el("a", {href: href("record", record(each))}, each.text)]);
    return section("What trainings with it gave", el("p", {}, "Differences to no encoding, with intervals over seeds; what is ahead or behind is so after Holm's correction."),
      table("Trainings", ["task", "beside none", "difference"], rows, {first: "td"}));
  }

  function record(each) {
    return {folder: each.folder, table: each.table, metric: each.metric};
  }

  function proof(card) {
    const found = card.golden;
    if (!found) return section("Proof", el("p", {}, "No row in docs/goldens.md."));
    const references = found.references.length
      ? el("p", {}, `Against ${found.references.join("; ")}: the largest error of ${found.comparisons} comparisons is ${found.error}, the bound ${found.bound}.`)
      : el("p", {}, "There is no reference that runs.");
    return section("Proof", el("p", {}, `Against its formula in float64: the largest error of ${found.cases} cases is ${found.formula}.`), references,
      el("p", {class: "note"}, "From docs/goldens.md: ", el("code", {}, "python tests/goldens/table.py")));
  }

  function disagreements(card) {
    if (!card.errata.length) return null;
    return section("Where sources disagree", ...card.errata.map((each) => el("article", {class: "erratum"}, el("h3", {}, ...rich(each.what)),
      el("p", {}, ...rich(each.who), "."), el("p", {}, el("b", {}, "posjax: "), ...rich(each.posjax), "."), el("p", {class: "note"}, "Test: ", ...rich(each.pinned)))),
    el("p", {class: "note"}, "From docs/errata.md."));
  }

  function models(card) {
    const {source, layers} = data("models");
    const used = layers.filter((each) => each.names.includes(card.name));
    if (!used.length) return null;
    const rows = used.map((each) => [each.after, el("code", {}, each.spec), each.layers]);
    const made = table("Models", ["made after", "encoding", "layers"], rows, {first: "td"});
    return section("Models that use it", el("p", {}, `As posjax.from_hf_layers reads the default configurations of ${source}. Each class was made after the checkpoint named here, whose own configuration may differ.`),
      rows.length > MANY ? el("details", {}, el("summary", {}, `${rows.length} rows`), made) : made);
  }

  function source(card) {
    if (!card.citation && !card.arxiv) return el("p", {class: "note"}, "It cites no paper.");
    const paper = card.arxiv ? el("a", {href: `https://arxiv.org/abs/${card.arxiv}`, rel: "noreferrer"}, `arXiv ${card.arxiv}`) : null;
    return el("p", {}, "Paper: ", card.citation ?? "", card.citation && paper ? ", " : "", paper);
  }

  /** Ways to the pages that draw it, as far as they know it. */
  function drawn(card) {
    const {name} = card;
    const pictured = data("landscapes").pictures.some((each) => each.name === name);
    const links = [];
    if (pictured || Object.hasOwn(kinds.KINDS, name)) links.push(["landscape", {name}, "Its logits by query and key"]);
    if (pictured) links.push(["compare", {a: name}, "Beside another encoding"]);
    if (kinds.ROTARY.includes(name)) links.push(["clocks", {kind: name}, "Its wavelengths"]);
    if (card.kind === "frequency scaling" && forms.scalings.includes(name)) links.push(["scaling", {}, "Beside other scalings"]);
    for (const [kind, what] of [["decoder", "decoder"], ["vit", "vision transformer"]]) if (Object.hasOwn(data("trained")[kind], name)) links.push(["trained", {kind, row: name}, `The attention of a small ${what} that was trained with it`]);
    if (!links.length) return null;
    return el("ul", {class: "others"}, ...links.map(([page, query, text]) => el("li", {}, el("a", {href: href(page, query)}, text))));
  }

  function render(root, query) {
    const all = data("cards").cards;
    const card = all.find((each) => each.name === query.get("name"));
    if (!card) {
      root.append(el("h1", {}, "No such encoding"), el("p", {}, el("a", {href: href("map")}, "All encodings")));
      return;
    }
    const family = data("families")[card.family];
    const others = all.filter((each) => each.family === card.family && each !== card).map((each) => el("li", {}, el("a", {href: href("card", {name: each.name})}, each.name)));
    root.append(...[el("h1", {}, card.name),
      el("p", {style: `--family: ${family.color}`}, el("span", {class: "glyph", "aria-hidden": "true"}, family.glyph), ` ${card.kind} of the family `, el("b", {}, card.family), `: ${family.about}`),
      el("p", {class: "summary"}, ...rich(card.summary)), source(card), formula(card), drawn(card),
      section("Use it", copied("In Python", card.python), copied("In a config", card.config), copied("On the command line", card.train), copied("Explained with numbers", card.explain)),
      declared(card), trained(card), scored(card), proof(card), disagreements(card), models(card),
      others.length ? section("Others of its family", el("ul", {class: "others"}, ...others)) : null].filter((each) => each !== null));
  }

  atlas.page({name: "card", title: "An encoding", hidden: true, render});
})();
