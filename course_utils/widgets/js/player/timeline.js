// timeline.js — the whole launch in one picture: a row for each warp, a column for each step, coloured by what was done.

const DEEDS = [
  { name: "read, global", colour: "#2b7de0" },
  { name: "write, global", colour: "#a35bd6" },
  { name: "read, shared", colour: "#2e8b57" },
  { name: "write, shared", colour: "#c8641b" },
  { name: "product", colour: "#d1495b" },
  { name: "copy, mbarrier", colour: "#b39b00" },
  { name: "exchange between lanes", colour: "#1f9aa8" },
  { name: "outside of every array", colour: "#e0007a" },
];
const BARRIER = -2; // drawn in the ink of the page

// Which of DEEDS a step is; BARRIER for a barrier of the block, -1 for what is not drawn.
function kindOfDeed(rec, step) {
  const name = rec.meta.ops[rec.steps.op[step]];
  if (name === "barrier") return BARRIER;
  if (name === "exchange" || name === "warp barrier") return 6;
  if (name === "product" || name === "wgmma") return 4;
  if (["copy", "arrive", "wait", "phase", "copy read", "copy write"].includes(name)) return 5;
  const array = rec.arrays[rec.steps.array[step]];
  if (!array) return rec.addressed.has(rec.steps.op[step]) && rec.steps.warp[step] >= 0 ? 7 : -1;
  return (array.space === "shared" ? 2 : 0) + (name === "read" ? 0 : 1);
}

const TIMELINE = { top: 10, bottom: 8, wide: { row: [3, 11], most: 84 }, short: { row: [2, 8], most: 48 } };

function timelinePanel(rec, act, isShort = false) {
  const canvas = element("canvas", { role: "img", class: "ak-timeline" });
  const kinds = [...new Set(Array.from({ length: rec.count }, (_, step) => kindOfDeed(rec, step)))];
  const legend = () => element("div", { class: "ak-legend ak-note" },
    ...DEEDS.filter((_, n) => kinds.includes(n)).map(({ name, colour }) => element("span", {}, swatch(colour), name)),
    ...(kinds.includes(BARRIER) ? [element("span", {}, swatch("currentColor"), "barrier")] : []),
    ...(rec.flights.length ? [element("span", {}, "last row: copies and products in flight")] : []),
    ...(rec.meta.findings.length ? [element("span", {}, "▼ finding")] : []));
  const rows = rec.meta.warps + (rec.flights.length ? 1 : 0); // the last is for what goes on by itself
  const { row: [least, highest], most } = isShort ? TIMELINE.short : TIMELINE.wide;
  const height = Math.min(Math.max(most / rows, least), highest);
  let picture = null; // all but the cursor; made again for another width or ink
  let made = "";

  const across = (step, width) => (rec.count < 2 ? 0 : (step / (rec.count - 1)) * (width - 1));

  function make(width, theme) {
    const ratio = window.devicePixelRatio || 1;
    picture = new OffscreenCanvas(Math.round(width * ratio), Math.round(rows * height * ratio));
    const ctx = picture.getContext("2d");
    ctx.scale(ratio, ratio);
    const wide = Math.max(width / rec.count, 1 / ratio);
    const drawn = new Int32Array(rows).fill(-1); // the device pixel that was last filled, by row
    for (let step = 0; step < rec.count; step++) {
      const kind = kindOfDeed(rec, step);
      const x = across(step, width - wide);
      const row = rec.steps.warp[step];
      if (row < 0 || kind === -1 || (kind !== BARRIER && Math.floor(x * ratio) === drawn[row])) continue;
      drawn[row] = Math.floor(x * ratio);
      ctx.fillStyle = kind === BARRIER ? theme.ink : DEEDS[kind].colour;
      ctx.fillRect(x, row * height, wide, height - (height > 4 ? 1 : 0));
    }
    ctx.globalAlpha = 0.5; // copies above products, darker where there are several
    for (const { begin, end, kind } of rec.flights) {
      const isCopy = kind !== "wgmma" && kind !== "product";
      ctx.fillStyle = DEEDS[isCopy ? 5 : 4].colour;
      ctx.fillRect(across(begin, width), rec.meta.warps * height + (isCopy ? 0 : height / 2), Math.max(1, across(end, width) - across(begin, width)), height / 2);
    }
  }

  function draw(view, theme, width) {
    const tall = TIMELINE.top + rows * height + TIMELINE.bottom;
    const ctx = prepare(canvas, width, tall);
    if (made !== `${width} ${theme.ink}`) {
      make(width, theme);
      made = `${width} ${theme.ink}`;
    }
    ctx.drawImage(picture, 0, TIMELINE.top, width, rows * height);
    ctx.fillStyle = theme.ink;
    for (const { step, other_step } of rec.findings) {
      for (const at of [step, other_step]) if (at >= 0) triangle(ctx, across(at, width), 1, 7);
    }
    for (const step of view.writes ?? []) ctx.fillRect(across(step, width) - 0.5, tall - TIMELINE.bottom + 2, 1.5, 5);
    const x = across(view.step, width);
    const row = rec.steps.warp[view.step] < 0 ? rows - 1 : rec.steps.warp[view.step];
    ctx.fillRect(x - 0.75, TIMELINE.top - 4, 1.5, rows * height + 8);
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(Math.min(Math.max(x - 3, 1), width - 7), TIMELINE.top + row * height - 1.5, 6, height + 2);
    canvas.setAttribute("aria-label", `All ${bytes(rec.count)} steps, a row for each of ${rec.meta.warps} warps. Now step ${bytes(view.step)}.`);
  }

  clickable(canvas, (x) => Math.round((x / parseFloat(canvas.style.width)) * (rec.count - 1)), act.go);
  return { node: element("div", { class: "ak-player-timeline" }, canvas, legend()), draw, legend };
}

function triangle(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size / 2, y);
  ctx.lineTo(x + size / 2, y);
  ctx.lineTo(x, y + size);
  ctx.fill();
}

function swatch(colour) {
  return element("i", { class: "ak-swatch", style: `background: ${colour}` });
}
