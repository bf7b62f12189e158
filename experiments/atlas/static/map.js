"use strict";

/** All encodings by family and year, with filters and a search. */
(() => {
  const {data, el, href} = atlas;
  const CHEAP = 1.1; // of a step without an encoding

  /** The time of a training step over that without an encoding, where it was measured. */
  function ratio(card) {
    return card.studied.find((each) => each.ratio !== undefined)?.ratio;
  }

  /** Filters: name, words, and for each choice what it keeps. */
  const FILTERS = [
    {name: "kind", words: "Kind", choices: () => unique((card) => [card.kind])},
    {name: "axes", words: "Axes", choices: () => [1, 2, 3].map((axes) => [String(axes), `${axes}-D`, (card) => card.axes.includes(axes)])},
    {name: "learned", words: "Learned", choices: () => [
      ["no", "learns nothing", (card) => card.learned === 0], ["yes", "learns something", (card) => card.learned !== 0]]},
    {name: "relative", words: "Relative", choices: () => [
      ["yes", "relative", (card) => card.relative], ["no", "not relative", (card) => !card.relative]]},
    {name: "acts", words: "Acts where", choices: () => unique((card) => card.acts)},
    {name: "cost", words: "Step, measured", choices: () => [
      ["low", `at most ${CHEAP}× none`, (card) => ratio(card) <= CHEAP], ["high", `over ${CHEAP}× none`, (card) => ratio(card) > CHEAP],
      ["unknown", "not measured", (card) => ratio(card) === undefined]]},
  ];

  function unique(of) {
    const found = [...new Set(data("cards").cards.flatMap(of))].sort();
    return found.map((value) => [value, value, (card) => of(card).includes(value)]);
  }

  function searched({name, words: text, citation, arxiv, family, titles}) {
    return [name, text, citation, arxiv, family, ...titles].join(" ");
  }

  function look(card) {
    return data("families")[card.family];
  }

  /** A name in the grid; the glyph alone on a phone. */
  function chip(card) {
    const family = look(card);
    return el("a", {class: "chip", href: href("card", {name: card.name}), style: `--family: ${family.color}`, title: `${card.name}: ${card.summary}`},
      el("span", {class: "glyph", "aria-hidden": "true"}, family.glyph), el("span", {class: "name"}, ...words.breakable(card.name)));
  }

  function listed(card) {
    return el("li", {style: `--family: ${look(card).color}`},
      el("a", {href: href("card", {name: card.name})}, el("code", {}, card.name)), " ",
      el("span", {class: "glyph", "aria-hidden": "true"}, look(card).glyph), " ",
      el("span", {class: "note"}, card.citation ?? ""), el("br"), ...words.rich(card.summary));
  }

  function grid(cards, years) {
    const at = (family, year) => el("td", {}, ...cards.filter((each) => each.family === family && each.year === year).map(chip));
    const families = Object.entries(data("families")).filter(([name]) => data("cards").cards.some((each) => each.family === name));
    const head = el("tr", {}, el("th", {scope: "col"}, "Family"), ...years.map((year) => el("th", {scope: "col"}, el("span", {class: "century"}, String(year).slice(0, 2)), String(year).slice(2))), el("th", {scope: "col"}, el("span", {"aria-hidden": "true"}, "–"), el("span", {class: "hidden"}, "no paper")));
    const rows = families.map(([name, family]) => el("tr", {}, el("th", {scope: "row", style: `--family: ${family.color}`, title: family.about},
      el("span", {class: "glyph", "aria-hidden": "true"}, family.glyph), " ", name), ...[...years, null].map((year) => at(name, year))));
    return el("table", {class: "map"}, el("caption", {class: "hidden"}, "Encodings by family and year of their paper"), el("thead", {}, head), el("tbody", {}, ...rows));
  }

  /** The answers to frequent questions that have the words of a search. */
  function answered(search) {
    const found = search ? data("answers").filter((each) => words.matches(search, [each.question, each.answer, each.words].join(" "))) : [];
    const item = ({question, answer, name}) => el("li", {}, ...words.rich(question), " ", el("a", {href: `${name}.html`}, answer));
    return found.length ? [el("h2", {}, "Answers to questions"), el("ul", {}, ...found.map(item))] : [];
  }

  function render(root, query) {
    const cards = data("cards").cards;
    const years = [...new Set(cards.map((each) => each.year))].filter((year) => year !== null).sort();
    const search = el("input", {type: "search", id: "search", value: query.get("search") ?? ""});
    const choices = FILTERS.map((filter) => ({filter, options: filter.choices()}));
    const selects = choices.map(({filter, options}) => el("select", {id: `filter-${filter.name}`},
      el("option", {value: ""}, "any"), ...options.map(([value, words]) => el("option", {value, selected: query.get(filter.name) === value}, words))));
    const count = el("p", {class: "note", role: "status"});
    const picture = el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Encodings by family and year"});
    const list = el("ul", {class: "cards"});
    const answers = el("div");
    const update = () => {
      const tests = choices.flatMap(({options}, index) => options.filter(([value]) => value === selects[index].value).map((each) => each[2]));
      const kept = cards.filter((card) => words.matches(search.value, searched(card)) && tests.every((test) => test(card)));
      picture.replaceChildren(grid(kept, years));
      list.replaceChildren(...kept.map(listed));
      answers.replaceChildren(...answered(search.value));
      count.textContent = `${kept.length} of ${cards.length} shown.`;
      const told = [["search", search.value], ...FILTERS.map((filter, index) => [filter.name, selects[index].value])].filter(([, value]) => value);
      history.replaceState(null, "", href("map", Object.fromEntries(told)));
    };
    for (const each of [search, ...selects]) each.addEventListener("input", update);
    const clear = el("button", {type: "button", click: () => {
      for (const each of [search, ...selects]) each.value = "";
      update();
    }}, "Clear");
    root.append(el("h1", {}, "Map of positional encodings"),
      el("p", {}, "Each mark is an encoding, a map of positions or a scaling of frequencies. It stands at its family and the year of its paper (in the last column where it cites none), and leads to its card."),
      el("div", {class: "filters"}, el("label", {}, "Search names, papers and words", search),
        ...choices.map(({filter}, index) => el("label", {}, filter.words, selects[index])), clear),
      count, answers, picture, el("h2", {}, "The same as a list"), list);
    update();
  }

  atlas.page({name: "map", title: "Map", render});
})();
