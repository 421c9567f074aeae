// trace.js — who wrote the chosen number, and from what; back to global memory. And the findings, each with its two parties.

const MOST_LISTED = 8; // places from which inputs came
const PAUSE = 90; // ms without a step before inputs are looked for: they may take longer than a picture may

function tracePanel(rec, act, valueWords) {
  const body = element("div", { class: "ak-trace" });
  let shown = "";
  let timer = null;
  const lost = rec.meta.variables.length ? "registers that are not recorded" : "registers, which this recording leaves out";

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
    clearTimeout(timer);
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
    const inputs = element("div", { class: "ak-inputs" }, element("span", { class: "ak-note" }, "…"));
    refill(body, head,
      element("div", {}, `Written by ${who}${place ? `, line ${place.line}` : ""}: `, jump(writer.step, `step ${bytes(writer.step)}`, { lane: Math.max(writer.lane, 0) })),
      inputs);
    const { cell, type } = view;
    const show = () => { if (key === shown) refill(inputs, ...inputsOfWrite(writer, cell, step, type)); };
    timer = setTimeout(() => rec.whole.then(show), PAUSE);
  }

  function inputsOfWrite(writer, cell, step, type) {
    const found = inputsOf(rec, writer.step, writer.lane, writer.delta);
    const rest = ({ isAll, isLost }) => (isAll ? [] : [element("div", { class: "ak-note" }, isLost ? `and perhaps from ${lost}` : "and more: it was not followed further")]);
    const isCopy = rec.steps.op[writer.step] === rec.op["copy write"];
    const origins = element("div", {});
    const back = control("button", { type: "button", class: "ak-jump", onclick: () => {
      const size = NUMBERS[typeIn(rec.arrays[cell.array], { type })].size;
      const first = originsOf(rec, cell.array, cell.offset, size, step);
      origins.replaceChildren(...(first.reads.length
        ? [element("div", {}, "Read from global memory:"), listed(first.reads, type), ...rest(first)]
        : [element("div", {}, ofNothing(first, "It comes from no global memory."))]));
    } }, "Back to global memory");
    if (!found.reads.length) return [element("span", { class: "ak-note" }, ofNothing(found, "It was made from nothing that the block read."))];
    return [element("div", {}, isCopy ? "It was copied from:" : "It was made from:"), listed(found.reads, type), ...rest(found), back, origins];
  }

  // What is said where no read was found: `words` only if that is known.
  function ofNothing({ isAll, isLost }, words) {
    if (isAll) return words;
    return isLost ? `It comes from ${lost}.` : "From what it was made is not known: it was not followed to its end.";
  }

  // Reads by the line and the array from which they are. One alone is named with its number.
  function listed(reads, type) {
    const groups = new Map();
    for (const read of reads) listOf(groups, `${rec.steps.place[read.step]} ${read.array}`).push(read);
    const items = [...groups.values()].slice(0, MOST_LISTED).map((group) => {
      const last = group.at(-1);
      const array = rec.arrays[last.array];
      const place = placeOf(rec, last.step);
      const cell = { array: last.array, offset: last.offset };
      const value = brief(elementAt(rec, last.array, last.offset, typeIn(array, { type }), last.step), 8);
      const words = group.length === 1 ? `${elementName(array, last.offset)} = ${value}` : `${array.name}: ${plural(group.length, "read")}`;
      const where = `${place ? ` line ${place.line},` : ""} step ${bytes(group[0].step)}${group[0].step === last.step ? "" : ` to ${bytes(last.step)}`}`;
      return element("li", {}, jump(last.step, words, { cell, lane: Math.max(last.lane, 0), looksAtCell: true }), element("span", { class: "ak-note" }, where));
    });
    const more = groups.size - items.length;
    return element("ul", {}, ...items, ...(more ? [element("li", { class: "ak-note" }, `and of ${plural(more, "more place")}`)] : []));
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
