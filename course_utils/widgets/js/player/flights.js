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
      element("tr", {}, element("th", { scope: "row", title: rec.arrays[array].name }, `+ ${bytes(offset)}`), ...cells[n]))));
  const phases = isShort ? element("details", {}, element("summary", {}, `The ${plural(rec.mbarriers.length, "mbarrier")}`), table) : table;
  phases.hidden = !rec.mbarriers.length;
  const node = element("section", { class: "ak-player-flights" },
    element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "In flight, and waiting")), list, phases);
  node.hidden = !rec.flights.length && !rec.openings.length;
  let shown = "";
  const go = (step) => control("button", { type: "button", class: "ak-jump", onclick: () => act.go(step) }, `step ${bytes(step)}`);

  // Each line as the parts of its text; a number among them is a step, which becomes a button.
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
      return [`${plural(ofOneWarp.length, one, many)}${flights[0].words}, since `, flights[0].begin, flights.length > 1 ? "; the first is over at " : "; over at ", end];
    });
    for (const { warps, since } of together(waiting(rec, view.step))) {
      const place = placeOf(rec, since);
      const what = rec.steps.op[since] === rec.op.barrier ? ` at${atBarrier(rec, since)}` : waitsFor(rec, since);
      lines.push([`Warp${warps.length > 1 ? "s" : ""} ${ranges(warps)} wait${warps.length > 1 ? "" : "s"}${what}${place ? `, line ${place.line}` : ""}, since `, since]);
    }
    const gone = ended(rec, view.step);
    if (gone.length) {
      const who = `Warp${gone.length > 1 ? "s" : ""} ${ranges(gone.map(({ warp }) => warp))}`;
      lines.push([`${who} ${gone.length > 1 ? "have" : "has"} ended, after `, Math.max(...gone.map(({ since }) => since))]);
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
    const items = lines.map((parts) => element("li", {}, ...parts.map((part) => (typeof part === "number" ? go(part) : part))));
    refill(list, ...(items.length ? items : [element("li", { class: "ak-note" }, "Nothing is in flight, and nobody waits.")]));
  }

  return { node, draw };
}

// The warps of the warpgroup of a step's warp.
function warpsOfGroup(rec, step) {
  const first = rec.steps.warp[step] & ~3;
  return [first, first + 1, first + 2, first + 3].filter((warp) => warp < rec.meta.warps);
}
