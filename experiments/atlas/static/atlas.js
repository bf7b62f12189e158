"use strict";

/**
 * What all pages share: data, the list of pages, elements, and the way from an address to a page.
 * A page is {name, title, render(root, query)}: it fills `root` for what stands behind "?" in its address,
 * `#/name?key=value`, and is shown in the menu unless `hidden` is true.
 */
const atlas = (() => {
  const sets = {};
  const pages = [];

  /** Adds a set of data; without a value, gives the one that was added. */
  function data(name, value) {
    if (value !== undefined) sets[name] = value;
    if (!(name in sets)) throw new Error(`no data are named ${name}`);
    return sets[name];
  }

  function page(page) {
    pages.push(page);
  }

  /** An element: el("p", {class: "note"}, "text", el("b", {}, "more")). Properties that are functions are listeners. */
  function el(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (typeof value === "function") made.addEventListener(name, value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
    }
    made.append(...children.filter((child) => child !== null).map((child) => (typeof child === "number" ? String(child) : child)));
    return made;
  }

  /** A table with a name, which scrolls sideways. A cell is text, a number, an element, or a list of them. */
  function table(name, head, rows, {first = "th", cell = "", table = "", caption} = {}) {
    const made = (each, at) => (at || first === "td" ? el("td", {class: cell || null}, ...[each].flat()) : el("th", {scope: "row"}, ...[each].flat()));
    return el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": name}, el("table", {class: table || null}, caption ? el("caption", {}, caption) : null,
      el("thead", {}, el("tr", {}, ...head.map((each) => el("th", {scope: "col"}, each)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(made))))));
  }

  function href(name, query = {}) {
    const given = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)]));
    return `#/${name}${given.size ? `?${given}` : ""}`;
  }

  const titled = (title) => pages.find((each) => each.title === title);

  function missing(address) {
    const render = (main) => main.append(el("h1", {}, `There is no page ${address}`),
      el("p", {}, "The address may be misspelt, or of another version of the atlas. The pages are:"),
      el("ul", {}, ...pages.filter((each) => !each.hidden).map((each) => el("li", {}, el("a", {href: href(each.name)}, each.title)))));
    return {name: "", title: "No such page", render};
  }

  /** Shows the page that the address names; the first one without a name. */
  function show() {
    const address = location.hash.replace(/^#\/?/, "");
    const [, name = "", query = ""] = /^#\/([^?]*)(?:\?(.*))?$/.exec(location.hash) ?? [];
    const found = address === "" ? pages[0] : pages.find((each) => each.name === name) ?? missing(address.split("?")[0]);
    const main = document.getElementById("main");
    main.replaceChildren();
    try {
      found.render(main, new URLSearchParams(query));
    } catch (error) {
      console.error(error);
      main.replaceChildren(el("h1", {}, "This page cannot be drawn"), el("p", {}, "What its address asks for made it fail: ", el("code", {}, String(error))),
        el("p", {}, el("a", {href: href(found.name)}, `${found.title}, as it is at first`)));
    }
    document.title = `${main.querySelector("h1")?.textContent ?? found.title} - Atlas of positional encodings`;
    for (const link of document.querySelectorAll("#menu a")) {
      if (link.getAttribute("href") === href(found.name)) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** Draws the menu and the first page, and follows the address from then on. */
  function start() {
    const menu = document.getElementById("menu");
    const button = document.getElementById("pages");
    const open = (to) => button.setAttribute("aria-expanded", String(to)); // the menu of a narrow page
    button.addEventListener("click", () => open(button.getAttribute("aria-expanded") === "false"));
    menu.append(el("ul", {}, ...pages.filter((each) => !each.hidden).map((each) => el("li", {}, el("a", {href: href(each.name)}, each.title)))));
    document.getElementById("theme")?.addEventListener("click", () => {
      document.documentElement.style.colorScheme = charts.dark() ? "light" : "dark";
    });
    document.querySelector(".skip")?.addEventListener("click", (event) => {
      event.preventDefault(); // its address is that of no page
      document.getElementById("main")?.focus();
    });
    addEventListener("hashchange", () => {
      open(false);
      const select = document.activeElement instanceof HTMLSelectElement ? document.activeElement.id : ""; // one that led here keeps the keyboard
      show();
      (document.getElementById(select) ?? document.getElementById("main"))?.focus({preventScroll: true});
      scrollTo(0, 0);
    });
    show();
  }

  return {data, page, titled, el, table, href, start};
})();
