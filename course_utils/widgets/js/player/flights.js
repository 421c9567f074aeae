// flights.js — what goes on by itself at a step: copies that have not landed, products that are not over; the phases of
// mbarriers; and who waits.

const FLYING = {
  "copy read": ["copy", "copies"], copy: ["copy of the copy engine", "copies of the copy engine"],
  wgmma: ["product", "products"],
};

function flightsPanel(rec, act, isShort) {
  const list = element("ul", {});
  const cells = rec.mbarriers.map(() => [1, 2, 3].map(() => element("td", {})));
  const table = element("table", { class: "ak-table ak-mbarriers" },
    element("thead", {}, element("tr", {}, ...["mbarrier at", "phases over", "parity now", "arrivals in it"].map((words) => element("th", { scope: "col" }, words)))),
    element("tbody", {}, ...rec.mbarriers.map(({ array, offset }, n) =>
      element("tr", {}, element("th", { scope: "row" }, placeOfMbarrier(rec.arrays[array], offset)), ...cells[n]))));
  table.hidden = !rec.mbarriers.length;
  const title = element("span", { class: "ak-title" }, "In flight, and waiting");
  const inBrief = element("span", {}); // all of it in a sentence, where the list is folded
  const node = element("section", { class: "ak-player-flights" }, ...(isShort
    ? [element("details", {}, element("summary", {}, title, inBrief), list, table)] : [element("div", { class: "ak-player-head" }, title), list, table]));
  node.hidden = !rec.flights.length && !rec.openings.length;
  let shown = "";
  const go = (step) => control("button", { type: "button", class: "ak-jump", onclick: () => act.go(step) }, `step ${bytes(step)}`);

  // Each line as the parts of its text, of which a number is a step, which becomes a button; and the same in a few words.
  function linesOf(view) {
    const groups = new Map();
    for (const flight of inFlight(rec, view.step)) {
      const array = rec.arrays[rec.steps.array[flight.lands[0]]]?.name;
      const of = flight.kind === "wgmma" ? ` of warps ${ranges(warpsOfGroup(rec, flight.begin))}` : "";
      listOf(groups, `${flight.kind} ${array}${of}`).push({ ...flight, words: `${array ? ` to ${array}` : ""}${of}` });
    }
    const lines = [...groups.values()].map((flights) => {
      const [one, many] = FLYING[flights[0].kind] ?? [flights[0].kind, `${flights[0].kind}s`];
      const end = Math.min(...flights.map((flight) => flight.end));
      const ofOneWarp = flights.filter(({ kind, begin }) => kind !== "wgmma" || rec.steps.warp[begin] === rec.steps.warp[flights[0].begin]);
      return {
        parts: [`${plural(ofOneWarp.length, one, many)}${flights[0].words}, since `, flights[0].begin, flights.length > 1 ? "; the first is over at " : "; over at ", end],
        brief: `${plural(ofOneWarp.length, ...[one, many].map((words) => words.split(" ")[0]))}${flights[0].words}`,
      };
    });
    for (const { warps, since } of together(waiting(rec, view.step))) {
      const place = placeOf(rec, since);
      const what = rec.steps.op[since] === rec.op.barrier ? ` at${atBarrier(rec, since)}` : waitsFor(rec, since);
      const who = `arp${warps.length > 1 ? "s" : ""} ${ranges(warps)} wait${warps.length > 1 ? "" : "s"}`;
      lines.push({ parts: [`W${who}${what}${place ? `, line ${place.line}` : ""}, since `, since], brief: `w${who}${what.replace(/the mbarrier .*/, "an mbarrier")}` });
    }
    const gone = ended(rec, view.step);
    if (gone.length) {
      const who = `arp${gone.length > 1 ? "s" : ""} ${ranges(gone.map(({ warp }) => warp))} ${gone.length > 1 ? "have" : "has"} ended`;
      lines.push({ parts: [`W${who}, after `, Math.max(...gone.map(({ since }) => since))], brief: `w${who}` });
    }
    return lines;
  }

  // Warps that wait for the same.
  function together(found) {
    const groups = new Map();
    for (const { warp, since } of found) {
      const { place, op, array, extra } = rec.steps;
      listOf(groups, [place, op, array, extra].map((column) => column[since]).join()).push({ warp, since });
    }
    return [...groups.values()].map((group) => ({ warps: group.map(({ warp }) => warp), since: group[0].since }));
  }

  function draw(view) {
    if (node.hidden) return;
    rec.mbarriers.forEach((barrier, n) => {
      const { phases, arrivals } = mbarrierAt(rec, barrier, view.step);
      [phases, phases % 2, arrivals].forEach((value, k) => {
        if (cells[n][k].textContent !== `${value}`) cells[n][k].textContent = value;
      });
    });
    const lines = linesOf(view);
    const key = JSON.stringify(lines);
    if (key === shown) return;
    shown = key;
    inBrief.textContent = `: ${lines.map((line) => line.brief).join("; ") || "nothing, and nobody"}.`;
    const items = lines.map(({ parts }) => element("li", {}, ...parts.map((part) => (typeof part === "number" ? go(part) : part))));
    refill(list, ...(items.length ? items : [element("li", { class: "ak-note" }, "Nothing is in flight, and nobody waits.")]));
  }

  return { node, draw };
}

// The warps of the warpgroup of a step's warp.
function warpsOfGroup(rec, step) {
  const first = rec.steps.warp[step] & ~3;
  return [first, first + 1, first + 2, first + 3].filter((warp) => warp < rec.meta.warps);
}
