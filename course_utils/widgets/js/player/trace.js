// trace.js — who wrote the chosen number last, and what went into that write. And the findings, each with its two parties.

const MOST_LISTED = 8; // reads
// What is said of a write: in front of the reads that went into it, and where there are none.
const MADE_FROM = {
  write: ["Read in the same line or statement:", "Nothing was read in the same line or statement since the thread's last write: it was made from registers and constants."],
  atomic: ["Made of what was there, and read in the same line or statement:", "Made of what was there, and of registers and constants."],
  "copy write": ["It was copied from:", "It is a zero that the copy fills in: nothing was read for it."],
};

function tracePanel(rec, act, valueWords) {
  const body = element("div", { class: "ak-trace" });
  let shown = "";

  const jump = (step, words, change = {}) => control("button", { type: "button", class: "ak-jump", onclick: () => act.set({ step, ...change }) }, words);

  function draw(view) {
    const after = view.step + 1; // a step that writes the chosen number is about that write
    const isNow = view.cell && writerOf(rec, view.cell.array, view.cell.offset, after)?.step === view.step;
    const step = isNow ? after : view.step;
    const writer = view.cell && writerOf(rec, view.cell.array, view.cell.offset, step);
    const value = view.cell && valueWords({ ...view, step });
    const key = JSON.stringify([view.cell, writer, value, view.type, isNow]);
    if (key === shown) return;
    shown = key;
    if (!view.cell) {
      refill(body, element("div", { class: "ak-note" }, "Choose a cell."));
      return;
    }
    const array = rec.arrays[view.cell.array];
    const name = elementName(array, view.cell.offset);
    if (!writer && array.space === "shared") {
      refill(body, element("div", {}, element("b", {}, name), ": nobody has written it yet."));
      return;
    }
    const head = element("div", {}, element("b", {}, `${name} ${isNow ? "becomes" : "="} ${value}`));
    if (!writer) {
      refill(body, head, element("div", { class: "ak-note" }, "Nobody in this block has written it yet: it is as it was at the launch."));
      return;
    }
    const place = placeOf(rec, writer.step);
    const who = writer.warp < 0 ? engineOf(rec, writer.step).replace("The", "the").replace("Nobody", "nobody") : `warp ${writer.warp}, lane ${writer.lane}`;
    refill(body, head,
      element("div", {}, `Written by ${who}${place ? `, line ${place.line}` : ""}: `, jump(writer.step, `step ${bytes(writer.step)}`, { lane: Math.max(writer.lane, 0) })),
      element("div", { class: "ak-inputs" }, ...inputsOfWrite(writer, view.type)));
  }

  function inputsOfWrite(writer, type) {
    const reads = inputsOf(rec, writer);
    const how = rec.meta.ops[rec.steps.op[writer.step]];
    if (how === "write" && writer.warp < 0) return []; // another block's, or not reported by the compiler
    const [some, none] = MADE_FROM[how];
    return reads.length ? [element("div", {}, some), listed(reads, type)] : [element("span", { class: "ak-note" }, none)];
  }

  // Each read with what it read, which leads there.
  function listed(reads, type) {
    const items = reads.slice(0, MOST_LISTED).map(({ step, lane, array: number, offset, width }) => {
      const array = rec.arrays[number];
      const name = elementName(array, offset);
      const its = typeIn(array, { type });
      const words = width > NUMBERS[its].size ? `${bytes(width)} bytes at ${name}` : `${name} = ${brief(elementAt(rec, number, offset, its, step), 8)}`;
      const place = placeOf(rec, step);
      const where = `${place ? ` line ${place.line},` : ""} step ${bytes(step)}`;
      return element("li", {}, jump(step, words, { cell: { array: number, offset }, lane: Math.max(lane, 0), looksAtCell: true }), element("span", { class: "ak-note" }, where));
    });
    const more = reads.length - items.length;
    return element("ul", {}, ...items, ...(more ? [element("li", { class: "ak-note" }, `and ${plural(more, "more read")}`)] : []));
  }

  return {
    node: element("section", { class: "ak-player-trace" },
      element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "Where a number comes from")), body),
    draw,
  };
}

function findingsPanel(rec, act) {
  const { findings } = rec;
  const items = findings.map((finding, n) => {
    const button = (step, words) => control("button", { type: "button", class: "ak-jump", onclick: () => act.finding(n, step) }, words);
    const parties = [
      ...(finding.step >= 0 ? [button(finding.step, `line ${finding.line}, step ${bytes(finding.step)}`)] : []),
      ...(finding.other_step >= 0 ? [button(finding.other_step, `other party: line ${finding.other_line}, step ${bytes(finding.other_step)}`)] : []),
    ];
    return element("li", {}, element("div", {}, element("b", {}, finding.tool), `: ${finding.message}`), element("div", { class: "ak-row" }, ...parties));
  });
  const node = element("section", { class: "ak-player-findings" },
    element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "Findings of the sanitizer")),
    element("ul", {}, ...items));
  node.hidden = !findings.length;
  return {
    node,
    draw(view) { items.forEach((item, n) => item.classList.toggle("ak-chosen", n === view.finding)); },
  };
}

// The steps at which a finding stands, in order: each with the finding and the step of its other party.
export function findingStops(rec) {
  return rec.findings.flatMap(({ step, other_step }, n) => [
    ...(step >= 0 ? [{ step, other: other_step, finding: n }] : []),
    ...(other_step >= 0 ? [{ step: other_step, other: step, finding: n }] : []),
  ]).sort((a, b) => a.step - b.step);
}
