// two_pieces.js — a list of scores cut in two: each piece relative to its own maximum, then both to the larger (chapter 02).

// What pieces.py's `merged` gives.
export function merge(scores, cut) {
  const part = (list) => {
    const m = Math.max(...list);
    return [m, list.reduce((sum, x) => sum + Math.exp(x - m), 0)];
  };
  const [[m1, l1], [m2, l2]] = [part(scores.slice(0, cut)), part(scores.slice(cut))];
  const m = Math.max(m1, m2);
  const [a1, a2] = [Math.exp(m1 - m), Math.exp(m2 - m)];
  return { m1, l1, m2, l2, a1, a2, m, l: a1 * l1 + a2 * l2 };
}

const SIZE = { bar: 26, high: 130, left: 8, top: 44, gap: 44 };

// The panels stand side by side, or one below the other where there is no room for that.
function layoutOf(count, room) {
  const panel = count * SIZE.bar;
  const [wide, high] = [panel + SIZE.left, SIZE.top + SIZE.high + 24];
  const sideBySide = 2 * wide + SIZE.gap <= room;
  const second = sideBySide ? { x: panel + SIZE.gap, y: 0 } : { x: 0, y: high + 12 };
  return { second, width: sideBySide ? 2 * wide + SIZE.gap : Math.max(wide, 300), height: high + second.y };
}

function drawPanel(ctx, theme, title, { scores, cut, heights, ghosts }) {
  const [x, base] = [SIZE.left, SIZE.top + SIZE.high];
  title.forEach((line, k) => write(ctx, theme, line, x, 10 + 17 * k, { size: 12.5, bold: k === 0 }));
  scores.forEach((score, n) => {
    const left = x + n * SIZE.bar;
    if (ghosts) {
      ctx.save();
      ctx.setLineDash([3, 3]);
      frame(ctx, theme, left + 3, base - ghosts[n] * SIZE.high, SIZE.bar - 6, ghosts[n] * SIZE.high, 0.6);
      ctx.restore();
    }
    ctx.fillStyle = n < cut ? COLOURS.Q : COLOURS.pick;
    ctx.fillRect(left + 3, base - heights[n] * SIZE.high, SIZE.bar - 6, heights[n] * SIZE.high);
    write(ctx, theme, `${score}`, left + SIZE.bar / 2, base + 12, { size: 11, align: "center" });
  });
  const at = x + cut * SIZE.bar;
  ctx.save();
  ctx.strokeStyle = theme.ink;
  ctx.setLineDash([5, 4]);
  ctx.beginPath();
  ctx.moveTo(at, SIZE.top - 4);
  ctx.lineTo(at, base + 20);
  ctx.stroke();
  ctx.restore();
}

function describe({ m1, m2, a1, a2, l, l1, l2 }, cut) {
  const same = m1 === m2;
  const which = m1 < m2 ? "first" : "second";
  const shrinks = same
    ? "Both pieces have the same maximum: neither shrinks."
    : `The ${which} piece has the smaller maximum: all of it shrinks by e^(${number(Math.min(m1, m2), 1)} − ${number(Math.max(m1, m2), 1)}) = ${number(Math.min(a1, a2), 3)}.`;
  return `Cut after ${plural(cut, "score")}. ${shrinks} l = ${number(a1, 3)} · ${number(l1, 3)} + ${number(a2, 3)} · ${number(l2, 3)} = ${number(l, 4)}, wherever the cut is.`;
}

function render({ model, el }) {
  const { scores } = model.get("meta");
  const last = scores.length - 2;
  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const steps = stepper("cut", last, (step) => setStep(model, step));
  const root = element("div", { class: "ak-widget", "data-widget": "two-pieces" },
    element("div", { class: "ak-row" }, steps.prev, steps.next, steps.row), canvas, status);
  el.append(root);

  function redraw() {
    const cut = model.get("step") + 1;
    const at = merge(scores, cut);
    const own = scores.map((x, n) => Math.exp(x - (n < cut ? at.m1 : at.m2)));
    const both = scores.map((x) => Math.exp(x - at.m));
    const { second, width, height } = layoutOf(scores.length, widthOf(root, Infinity));
    const ctx = prepare(canvas, width, height);
    const theme = themeOf(root);
    drawPanel(ctx, theme, ["Each piece relative to its own maximum",
      `m₁ = ${number(at.m1, 1)}, l₁ = ${number(at.l1, 3)}    m₂ = ${number(at.m2, 1)}, l₂ = ${number(at.l2, 3)}`],
      { scores, cut, heights: own });
    ctx.translate(second.x, second.y);
    drawPanel(ctx, theme, ["Both relative to the larger one",
      `m = ${number(at.m, 1)}, l = ${number(at.l, 4)}`], { scores, cut, heights: both, ghosts: own });
    steps.input.value = cut - 1;
    steps.text.textContent = `${cut} and ${scores.length - cut}`;
    status.textContent = describe(at, cut);
    canvas.setAttribute("aria-label", `Terms of both pieces. ${status.textContent}`);
  }

  const cutAt = (x) => {
    const { second } = layoutOf(scores.length, widthOf(root, Infinity));
    const inPanel = second.x && x > second.x - SIZE.gap / 2 ? x - second.x : x;
    const cut = Math.round((inPanel - SIZE.left) / SIZE.bar);
    return Math.min(Math.max(cut - 1, 0), last);
  };
  clickable(canvas, cutAt, (step) => setStep(model, step));
  return keepDrawn(model, root, redraw);
}

export default { render };
