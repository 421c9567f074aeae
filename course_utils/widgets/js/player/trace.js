// trace.js — who wrote the chosen number, and where its inputs came from; and the findings, each with its two parties.

const MOST_INPUTS = 12; // that are listed

function tracePanel(rec, act, valueWords) {
  const body = element("div", { class: "ak-trace" });
  let shown = "";

  const go = (step, words, cell, lane) => control("button", {
    type: "button", class: "ak-jump", onclick: () => act.set({ ...act.at(step), ...(cell ? { cell } : {}), ...(lane === undefined ? {} : { lane }) }),
  }, words);

  function draw(view) {
    const key = JSON.stringify([view.cell, view.step]);
    if (key === shown) return;
    shown = key;
    if (!view.cell) {
      body.replaceChildren(element("div", { class: "ak-note" }, "Choose a cell of memory: who wrote it is said here."));
      return;
    }
    const array = rec.arrays[view.cell.array];
    const name = elementName(array, view.cell.offset);
    const head = element("div", {}, element("b", {}, `${name} = ${valueWords(view)}`));
    const writer = writerOf(rec, view.cell.array, view.cell.offset, view.step);
    if (!writer) {
      const never = array.space === "shared" ? "Nobody has written it yet." : "Nobody in this block has written it yet: it is as it was at the launch.";
      body.replaceChildren(head, element("div", { class: "ak-note" }, never));
      return;
    }
    const place = placeOf(rec, writer.step);
    const who = writer.warp < 0 ? `${place ? "the copy engine" : "another block"}` : `warp ${writer.warp}, lane ${writer.lane}`;
    const inputs = inputsOf(rec, writer.step, writer.lane, writer.delta);
    const listed = inputs.slice(0, MOST_INPUTS).map((input) => {
      const from = rec.arrays[input.array];
      const type = typeIn(from, view);
      const value = brief(elementAt(rec, input.array, input.offset, type, input.step), 8);
      const through = input.through.length ? ` through ${input.through.join(", ")}` : "";
      return element("li", {}, go(input.step, `${elementName(from, input.offset)} = ${value}`,
        { array: input.array, offset: input.offset }, writer.lane), element("span", { class: "ak-note" }, ` step ${bytes(input.step)}${through}`));
    });
    body.replaceChildren(head,
      element("div", {}, `Written by ${who}${place ? `, line ${place.line}` : ""}: `, go(writer.step, `step ${bytes(writer.step)}`, null, writer.lane)),
      ...(listed.length ? [element("div", {}, rec.steps.op[writer.step] === rec.op["copy write"] ? "It was copied from:" : "Its inputs:"), element("ul", {}, ...listed)] : []),
      ...(inputs.length > MOST_INPUTS ? [element("div", { class: "ak-note" }, `and ${bytes(inputs.length - MOST_INPUTS)} more`)] : []));
  }

  return {
    node: element("section", { class: "ak-player-trace" }, element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "Where a number comes from")), body),
    draw,
  };
}

function findingsPanel(rec, act) {
  const { findings } = rec.meta;
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
  return rec.meta.findings.flatMap(({ step, other_step }, n) => [
    ...(step >= 0 ? [{ step, other: other_step, finding: n }] : []),
    ...(other_step >= 0 ? [{ step: other_step, other: step, finding: n }] : []),
  ]).sort((a, b) => a.step - b.step);
}
