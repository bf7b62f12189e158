"use strict";

/** Words that hold code or mathematics, as elements. */
const words = (() => {
  const {el} = atlas;

  function rich(text) {
    return text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
  }

  /** MathML from our own data; parsed as XML, so that it becomes no HTML of the page. */
  function math(source) {
    return document.importNode(new DOMParser().parseFromString(source, "application/xml").documentElement, true);
  }

  /** A word without the end that its forms differ by: sinusoids, positional, biases. */
  const stem = (word) => (word.length > 4 ? word.replace(/(?:ies|al|(?<=[sx])es|(?<!s)s)$/, "") : word);

  /** Whether a text has every word that is searched for, or a form of it. */
  function matches(search, text) {
    const found = text.toLowerCase();
    return search.toLowerCase().split(/\s+/).every((word) => found.includes(stem(word)));
  }

  function breakable(name) {
    return name.split("_").flatMap((part, at) => (at ? ["_", el("wbr"), part] : [part]));
  }

  return {rich, math, matches, breakable};
})();
