// touches.js — who touches one cell of memory, in order, and the barriers between: what a missing one is found by.

const MOST_TOUCHES = 7; // that are listed on each side of the step

// The steps that touch a byte of an array, in order.
export function touchesOf(rec, number, offset) {
  const { op, array, width } = rec.steps;
  const found = [];
  for (let step = 0; step < rec.count; step++) {
    if (array[step] !== number || !rec.addressed.has(op[step])) continue;
    if (lanesOf(rec, step).some(({ offset: from }) => from <= offset && offset < from + width[step])) found.push(step);
  }
  return found;
}

// The barriers of the block that open between two steps, and the barriers of a warp at which both meet, as steps.
export function barriersBetween(rec, first, then) {
  const { op, warp } = rec.steps;
  const found = rec.openings.map(({ end }) => end).filter((end) => first < end && end < then);
  if (warp[first] !== warp[then] || warp[first] < 0) return found;
  for (let at = otherOfWarp(rec, warp[first], first); at >= 0 && at < then; at = otherOfWarp(rec, warp[first], at)) {
    if (op[at] === rec.op["warp barrier"]) found.push(at);
  }
  return found.sort((a, b) => a - b);
}

// The touches as runs: reads or atomics in one line by whatever warp, or writes in one line by one warp, with no barrier
// between.
export function runsOf(rec, touches) {
  const { op, place, warp } = rec.steps;
  const runs = [];
  for (const step of touches) {
    const last = runs.at(-1)?.at(-1) ?? -1;
    const isLike = last >= 0 && op[last] === op[step] && place[last] === place[step] && (!rec.writes.has(op[step]) || op[step] === rec.op.atomic || warp[last] === warp[step]);
    if (isLike && !barriersBetween(rec, last, step).length) runs.at(-1).push(step);
    else runs.push([step]);
  }
  return runs;
}

function touchesPanel(rec, act) {
  const list = element("ul", { class: "ak-touches" });
  const head = element("div", { class: "ak-note" });
  const known = new Map(); // a cell -> its runs
  let shown = "";

  const jump = (step) => control("button", { type: "button", class: "ak-jump", onclick: () => act.go(step) }, `step ${bytes(step)}`);

  // Who touches the byte in a run: "Lane 3 of warp 1 reads it, line 20"; of several steps "Warps 0–7 read it".
  function wordsOf(run, offset) {
    const { op, warp, width } = rec.steps;
    const [step] = run;
    const place = placeOf(rec, step);
    const where = place ? `, line ${place.line}${place.file === rec.meta.file ? "" : ` of ${place.file}`}` : "";
    const writes = rec.writes.has(op[step]);
    if (warp[step] < 0) return `${writes ? "A copy lands in it" : "A copy or a product reads it"}${where}`;
    const lanes = lanesOf(rec, step).filter(({ offset: from }) => from <= offset && offset < from + width[step]).map(({ lane }) => lane);
    const warps = [...new Set(run.map((one) => warp[one]))].sort((a, b) => a - b);
    const several = warps.length > 1 || (run.length === 1 && lanes.length > 1);
    const who = warps.length > 1 ? `Warps ${ranges(warps)}` : run.length > 1 ? `Warp ${warps[0]}` : `Lane${several ? "s" : ""} ${ranges(lanes)} of warp ${warps[0]}`;
    return `${who} ${DOES[rec.meta.ops[op[step]]][several ? 1 : 0]} it${where}`;
  }

  function itemsOf(runs, view, isFirst) {
    const isBare = rec.arrays[view.cell.array].space === "shared" && !rec.writes.has(rec.steps.op[runs[0]?.[0]]);
    const before = isBare && isFirst ? [element("li", {}, "Nobody has written it.")] : [];
    return before.concat(runs.flatMap((run, n) => {
      const isNow = run[0] <= view.step && view.step <= run.at(-1);
      const until = run.length > 1 ? [" to ", jump(run.at(-1))] : [];
      const item = element("li", isNow ? { "aria-current": "step" } : {}, jump(run[0]), ...until, ` ${wordsOf(run, view.cell.offset)}`);
      if (!n) return [item];
      const between = barriersBetween(rec, runs[n - 1].at(-1), run[0]);
      if (!between.length) return [item];
      return [element("li", { class: "ak-bar-between" }, `${plural(between.length, "barrier")}, the last at `, jump(between.at(-1))), item];
    }));
  }

  function draw(view) {
    const key = JSON.stringify([view.cell, view.step]);
    if (key === shown) return;
    shown = key;
    if (!view.cell) {
      head.textContent = "Choose a cell of memory: here stands who touches it, in order, and which barriers lie between.";
      list.replaceChildren();
      return;
    }
    const { array, offset } = view.cell;
    const cell = `${array} ${offset}`;
    if (!known.has(cell)) known.set(cell, runsOf(rec, touchesOf(rec, array, offset)));
    const runs = known.get(cell);
    const now = Math.max(0, runs.findLastIndex(([step]) => step <= view.step));
    const listed = runs.slice(Math.max(0, now - MOST_TOUCHES), now + MOST_TOUCHES + 1);
    const all = plural(runs.reduce((sum, run) => sum + run.length, 0), "step");
    head.textContent = `${elementName(rec.arrays[array], offset)} is touched by ${all}${listed.length < runs.length ? `; here those around step ${bytes(view.step)}` : ""}.`;
    refill(list, ...itemsOf(listed, view, listed[0] === runs[0]));
  }

  return {
    node: element("section", { class: "ak-player-touches" }, element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "Who touches the chosen cell")), head, list),
    draw,
  };
}
