// dsa_explorer.js — one query through DeepSeek Sparse Attention (chapter 05), stage by stage.
// with address.js

const STAGES = ["Indexer scores", "Top-k", "Gathered latents", "Attention"];
const LEFT = 56; // room for what stands in front of the rows
const RIGHT = 10;
const BARS = 86; // heights
const STRIP = 15;
const CACHE = 26;
const FAN = 46;
const TITLE = 28;
const GAP = 16;

// What becomes of one query when the k highest of its scores are kept; of equal ones the first. The same as dsa_state
// in dsa_explorer.py, which says what the names mean.
export function dsaState(scores, attention, k) {
  const visible = [...scores.keys()].filter((s) => scores[s] > -Infinity);
  const best = [...visible].sort((a, b) => scores[b] - scores[a] || a - b).slice(0, k);
  const chosen = [...best].sort((a, b) => a - b);
  const window = visible.slice(-k);
  const inWindow = new Set(window);
  const missed = chosen.filter((s) => !inWindow.has(s));
  const mass = (keys) => keys.reduce((sum, s) => sum + attention[s], 0);
  return {
    visible, chosen, window, missed,
    threshold: best.length ? scores[best.at(-1)] : -Infinity,
    massKept: mass(chosen), windowMass: mass(window), missedMass: mass(missed),
  };
}

const percent = (part) => `${(100 * part).toFixed(1)} %`;
// Three significant digits: scores may be of any size.
const short = (value) => `${Number(value.toPrecision(3))}`.replace("-", "−");

// The stage in words.
export function describe({ query, keys, stage, k, scores, visible, chosen, threshold, window, missed, massKept, windowMass, missedMass }) {
  const who = `Query ${query}`;
  if (visible.length === 0) return `${who} sees no key: nothing is chosen, and its output is 0.`;
  if (stage === 0) {
    const best = chosen.reduce((most, s) => (scores[s] > scores[most] ? s : most));
    const zeros = visible.filter((s) => scores[s] === 0).length;
    return (
      `${who}: the indexer scores ${plural(visible.length, "key")} of ${keys}, all that it sees. ` +
      `The highest score, ${short(scores[best])}, is that of key ${best}.${zeros ? ` ReLU leaves ${zeros} at exactly 0.` : ""}`
    );
  }
  if (stage === 1) {
    if (k >= visible.length) return `${who}: k = ${k} takes every key that it sees, ${visible.length} in all. Nothing is left out.`;
    const equal = visible.filter((s) => scores[s] === threshold);
    const left = equal.length - equal.filter((s) => chosen.includes(s)).length;
    const ties = left ? ` ${equal.length} keys share that score, and ${left} of them stay out: the first are taken.` : "";
    return `${who}: of ${visible.length} scores the ${k} highest are kept, those from ${short(threshold)} on.${ties}`;
  }
  if (stage === 2) {
    const span = chosen.at(-1) - chosen[0] + 1;
    return (
      `${who}: ${plural(chosen.length, "row")} of the cache, spread over ${plural(span, "token")}, ` +
      `${chosen.length === 1 ? "is" : "are"} copied into one dense tile. Its order does not matter to attention.`
    );
  }
  const most = missed.slice(0, 6).join(", ") + (missed.length > 6 ? ", …" : "");
  const lost = missed.length
    ? `It misses ${plural(missed.length, "chosen key")} (${most}) with ${percent(missedMass)}.`
    : "It misses no chosen key.";
  return (
    `${who}: the ${plural(chosen.length, "chosen key")} hold${chosen.length === 1 ? "s" : ""} ${percent(massKept)} of its attention; ` +
    `a window of the last ${plural(window.length, "key")} holds ${percent(windowMass)}. ${lost} ` +
    "The core makes the weights of the chosen ones sum to 1."
  );
}

// ---- drawing: four rows above each other, with the same key at the same x

function layoutOf(width) {
  const tops = [];
  let y = TITLE;
  for (const height of [BARS, 2 * STRIP + 6, CACHE + FAN + CACHE, BARS]) {
    tops.push(y);
    y += height + GAP + TITLE;
  }
  return { tops, x: LEFT, width: width - LEFT - RIGHT, height: y - GAP - TITLE + 38 };
}

function draw(ctx, theme, box, state) {
  const { tops } = box;
  const { stage, k, keys, query, visible, chosen, threshold, scores, attention } = state;
  const narrow = box.width < 420;
  const titles = narrow ? [
    `1  Indexer scores of t = ${query}`,
    `2  Top-k: the ${chosen.length} highest of ${visible.length} scores`,
    `3  Gathered: ${chosen.length} of ${keys} rows, one tile`,
    "4  Attention: mean over heads",
  ] : [
    `1  Indexer scores I[t, s] of query t = ${query}`,
    `2  Top-k: the ${chosen.length} highest of ${visible.length} scores`,
    `3  Gathered latents: ${chosen.length} of ${keys} rows, one tile`,
    "4  Attention: dense weights, mean over heads",
  ];
  drawGuides(ctx, theme, box, state);
  titles.forEach((title, n) => {
    ctx.globalAlpha = n <= stage ? 1 : 0.7;
    write(ctx, theme, title, box.x, tops[n] - 13, { bold: n <= stage, size: 12.5 });
    ctx.globalAlpha = 1;
  });
  const plain = () => COLOURS.S;
  drawBars(ctx, theme, box, tops[0], scores, visible, stage >= 1 ? state.colour : plain, stage >= 1 ? threshold : null);
  if (stage >= 1 && chosen.length) {
    const line = narrow ? "" : "- - -  "; // beside the title there is no room for more
    write(ctx, theme, `${line}k-th: ${short(threshold)}`, box.x + box.width, tops[0] - 13, { size: 11.5, align: "right" });
  }
  if (stage >= 1) drawChoice(ctx, theme, box, tops[1], state);
  else frame(ctx, theme, box.x, tops[1], box.width, 2 * STRIP + 6, 0.2);
  if (stage >= 2) drawGather(ctx, theme, box, tops[2], state);
  else frame(ctx, theme, box.x, tops[2], box.width, 2 * CACHE + FAN, 0.2);
  if (stage >= 3) drawBars(ctx, theme, box, tops[3], attention, visible, state.colour, null);
  else frame(ctx, theme, box.x, tops[3], box.width, BARS, 0.2);
  drawAxis(ctx, theme, box, state);
}

// Keys with a figure on the axis: every 2^n-th, so that they stand apart.
function ticksOf({ width }, keys) {
  const every = [1, 2, 4, 8, 16, 32, 64].find((step) => (step * width) / keys >= 34);
  return [...Array(keys).keys()].filter((s) => s % every === 0);
}

function drawGuides(ctx, theme, box, { keys, scores, stage }) {
  const rows = stage === 3 ? [0, 3] : [0];
  const cell = box.width / keys;
  ctx.save();
  ctx.globalAlpha = 0.1;
  ctx.fillStyle = theme.ink;
  for (const s of ticksOf(box, keys)) {
    for (const n of rows) ctx.fillRect(Math.round(box.x + (s + 0.5) * cell), box.tops[n], 1, BARS);
  }
  ctx.restore();
  for (let first = 0, end = 1; first < keys; first = end++) { // runs of keys that are not seen
    while (end < keys && (scores[end] === -Infinity) === (scores[first] === -Infinity)) end++;
    if (scores[first] !== -Infinity) continue;
    for (const n of rows) hatch(ctx, theme, box.x + first * cell, box.tops[n], (end - first) * cell, BARS);
  }
}

function drawBars(ctx, theme, box, top, values, visible, colour, threshold) {
  const cell = box.width / values.length;
  const [low, high] = rangeOf([0, ...visible.map((s) => values[s])]);
  const at = (value) => top + BARS * (high > low ? (high - value) / (high - low) : 1);
  const gap = cell >= 8 ? 1 : cell >= 4 ? 0.5 : 0;
  for (const s of visible) {
    ctx.fillStyle = colour(s);
    const [from, to] = [at(Math.max(values[s], 0)), at(Math.min(values[s], 0))];
    ctx.fillRect(box.x + s * cell + gap, from, cell - 2 * gap, to - from);
  }
  ctx.save();
  ctx.globalAlpha = 0.5;
  ctx.fillStyle = theme.ink;
  ctx.fillRect(box.x, Math.round(at(0)), box.width, 1);
  ctx.restore();
  for (const value of new Set([low, 0, high])) {
    if (value === 0 || Math.abs(at(value) - at(0)) >= 12) write(ctx, theme, short(value), box.x - 6, at(value), { size: 11, align: "right" });
  }
  if (threshold === null || visible.length === 0) return;
  ctx.save();
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 1.2;
  ctx.setLineDash([5, 4]);
  ctx.beginPath();
  ctx.moveTo(box.x, Math.round(at(threshold)) + 0.5);
  ctx.lineTo(box.x + box.width, Math.round(at(threshold)) + 0.5);
  ctx.stroke();
  ctx.restore();
}

// A row of cells; colour(n) is the colour of cell n, or null for an empty cell.
function drawRow(ctx, theme, x, y, count, cell, height, colour) {
  ctx.save();
  ctx.fillStyle = theme.ink;
  ctx.globalAlpha = 0.1;
  ctx.fillRect(x, y, count * cell, height);
  ctx.globalAlpha = 1;
  for (let n = 0; n < count; n++) {
    if (!colour(n)) continue;
    ctx.fillStyle = colour(n);
    ctx.fillRect(x + n * cell, y, cell, height);
  }
  if (cell >= 5) {
    ctx.globalAlpha = 0.3;
    ctx.fillStyle = theme.ink;
    for (let n = 1; n < count; n++) ctx.fillRect(x + n * cell - 0.5, y, 1, height);
  }
  ctx.restore();
  frame(ctx, theme, x, y, count * cell, height, 0.5);
}

// Above, the keys that top-k chose; below, the keys of a window of the same size.
function drawChoice(ctx, theme, box, top, { keys, k, colour, chosen, window }) {
  const cell = box.width / keys;
  const [picked, last] = [new Set(chosen), new Set(window)];
  const lower = top + STRIP + 6;
  drawRow(ctx, theme, box.x, top, keys, cell, STRIP, (s) => picked.has(s) && colour(s));
  drawRow(ctx, theme, box.x, lower, keys, cell, STRIP, (s) => last.has(s) && COLOURS.S);
  write(ctx, theme, "top-k", box.x - 6, top + STRIP / 2 + 0.5, { size: 11, align: "right" });
  write(ctx, theme, `last ${k}`, box.x - 6, lower + STRIP / 2 + 0.5, { size: 11, align: "right" });
}

// The chosen rows leave the cache and lie side by side; a row of the cache is drawn as a column, under its token.
function drawGather(ctx, theme, box, top, { keys, colour, chosen }) {
  const cell = box.width / keys;
  const picked = new Set(chosen);
  const first = box.x + ((keys - chosen.length) * cell) / 2;
  const [bottom, tile] = [top + CACHE, top + CACHE + FAN];
  drawRow(ctx, theme, box.x, top, keys, cell, CACHE, (s) => picked.has(s) && colour(s));
  ctx.save();
  ctx.lineWidth = Math.min(Math.max(cell / 5, 1), 2);
  ctx.globalAlpha = 0.7;
  chosen.forEach((s, n) => {
    const [from, to] = [box.x + (s + 0.5) * cell, first + (n + 0.5) * cell];
    ctx.strokeStyle = colour(s);
    ctx.beginPath();
    ctx.moveTo(from, bottom);
    ctx.bezierCurveTo(from, bottom + FAN / 2, to, tile - FAN / 2, to, tile);
    ctx.stroke();
  });
  ctx.restore();
  if (chosen.length) drawRow(ctx, theme, first, tile, chosen.length, cell, CACHE, (n) => colour(chosen[n]));
  write(ctx, theme, "cache", box.x - 6, top + CACHE / 2, { size: 11, align: "right" });
  write(ctx, theme, "tile", box.x - 6, tile + CACHE / 2, { size: 11, align: "right" });
}

function drawAxis(ctx, theme, box, { keys }) {
  const y = box.tops[3] + BARS + 11;
  for (const s of ticksOf(box, keys)) {
    write(ctx, theme, `${s}`, box.x + ((s + 0.5) * box.width) / keys, y, { size: 11, align: "center" });
  }
  write(ctx, theme, "key s (the same in all rows)", box.x + box.width / 2, y + 16, { size: 11, align: "center" });
}

// ---- figures beside the picture

// A bar of parts [fraction, colour, word], and a text above and below it. end: the fraction at its right end.
function meter(title, parts, note, end = 1) {
  const spans = parts.map(([part, colour, word]) => element("span",
    { style: `width: ${(100 * part) / end}%; background: ${colour}`, title: `${word}: ${percent(part)}` }, part / end > 0.022 * word.length ? word : ""));
  return element("div", {}, element("b", {}, title), element("div", { class: "ak-bar" }, ...spans),
    element("div", { class: "ak-note" }, note));
}

function massMeters({ stage, massKept, windowMass, missedMass, chosen, window, missed }) {
  const [topK, last] = ["Attention kept by top-k", `By a window of the last ${window.length}`];
  if (stage < 3) return [topK, last].map((title) => meter(title, [], "shown with the attention"));
  const both = massKept - missedMass;
  return [
    meter(`${topK}: ${percent(massKept)}`,
      [[both, COLOURS.Q, "in the window"], [missedMass, COLOURS.pick, "missed by the window"]],
      `${plural(chosen.length, "key")}, of which the window misses ${missed.length}`),
    meter(`${last}: ${percent(windowMass)}`,
      [[both, COLOURS.Q, "chosen, too"], [windowMass - both, COLOURS.S, "not chosen"]],
      `${plural(window.length - chosen.length + missed.length, "key")} of it top-k leaves out`),
  ];
}

function costMeters({ visible, chosen, pair, long, widths: [heads, latent, rope] }) {
  const figure = (flops, unit) => (flops / unit).toLocaleString("en-US", { maximumSignificantDigits: 3 });
  const cost = (title, indexer, core, dense, unit, name) => {
    const part = dense ? (indexer + core) / dense : 0;
    return meter(`${title}: ${percent(part)} of dense`,
      dense ? [[indexer / dense, COLOURS.O, "indexer"], [core / dense, COLOURS.V, "sparse core"]] : [],
      `${figure(indexer, unit)} + ${figure(core, unit)} instead of ${figure(dense, unit)} ${name}`, Math.max(part, 1));
  };
  const [seen, kept] = [visible.length, chosen.length];
  return [
    cost("FLOPs of this query", seen * pair.indexer, kept * pair.core, seen * pair.core, 1e6, "MFLOP"),
    cost(`At ${long.keys / 1024} K, k = ${long.top_k}`, long.indexer, long.core, long.dense, 1e9, "GFLOP"),
    element("div", { class: "ak-legend" },
      legendItem(COLOURS.O, `indexer: ${bytes(pair.indexer)} FLOP a key`), legendItem(COLOURS.V, `core: ${bytes(pair.core)} FLOP a key`)),
    element("div", { class: "ak-note" }, `FLOPs are counted for ${heads} heads and latents of ${latent} + ${rope}.`),
  ];
}

function render({ model, el }) {
  const { queries, keys, top_k, widths, pair, long } = model.get("meta");
  const values = floats(model.get("data"));
  const settings = { k: top_k, stage: STAGES.length - 1 };
  const rowOf = (query, half) => values.subarray((half * queries + query) * keys, (half * queries + query + 1) * keys);
  const change = (changed) => {
    Object.assign(settings, changed);
    redraw();
    address.note();
  };

  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const query = stepper("query t", queries - 1, (t) => setStep(model, t));
  const k = slider("top-k", { class: "ak-k", min: 1, max: keys, step: 1 });
  k.input.addEventListener("input", () => change({ k: Number(k.input.value) }));
  const stages = STAGES.map((name, stage) =>
    control("button", { class: "ak-stage", type: "button", onclick: () => change({ stage }) }, `${stage + 1} ${name}`));
  const picture = element("div", {}, canvas,
    element("div", { class: "ak-legend" },
      legendItem(COLOURS.Q, "chosen"), legendItem(COLOURS.pick, "chosen, but not in the window"),
      legendItem(COLOURS.S, "not chosen"),
      legendItem("", "not seen", "ak-hatch")));
  const panel = element("div", { class: "ak-panel ak-figures" });
  const root = element("div", { class: "ak-widget", "data-widget": "dsa-explorer" },
    element("div", { class: "ak-row" }, query.prev, query.next, query.row, k.row),
    element("div", { class: "ak-row ak-stages", role: "group", "aria-label": "stage" }, ...stages),
    status,
    element("div", { class: "ak-columns" }, picture, panel));
  el.append(root);

  // Beside the figures where there is room for both.
  function widthNow() {
    const room = Math.max(root.clientWidth - 8, 300); // 0 before it is in the page, as JupyterLab first draws it
    return room >= 850 ? room - 20 - 290 : room;
  }

  function redraw() {
    const t = Math.min(model.get("step"), queries - 1);
    const [scores, attention] = [rowOf(t, 0), rowOf(t, 1)];
    const state = { ...dsaState(scores, attention, settings.k), ...settings, query: t, keys, scores, attention, pair, long, widths };
    const [picked, missed] = [new Set(state.chosen), new Set(state.missed)];
    state.colour = (s) => (missed.has(s) ? COLOURS.pick : picked.has(s) ? COLOURS.Q : COLOURS.S);
    const box = layoutOf(widthNow());
    picture.style.width = `${box.x + box.width + RIGHT}px`; // the legend must not widen it
    draw(prepare(canvas, box.x + box.width + RIGHT, box.height), themeOf(root), box, state);
    query.input.value = t;
    query.text.textContent = `${t} (0 to ${queries - 1})`;
    k.input.value = settings.k;
    k.text.textContent = `${settings.k} of ${keys}`;
    stages.forEach((button, stage) => button.setAttribute("aria-pressed", stage === settings.stage));
    panel.replaceChildren(...massMeters(state), ...costMeters(state));
    status.textContent = describe(state);
    canvas.setAttribute("aria-label", `Stages 1 to ${settings.stage + 1} of DeepSeek Sparse Attention. ${status.textContent}`);
  }

  const address = keepInAddress(model, root, () => ({ query: model.get("step"), ...settings }), (texts) => {
    settings.k = wholeNumber(texts.k, [1, keys], settings.k);
    settings.stage = wholeNumber(texts.stage, [0, STAGES.length - 1], settings.stage);
    redraw();
    setStep(model, wholeNumber(texts.query, [0, queries - 1], model.get("step")));
  });
  const stop = keepDrawn(model, root, redraw);
  return () => {
    address.forget();
    stop();
  };
}

export default { render };
