"use strict";

/** Which encoding to take: an answer to each situation, what it rests on, and what speaks against it. */
(() => {
  const {data, el, href} = atlas;

  function row(told, label) {
    const study = data("measured").studies.find((each) => each.folder === told.folder);
    const card = study?.rows?.[label]?.card;
    return card ? el("a", {href: href("card", {name: card})}, label) : el("b", {}, label);
  }

  function rows(told, labels) {
    return labels.flatMap((label, index) => [index ? ", " : "", row(told, label)]);
  }

  function evidence(told) {
    return href("record", {folder: told.folder, table: told.table, metric: told.metric});
  }

  function sentences(told) {
    const lead = told.lead === null ? ["Nothing is ahead of ", row(told, told.reference)]
      : [row(told, told.leader), ` leads: `, el("a", {href: evidence(told)}, told.lead), ` than ${told.reference}`, told.separated ? "" : ", which is not settled"];
    const tied = told.tied.filter((label) => !told.behind.includes(label)); // what is worse than the reference is no choice
    return el("div", {}, el("h3", {}, told.what), el("p", {}, ...lead, "."),
      tied.length ? el("p", {}, "Not clearly behind it: ", ...rows(told, tied), ".") : told.tied.length ? null : el("p", {}, "Every other row is behind it."),
      told.behind.length ? el("p", {}, `Worse than ${told.reference}: `, ...rows(told, told.behind), ".") : null);
  }

  function packed() {
    return el("div", {}, el("p", {}, "Take any: behind padding and behind other documents every encoding reads as it does alone. Positions are data here, and each document has its own."),
      el("p", {class: "note"}, "Two of the properties that the tests ask of every encoding, and ", el("code", {}, "posjax check"), " of yours: packed documents are alone, left padding is invisible."));
  }

  function shown(answer) {
    const claims = answer.claims.map((id) => data("measured").claims.find((each) => each.id === id));
    const missing = (answer.missing ?? []).map((each) => el("p", {}, `Not run, and would tell more: ${each.folder}. `, el("code", {}, each.command)));
    return el("article", {class: "answer"}, el("h2", {}, answer.question),
      ...(answer.packed ? [packed()] : answer.told.length ? answer.told.map(sentences) : [el("p", {}, "Our records say nothing of this yet.")]), ...missing,
      claims.length ? el("h3", {}, "What papers say of it, and our verdict") : null,
      claims.length ? el("ul", {}, ...claims.map((each) => el("li", {}, el("a", {href: href("measured", {claim: each.id})}, each.says), ` ${each.verdict}.`))) : null,
      el("h3", {}, "Doubt"), el("p", {}, answer.doubt), answer.regime ? el("p", {class: "note"}, `Rows named here were run with ${answer.regime}.`) : null);
  }

  function render(root, query) {
    const answers = data("which");
    const asked = answers.find((each) => each.title === query.get("for"));
    const link = (each) => el("li", {}, el("a", {href: href("which", {for: each.title}), "aria-current": each === asked ? "true" : null}, each.question));
    root.append(el("h1", {}, "Which one?"), el("p", {}, "Say what you have. The answer names the rows that led in our own trainings, with intervals over seeds, and what the evidence leaves out."),
      el("nav", {"aria-label": "Situations"}, el("ul", {class: "questions"}, ...answers.map(link))));
    root.append(...(asked ? [asked] : answers).map(shown));
  }

  atlas.page({name: "which", title: "Which one?", render});
})();
