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

function touchesPanel(rec, act) {
  const list = element("ul", { class: "ak-touches" });
  const head = element("div", { class: "ak-note" });
  const known = new Map(); // a cell -> its touches
  let shown = "";

  const jump = (step, words) => control("button", { type: "button", class: "ak-jump", onclick: () => act.go(step) }, words);

  // The lanes of a step that touch the byte: "Lane 3 of warp 1 reads it".
  function wordsOf(step, offset) {
    const { op, warp, width } = rec.steps;
    const lanes = lanesOf(rec, step).filter(({ offset: from }) => from <= offset && offset < from + width[step]).map(({ lane }) => lane);
    const does = DOES[rec.meta.ops[op[step]]];
    const who = warp[step] < 0 ? "A copy or a product" : `Lane${lanes.length > 1 ? "s" : ""} ${ranges(lanes)} of warp ${warp[step]}`;
    const place = placeOf(rec, step);
    return `${who} ${does[warp[step] >= 0 && lanes.length > 1 ? 1 : 0]} it${place ? `, line ${place.line}` : ""}`;
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
    if (!known.has(cell)) known.set(cell, touchesOf(rec, array, offset));
    const all = known.get(cell);
    const now = all.findLastIndex((step) => step <= view.step);
    const from = Math.max(0, now - MOST_TOUCHES);
    const listed = all.slice(from, Math.max(now, 0) + MOST_TOUCHES + 1);
    head.textContent = `${elementName(rec.arrays[array], offset)} is touched by ${plural(all.length, "step")}${listed.length < all.length ? `; here those around step ${bytes(view.step)}` : ""}.`;
    const items = listed.flatMap((step, n) => {
      const item = element("li", step === view.step ? { "aria-current": "step" } : {}, jump(step, `step ${bytes(step)}`), ` ${wordsOf(step, offset)}`);
      if (!n) return [item];
      const between = barriersBetween(rec, listed[n - 1], step);
      const bar = between.length ? [element("li", { class: "ak-bar-between" }, `${plural(between.length, "barrier")}, the last at `, jump(between.at(-1), `step ${bytes(between.at(-1))}`))] : [];
      return [...bar, item];
    });
    list.replaceChildren(...items);
  }

  return {
    node: element("section", { class: "ak-player-touches" }, element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "Who touches the chosen cell")), head, list),
    draw,
  };
}
