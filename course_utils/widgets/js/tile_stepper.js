// tile_stepper.js — FlashAttention's forward pass, one tile per step (chapter 02). Python computed every value; this draws.

// Take the float32 buffer apart again, in the order of stepper.py's _tensors.
export function unpack(meta, values) {
  let at = 0;
  const take = (count) => values.subarray(at, (at += count));
  let requested = 0;
  return meta.steps.map((step) => {
    const height = step.rows[1] - step.rows[0];
    const width = step.cols ? step.cols[1] - step.cols[0] : 0;
    requested += step.read + step.written;
    return {
      ...step, height, width, requested,
      S: step.kind === "tile" ? take(height * width) : null,
      m: take(height), l: take(height), tail: take(height), // tail: LSE in a "write" step, else exp(m_old - m)
      O: take(height * meta.dim),
    };
  });
}

// What the step did, in words.
export function describe(steps, now, meta) {
  const { kind, i, j, height, tail, read, written } = steps[now];
  if (kind === "write")
    return (
      `Query tile ${i} is finished: one division O / l, then O and LSE = m + ln l go to global memory ` +
      `(${bytes(written)} bytes). Its scores were never stored there.`
    );
  if (kind === "skipped")
    return (
      `Query tile ${i}, key tile ${j}: every key of the tile comes after every query of it, so the causal mask hides all ` +
      `of it. The kernel skips it: no K, no V, no arithmetic.`
    );
  const loads = j === 0 ? `loads Q${sub(i)}, K${sub(j)} and V${sub(j)}` : `keeps Q${sub(i)}, loads K${sub(j)} and V${sub(j)}`;
  const risen = tail.reduce((count, factor) => count + (factor < 1), 0);
  const rescaled =
    j === 0 ? "First tile of the row of tiles: m, l and O start here, so there is nothing to rescale."
    : risen === 0 ? "No row maximum rises: every factor is 1 and O stays as it is."
    : `The maximum m rises in ${risen} of ${height} rows: their old l and O are multiplied by exp(m_old − m).`;
  return `Query tile ${i}, key tile ${j}: ${loads} (${bytes(read)} bytes). ${rescaled}`;
}

function sub(n) {
  return [...String(n)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[Number(digit)]).join("");
}

// ---- the overview: all tiles of S, with the strips of Q, K, V and O beside them

function overviewLayout({ query_length, key_length }) {
  const perRow = Math.min(200 / query_length, 24);
  const perCol = Math.min(200 / key_length, 24);
  const S = { x: 74, y: 104, width: Math.max(perCol * key_length, 60), height: Math.max(perRow * query_length, 40) };
  return { S, strip: 24, width: S.x + S.width + 48, height: S.y + S.height + 30 };
}

function tileBox(step, meta, S) {
  const [x, y] = [S.width / meta.key_length, S.height / meta.query_length];
  const box = { y: S.y + step.rows[0] * y, height: step.height * y };
  return step.cols ? { ...box, x: S.x + step.cols[0] * x, width: step.width * x } : { ...box, x: S.x, width: S.width };
}

function drawOverview(ctx, theme, { steps, now, meta, ranges }) {
  const { S, strip } = overviewLayout(meta);
  const current = steps[now];
  const rows = { K: S.y - 2 * strip - 25, V: S.y - strip - 18 };
  const columns = { Q: S.x - strip - 7, O: S.x + S.width + 7 };
  write(ctx, theme, "All of S = scale · Q Kᵀ, never stored", 4, 10, { bold: true });
  for (const name of ["K", "V"]) write(ctx, theme, name, S.x - 8, rows[name] + strip / 2, { align: "right", bold: true, colour: inked(theme, COLOURS[name]) });
  for (const name of ["Q", "O"]) write(ctx, theme, name, columns[name] + strip / 2, S.y - 9, { align: "center", bold: true, colour: inked(theme, COLOURS[name]) });

  steps.forEach((step, n) => {
    const box = tileBox(step, meta, S);
    if (step.kind === "write") {
      const O = { x: columns.O, y: box.y, width: strip, height: box.height };
      if (n <= now) drawCells(ctx, theme, step.O, step.height, meta.dim, ranges.output, O.x, O.y, O.width, O.height);
      else part(ctx, theme, O, step.i === current.i ? COLOURS.O : null, 0.35);
      part(ctx, theme, { ...O, x: columns.Q }, step.i === current.i && current.kind !== "write" ? COLOURS.Q : null);
      return;
    }
    if (step.i === current.i) {
      for (const name of ["K", "V"]) {
        const loaded = step.j === current.j && current.kind === "tile";
        part(ctx, theme, { x: box.x, y: rows[name], width: box.width, height: strip }, loaded ? COLOURS[name] : null);
      }
    }
    if (step.kind === "skipped") hatch(ctx, theme, box.x, box.y, box.width, box.height);
    else if (n < now) part(ctx, theme, box, COLOURS.S, 0.35);
    if (n === now && step.S) drawCells(ctx, theme, step.S, step.height, step.width, ranges.S, box.x, box.y, box.width, box.height);
    frame(ctx, theme, box.x, box.y, box.width, box.height);
  });
  if (meta.is_causal) drawDiagonal(ctx, theme, meta, S);
  const box = tileBox(current, meta, S);
  ctx.strokeStyle = COLOURS.pick;
  ctx.lineWidth = 2.5;
  ctx.strokeRect(box.x, box.y, box.width, box.height);
  write(ctx, theme, `${meta.key_length} keys`, S.x + S.width / 2, S.y + S.height + 14, { align: "center" });
  ctx.save();
  ctx.translate(18, S.y + S.height / 2);
  ctx.rotate(-Math.PI / 2);
  write(ctx, theme, `${meta.query_length} queries`, 0, 0, { align: "center" });
  ctx.restore();
}

function part(ctx, theme, { x, y, width, height }, colour, alpha = 1) {
  if (colour) {
    ctx.save();
    ctx.globalAlpha = alpha;
    ctx.fillStyle = colour;
    ctx.fillRect(x, y, width, height);
    ctx.restore();
  }
  frame(ctx, theme, x, y, width, height);
}

// The staircase between visible and masked keys.
function drawDiagonal(ctx, theme, { query_length, key_length }, S) {
  const [x, y] = [S.width / key_length, S.height / query_length];
  ctx.beginPath();
  for (let i = 0; i < query_length; i++) {
    const edge = S.x + Math.min(Math.max(i + 1 + key_length - query_length, 0), key_length) * x;
    ctx.lineTo(edge, S.y + i * y);
    ctx.lineTo(edge, S.y + (i + 1) * y);
  }
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 1.5;
  ctx.stroke();
}

// ---- the close-up: what one thread block holds, one line per query of the tile

function closeUpLayout({ block_rows, block_cols, dim, query_length, key_length }, room) {
  const row = Math.min(Math.max(256 / Math.min(block_rows, query_length), 13), 24);
  const narrow = room < 480; // all as narrow as its heading
  const S = { x: 42, y: 60, width: narrow ? 60 : Math.max(Math.min(block_cols, key_length) * 7, 90) };
  const table = S.x + S.width + 14;
  const columns = (narrow ? [16, 84, 146] : [24, 104, 172]).map((x) => table + x);
  const O = { x: table + (narrow ? 174 : 204), width: narrow ? 60 : Math.min(Math.max(dim * 7, 116), 150) };
  return { row, S, columns, O, width: O.x + O.width + 6, height: S.y + row * Math.min(block_rows, query_length) + 34 };
}

function drawCloseUp(ctx, theme, { steps, now, meta, ranges, room }) {
  const step = steps[now];
  const previous = now > 0 && steps[now - 1].i === step.i ? steps[now - 1] : null;
  const { row, S, columns, O } = closeUpLayout(meta, room);
  const height = row * step.height;
  const writing = step.kind === "write";
  const centre = { align: "center" };
  write(ctx, theme, `On the chip: query tile ${step.i}${writing ? "" : `, key tile ${step.j}`}`, 4, 10, { bold: true });
  write(ctx, theme, "query", S.x - 8, S.y - 12, { size: 11, align: "right" });
  write(ctx, theme, "S", S.x + S.width / 2, S.y - 27, { ...centre, bold: true });
  if (step.cols) write(ctx, theme, `keys ${step.cols[0]}–${step.cols[1] - 1}`, S.x + S.width / 2, S.y - 12, { ...centre, size: 11 });
  const heads = ["m", writing ? "LSE" : "exp(m_old − m)", "l"];
  const under = ["maximum", writing ? "m + ln l" : "rescale", "sum"];
  heads.forEach((head, k) => write(ctx, theme, head, columns[k], S.y - 27, { ...centre, bold: true, size: k === 1 ? 11.5 : 12 }));
  under.forEach((word, k) => write(ctx, theme, word, columns[k], S.y - 12, { ...centre, size: 11 }));
  write(ctx, theme, writing ? "O / l" : "O", O.x + O.width / 2, S.y - 27, { ...centre, bold: true });
  write(ctx, theme, writing ? "final" : O.width < 116 ? "running" : "running, unnormalised", O.x + O.width / 2, S.y - 12, { ...centre, size: 11 });

  if (step.S) {
    const width = (S.width * step.width) / Math.min(meta.block_cols, meta.key_length);
    drawCells(ctx, theme, step.S, step.height, step.width, ranges.S, S.x, S.y, width, height);
    drawScale(ctx, theme, ranges.S, S.x, S.y + height + 8, S.width, 1);
  } else {
    if (!writing) hatch(ctx, theme, S.x, S.y, S.width, height);
    frame(ctx, theme, S.x, S.y, S.width, height);
    const words = writing ? ["all key tiles", "are done"] : ["skipped"];
    if (!writing) ctx.clearRect(S.x + S.width / 2 - 32, S.y + height / 2 - 11, 64, 22);
    words.forEach((word, k) => write(ctx, theme, word, S.x + S.width / 2, S.y + height / 2 + (k - (words.length - 1) / 2) * 16, centre));
  }

  for (let r = 0; r < step.height; r++) {
    const y = S.y + (r + 0.5) * row;
    const risen = step.kind === "tile" && (previous ? step.m[r] > previous.m[r] : step.m[r] > -Infinity);
    const style = { size: 11.5, align: "right" };
    write(ctx, theme, `${step.rows[0] + r}`, S.x - 8, y, { ...style, size: 11 });
    if (!writing) {
      ctx.save();
      ctx.globalAlpha = 0.28;
      ctx.fillStyle = COLOURS.pick;
      ctx.fillRect(columns[1] - 32, y - row / 2 + 1, 64 * step.tail[r], row - 2);
      ctx.restore();
    }
    write(ctx, theme, number(step.m[r], 2), columns[0] + 22, y, { ...style, bold: risen });
    write(ctx, theme, number(step.tail[r], writing ? 2 : 3), columns[1] + 20, y, style);
    write(ctx, theme, number(step.l[r], 2), columns[2] + 22, y, style);
  }
  const range = writing ? ranges.output : ranges.running[step.i];
  drawCells(ctx, theme, step.O, step.height, meta.dim, range, O.x, S.y, O.width, height);
  drawScale(ctx, theme, range, O.x, S.y + height + 8, O.width, 1);
}

// One colour range for all scores, one for the running O of each query tile, one for the final O: colours stay comparable.
function rangesOf(steps) {
  const balanced = (parts) => {
    const most = Math.max(...parts.flatMap(rangeOf).map(Math.abs));
    return [-most, most];
  };
  const join = (parts) => {
    const ends = parts.map(rangeOf);
    return [Math.min(...ends.map((end) => end[0])), Math.max(...ends.map((end) => end[1]))];
  };
  const running = [];
  for (const step of steps) {
    if (step.kind !== "write") (running[step.i] ??= []).push(step.O);
  }
  return {
    S: join(steps.filter((step) => step.S).map((step) => step.S)),
    running: running.map(balanced),
    output: balanced(steps.filter((step) => step.kind === "write").map((step) => step.O)),
  };
}

// ---- memory, in words and bars

function sharedMeter({ shared }) {
  const total = Object.values(shared).reduce((sum, part) => sum + part, 0);
  const parts = Object.entries(shared).map(([name, part]) =>
    element("span", { style: `flex: ${part} 0 0; background: ${COLOURS[name]}`, title: `${name}: ${bytes(part)} bytes` }, name));
  const terms = Object.entries(shared).map(([name, part]) => `${name} ${bytes(part)}`).join(" + ");
  return element("div", {},
    element("div", {}, element("b", {}, `Shared memory per thread block: ${bytes(total)} bytes`)),
    element("div", { class: "ak-bar" }, ...parts),
    element("div", { class: "ak-note" }, `${terms}; a kernel gets 49,152 without asking`));
}

function globalMeter(meta, total) {
  const end = Math.max(meta.naive_bytes, total);
  const text = element("b");
  const fill = element("span", { style: `background: ${COLOURS.pick}` });
  const marks = [total, meta.naive_bytes].map((at) => element("i", { style: `left: calc(${(100 * at) / end}% - 2px)` }));
  const node = element("div", {}, element("div", {}, text),
    element("div", { class: "ak-bar" }, fill, ...marks),
    element("div", { class: "ak-note" },
      `marks: ${bytes(total)} for this whole run; ${bytes(meta.naive_bytes)} for the naive algorithm, which stores S and P`));
  const show = (requested) => {
    text.textContent = `Global bytes requested so far: ${bytes(requested)}`;
    fill.style.width = `${(100 * requested) / end}%`;
  };
  return { node, show };
}

function render({ model, el }) {
  const meta = model.get("meta");
  const steps = unpack(meta, floats(model.get("data")));
  const last = steps.length - 1;
  const ranges = rangesOf(steps);
  const overview = element("canvas", { role: "img" });
  const closeUp = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const controls = stepper("step", last, (step) => setStep(model, step));
  const play = control("button", { class: "ak-play", type: "button", onclick: () => (timer ? stop() : start()) }, "Play");
  const meter = globalMeter(meta, steps[last].requested);
  let timer = null;

  const root = element("div", { class: "ak-widget", "data-widget": "tile-stepper" },
    element("div", { class: "ak-row" }, controls.prev, controls.next, play, controls.row),
    status,
    element("div", { class: "ak-columns" },
      element("div", { class: "ak-overview" }, overview,
        element("div", { class: "ak-legend" },
          legendItem(`none; border: 2.5px solid ${COLOURS.pick}`, "this tile"),
          legendItem(`color-mix(in srgb, ${COLOURS.S} 35%, transparent)`, "done"),
          ...(meta.is_causal ? [legendItem("", "skipped", "ak-hatch")] : []),
          legendItem("", "to come"))),
      closeUp),
    ...(meta.small ? [] : [element("div", { class: "ak-meters" }, sharedMeter(meta), meter.node)]));
  el.append(root);

  function redraw() {
    const now = model.get("step");
    const room = widthOf(root, Infinity);
    const state = { steps, now, meta, ranges, room };
    const theme = themeOf(root);
    for (const [canvas, layout, draw] of [[overview, overviewLayout, drawOverview], [closeUp, closeUpLayout, drawCloseUp]]) {
      const { width, height } = layout(meta, room);
      draw(prepare(canvas, width, height), theme, state);
    }
    controls.input.value = now;
    controls.text.textContent = `${now + 1} of ${last + 1}`;
    status.textContent = `Step ${now + 1} of ${last + 1}. ${describe(steps, now, meta)}`;
    meter.show(steps[now].requested);
    overview.setAttribute("aria-label", `Tiles of the score matrix. ${status.textContent}`);
    closeUp.setAttribute("aria-label", `Scores of the tile, m, l, rescale factor and O. ${status.textContent}`);
  }

  function start() {
    if (model.get("step") === last) setStep(model, 0);
    play.textContent = "Pause";
    timer = setInterval(() => (model.get("step") < last ? setStep(model, model.get("step") + 1) : stop()), 900);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  // Who asks for less motion steps: nothing plays by itself.
  const lessMotion = matchMedia("(prefers-reduced-motion: reduce)");
  const heed = () => {
    play.hidden = lessMotion.matches;
    if (lessMotion.matches) stop();
  };
  lessMotion.addEventListener("change", heed);
  heed();

  const tileAt = (offsetX, offsetY) => {
    const { S } = overviewLayout(meta);
    const hit = steps.findIndex((step) => {
      const box = tileBox(step, meta, S);
      return step.cols && offsetX >= box.x && offsetX < box.x + box.width && offsetY >= box.y && offsetY < box.y + box.height;
    });
    return hit >= 0 ? hit : null;
  };
  clickable(overview, tileAt, (step) => setStep(model, step));
  const forget = keepDrawn(model, root, redraw);
  return () => {
    stop();
    lessMotion.removeEventListener("change", heed);
    forget();
  };
}

export default { render };
