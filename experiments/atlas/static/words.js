// @ts-check
"use strict";

/** Words that hold code or mathematics, as elements. */
const words = (() => {
  /** Text with `code` in it. @param {string} text @returns {Array<Node|string>} */
  function rich(text) {
    return text.split("`").map((part, index) => (index % 2 ? atlas.el("code", {}, part) : part));
  }

  /** MathML from our own data; parsed as XML, so that it becomes no HTML of the page. @param {string} source @returns {Element} */
  function math(source) {
    return document.importNode(new DOMParser().parseFromString(source, "application/xml").documentElement, true);
  }

  return {rich, math};
})();
