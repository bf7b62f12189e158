"use strict";

/** Live bugs of other codebases, each with a switch that turns it on. */
(() => {
  const {data, el} = atlas;

  function values(cells, on) {
    const step = (cells.high - cells.low) / cells.levels;
    return (on ? cells.wrong : cells.right).map((row) => row.map((level) => (level === null ? null : cells.low + step * level)));
  }

  /** Rows and columns as cells; the patch that looks is framed. */
  function drawCells(context, width, height, colors, bug, on) {
    const rows = values(bug.cells, on);
    const [x, y, wide] = live.heat(context, width, height, colors, {rows, range: [bug.cells.low, bug.cells.full], across: bug.across, down: bug.down, first: bug.first});
    if (!bug.marked) return;
    const side = wide / rows[0].length;
    context.strokeStyle = live.css(colors.ink);
    context.lineWidth = 2;
    context.strokeRect(x + bug.marked[1] * side, y + bug.marked[0] * side, side, side);
  }

  /** The lines of a bug: the right one, and with the bug on the wrong one, too. */
  function series(bug, on) {
    const line = (wrong) => values(bug.cells, wrong)[0].map((y, x) => [bug.first + x, y ?? NaN]);
    const right = {label: "right", color: live.COLORS[0], points: line(false), dots: bug.cells.right[0].length <= 24};
    return on ? [right, {label: "with the bug", color: live.COLORS[1], dash: live.DASHES[1], points: line(true), dots: bug.cells.right[0].length <= 24}] : [right];
  }

  function drawLines(context, width, height, colors, bug, on) {
    const {low, high} = bug.cells;
    const margin = (high - low) * 0.06;
    const x = {label: bug.across, low: bug.first, high: bug.first + bug.cells.right[0].length - 1};
    live.curves(context, width, height, colors, {series: series(bug, on), x, y: {label: bug.what, low: low - margin, high: high + margin}});
  }

  function shape(bug) {
    if (bug.kind === "lines") return {height: 230, most: 460};
    const [rows, columns] = [bug.cells.right.length, bug.cells.right[0].length];
    return {height: live.square(rows, columns), most: bug.kind === "matrix" ? 320 : 360};
  }

  /** The colours of a picture; beyond the last one it stays. */
  function legend(bug) {
    const {low, high, full, right, wrong} = bug.cells;
    const colors = live.legend([low, full], right.concat(wrong).some((row) => row.includes(null)));
    if (bug.refusal) colors.lastChild.textContent = "refused";
    if (full < high) colors.append("or more");
    return colors;
  }

  /** How much the bug changes, or what posjax says instead of a number. */
  function size(bug) {
    if (bug.refusal) return el("p", {}, "posjax refuses: ", el("code", {}, bug.refusal));
    return el("p", {}, "Largest difference: ", el("strong", {}, live.number(bug.difference ?? NaN)), ` (${bug.what}), by posjax on `, el("code", {}, bug.spec), ".");
  }

  function audited({audit, finds}) {
    if (!audit) return null;
    return el("p", {}, el("a", {href: "audit.html"}, "The audit finds it"), ": ", el("code", {}, audit), ` says “${finds}”.`);
  }

  /** One bug; gives its element and the function that turns it on or off. */
  function shown(bug) {
    let on = false;
    const said = el("p", {class: "seen", "aria-live": "polite"});
    const below = el("div", {});
    const picture = live.canvas((context, width, height, colors) => {
      (bug.kind === "lines" ? drawLines : drawCells)(context, width, height, colors, bug, on);
      const {low, high} = bug.cells;
      below.replaceChildren(bug.kind === "lines" ? live.key(series(bug, on)) : legend(bug));
      const seen = on ? `With the bug: ${bug.wrong}` : `Right: ${bug.right}`;
      return `${bug.what} by ${bug.across}${bug.kind === "lines" ? "" : ` and ${bug.down}`}, from ${live.number(low)} to ${live.number(high)}. ${seen}`;
    }, shape(bug));
    const id = `switch-${bug.name}`;
    const input = el("input", {type: "checkbox", role: "switch", id, change: () => turn(input.checked)});
    function turn(to) {
      on = input.checked = to;
      said.replaceChildren(el("strong", {}, on ? "With the bug: " : "Right: "), on ? bug.wrong : bug.right);
      picture.redraw();
    }
    turn(false);
    const row = data("errata")[bug.row];
    const node = el("article", {class: "bug", id: bug.name},
      el("h3", {}, bug.title), el("p", {}, bug.about),
      el("div", {class: "check switch"}, input, el("label", {for: id}, bug.switch)),
      picture.node, below, said, size(bug), audited(bug),
      el("details", {}, el("summary", {}, "Who has it, and the test"), el("p", {}, errata.link(bug.row, "Its row of the errata"), ": ", ...errata.linked(row.what)), errata.facts(row)),
      el("details", {}, el("summary", {}, "The bug in code"), el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": `Code: ${bug.title}`}, el("pre", {}, el("code", {}, bug.code)))));
    return {node, turn};
  }

  function others(names) {
    const rows = data("errata");
    return names.map((name) => el("li", {}, errata.link(name, rows[name].what), ": ", ...errata.linked(rows[name].who)));
  }

  function render(root, query) {
    const {breaks, others: names} = data("breaks");
    const made = breaks.map((bug) => ({bug, ...shown(bug)}));
    const groups = [...new Set(breaks.map((bug) => bug.group))];
    const all = el("input", {type: "checkbox", role: "switch", id: "switch-all", change: () => made.forEach((each) => each.turn(all.checked))});
    root.append(el("h1", {}, "What breaks"),
      el("p", {}, "Each switch turns on one bug that published code has, or had. posjax computes both pictures: the right one, and the one with the bug done to it in a few lines. ", el("a", {href: "audit.html"}, "posjax audit"), " finds some of them in code of your own. One word stands at all places unless a text says otherwise, so that only positions make the picture."),
      el("ul", {class: "key"}, ...groups.map((group) => el("li", {}, el("a", {href: atlas.href("breaks", {group})}, group)))),
      el("div", {class: "check switch"}, all, el("label", {for: "switch-all"}, "All bugs at once")));
    for (const group of groups) {
      root.append(el("h2", {"data-group": group}, group), el("div", {class: "bugs"}, ...made.filter((each) => each.bug.group === group).map((each) => each.node)));
    }
    root.append(el("h2", {}, "Bugs without a picture"), el("p", {}, "These stop a program, return no number or teach less than they could:"), el("ul", {}, ...others(names)));
    const asked = made.find((each) => each.bug.name === query.get("bug"));
    asked?.turn(true);
    const heading = root.querySelector(`[data-group="${CSS.escape(query.get("group") ?? "")}"]`);
    requestAnimationFrame(() => (asked?.node ?? heading)?.scrollIntoView({behavior: "instant"}));
  }

  atlas.page({name: "breaks", title: "What breaks", render});
})();
