// score_heatmap.js — scores and softmax weights of one head (chapter 01). Everything is computed here, from q and k.

// q·k for every pair, Float64Array [rows * cols]; computed once, since scale and mask only change what follows.
export function dotProducts(query, key, rows, cols, dim) {
  const dots = new Float64Array(rows * cols);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < cols; j++) {
      let sum = 0;
      for (let c = 0; c < dim; c++) sum += query[i * dim + c] * key[j * dim + c];
      dots[i * cols + j] = sum;
    }
  }
  return dots;
}

// Scaled scores (-Infinity where masked, bottom-right aligned) and softmax weights (0 in a row that sees no key).
export function attend(dots, rows, cols, scale, causal) {
  const scores = new Float64Array(rows * cols);
  const weights = new Float64Array(rows * cols);
  for (let i = 0; i < rows; i++) {
    const visible = causal ? Math.min(Math.max(i + cols - rows + 1, 0), cols) : cols;
    let most = -Infinity;
    for (let j = 0; j < cols; j++) {
      scores[i * cols + j] = j < visible ? scale * dots[i * cols + j] : -Infinity;
      most = Math.max(most, scores[i * cols + j]);
    }
    let sum = 0;
    for (let j = 0; j < visible; j++) sum += weights[i * cols + j] = Math.exp(scores[i * cols + j] - most);
    for (let j = 0; j < visible; j++) weights[i * cols + j] /= sum;
  }
  return { scores, weights };
}

// The row in words: where it looks most, and how widely.
export function describe({ rows, cols, row, weights, queryNames, keyNames, causal }) {
  const mine = weights.subarray(row * cols, (row + 1) * cols);
  const query = nameOf(queryNames, row);
  const visible = causal ? Math.min(Math.max(row + cols - rows + 1, 0), cols) : cols;
  if (visible === 0) return `Query ${query} sees no key: all its weights are 0, and so is its output.`;
  const best = mine.indexOf(Math.max(...mine));
  const entropy = -mine.reduce((sum, w) => sum + (w > 0 ? w * Math.log(w) : 0), 0);
  const seen = causal ? ` It sees ${visible} of ${cols} keys.` : "";
  return (
    `Query ${query} attends most to key ${nameOf(keyNames, best)}, with weight ${number(mine[best], 3)}.${seen} ` +
    `Entropy ${number(entropy, 2)} nats: as spread out as an even choice among ${number(Math.exp(entropy), 1)} keys.`
  );
}

function nameOf(names, index) {
  return names ? `${index} “${names[index]}”` : `${index}`;
}

// Where things go; recomputed only from the sizes.
function layoutOf({ rows, cols, queryNames, keyNames, room }) {
  const left = queryNames ? 98 : 50;
  const most = Math.min(Math.floor(352 / Math.max(rows, cols)), Math.floor((room - left - 3) / cols));
  const cell = Math.min(Math.max(most, 6), 36);
  const map = { x: left, y: 44, width: cell * cols, height: cell * rows };
  const below = keyNames ? 74 : 22;
  const bars = { x: left, y: map.y + map.height + 34, width: map.width, height: 90 };
  return { cell, map, bars, width: left + Math.max(map.width, 210) + 3, height: bars.y + bars.height + below + 24 };
}

function draw(ctx, theme, state) {
  const { rows, cols, row, mode, scores, weights, queryNames, keyNames } = state;
  const { cell, map, bars } = layoutOf(state);
  const visible = mode === "weights" ? weights.map((w, n) => (scores[n] === -Infinity ? NaN : w)) : scores;
  const range = mode === "weights" ? [0, rangeOf(visible)[1]] : rangeOf(visible);
  const mine = weights.subarray(row * cols, (row + 1) * cols);
  const best = mine.indexOf(Math.max(...mine));

  drawScale(ctx, theme, range, map.x, 6, 150, mode === "weights" ? 3 : 2);
  write(ctx, theme, mode === "weights" ? "weight" : "score", map.x + 160, 10, { size: 12 });
  drawCells(ctx, theme, visible, rows, cols, range, map.x, map.y, map.width, map.height);
  if (cell >= 26) writeValues(ctx, theme, visible, rows, cols, range, map, cell);
  ctx.strokeStyle = COLOURS.pick;
  ctx.lineWidth = 2;
  ctx.strokeRect(map.x - 1, map.y + row * cell - 1, map.width + 2, cell + 2);

  for (const i of labelled(rows, cell, row)) {
    const text = queryNames ? `${shorten(queryNames[i], 10)}  ${i}` : `${i}`;
    const style = i === row ? { bold: true } : { colour: theme.ink };
    write(ctx, theme, text, map.x - 8, map.y + (i + 0.5) * cell, { size: 11, align: "right", ...style });
  }
  sideways(ctx, 9, map.y + map.height / 2, () => write(ctx, theme, "query i", 0, 0, { align: "center" }));

  drawBars(ctx, theme, mine, best, bars, cell, `weights of query ${nameOf(queryNames, row)}`);
  for (const j of labelled(cols, cell, best)) {
    const style = { size: 11, bold: j === best };
    const [x, y] = [bars.x + (j + 0.5) * cell, bars.y + bars.height + 6];
    if (keyNames) sideways(ctx, x, y, () => write(ctx, theme, `${shorten(keyNames[j], 10)}  ${j}`, 0, 0, { ...style, align: "right" }));
    else write(ctx, theme, `${j}`, x, y + 6, { ...style, align: "center" });
  }
  const foot = bars.y + bars.height + (keyNames ? 84 : 30);
  write(ctx, theme, "key j", bars.x + bars.width / 2, foot, { align: "center" });
}

function writeValues(ctx, theme, values, rows, cols, [low, high], map, cell) {
  for (let n = 0; n < rows * cols; n++) {
    if (!Number.isFinite(values[n])) continue;
    const ink = inkOn(colourAt(high > low ? (values[n] - low) / (high - low) : 0.5));
    const [x, y] = [map.x + ((n % cols) + 0.5) * cell, map.y + (Math.floor(n / cols) + 0.5) * cell];
    write(ctx, theme, number(values[n], 2), x, y, { size: 10.5, align: "center", colour: ink });
  }
}

// The picked index and as many others as fit, at least 14 pixels apart.
function labelled(count, cell, picked) {
  const every = [1, 2, 4, 8, 16].find((step) => step * cell >= 14);
  const others = [...Array(count).keys()].filter((n) => n % every === 0 && (Math.abs(n - picked) * cell >= 14 || n === picked));
  return others.includes(picked) ? others : [...others, picked];
}

function sideways(ctx, x, y, writeAtOrigin) {
  ctx.save();
  ctx.translate(x, y);
  ctx.rotate(-Math.PI / 2);
  writeAtOrigin();
  ctx.restore();
}

function drawBars(ctx, theme, mine, best, box, cell, title) {
  const top = [0.02, 0.05, 0.1, 0.2, 0.5, 1].find((limit) => mine[best] <= limit + 1e-9);
  write(ctx, theme, title, box.x, box.y - 12, { bold: true });
  for (const value of [0, top / 2, top]) {
    const y = box.y + box.height * (1 - value / top);
    ctx.save();
    ctx.globalAlpha = 0.25;
    ctx.fillStyle = theme.ink;
    ctx.fillRect(box.x, Math.round(y), box.width, 1);
    ctx.restore();
    write(ctx, theme, number(value, top < 0.1 ? 3 : 2), box.x - 8, y, { size: 11, align: "right" });
  }
  mine.forEach((weight, j) => {
    const height = (box.height * weight) / top;
    ctx.fillStyle = j === best ? COLOURS.pick : COLOURS.Q;
    ctx.fillRect(box.x + j * cell + (cell > 8 ? 1 : 0.5), box.y + box.height - height, cell - (cell > 8 ? 2 : 1), height);
  });
}

function render({ model, el }) {
  const meta = model.get("meta");
  const { rows, cols, dim } = meta;
  const values = floats(model.get("data"));
  const dots = dotProducts(values.subarray(0, rows * dim), values.subarray(rows * dim), rows, cols, dim);
  const settings = { mode: "weights", causal: meta.is_causal, exponent: 0 };

  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const steps = stepper("query row", rows - 1, (row) => setStep(model, row));
  const factor = slider("scale", { class: "ak-scale", min: -3, max: 3, step: 0.25, value: 0 });
  const causal = control("input", { type: "checkbox", class: "ak-causal" });
  causal.checked = meta.is_causal;
  const change = (name, value) => {
    settings[name] = value;
    redraw();
  };
  factor.input.addEventListener("input", () => change("exponent", Number(factor.input.value)));
  causal.addEventListener("change", () => change("causal", causal.checked));
  const modes = radios("Show", ["weights", "scores"], settings.mode, (mode) => change("mode", mode));

  const root = element("div", { class: "ak-widget", "data-widget": "score-heatmap" },
    element("div", { class: "ak-columns ak-controls-last" }, canvas,
      element("div", { class: "ak-panel" },
        element("div", { class: "ak-title" }, "Who attends to whom"),
        element("div", { class: "ak-note" },
          "score = scale · (query i · key j). The softmax turns each row of scores into weights that add up to 1. ",
          "Click a row, or step through the rows."),
        steps.row,
        element("div", { class: "ak-row" }, steps.prev, steps.next),
        modes,
        element("label", {}, causal, "causal mask: a query sees no later key"),
        factor.row,
        status)));
  el.append(root);

  const sizes = () => ({ rows, cols, queryNames: meta.query_tokens, keyNames: meta.key_tokens, room: widthOf(root) });

  function redraw() {
    const scale = meta.scale * 2 ** settings.exponent;
    const state = {
      ...settings, ...sizes(), row: model.get("step"),
      ...attend(dots, rows, cols, scale, settings.causal),
    };
    const { width, height } = layoutOf(state);
    draw(prepare(canvas, width, height), themeOf(root), state);
    steps.input.value = state.row;
    steps.text.textContent = `${state.row} (0 to ${rows - 1})`;
    factor.text.textContent = `${scale.toPrecision(3)} = ${(2 ** settings.exponent).toFixed(2)} × ${meta.scale_name}`;
    status.textContent = describe(state);
    canvas.setAttribute("aria-label", `Heat map of ${settings.mode}. ${status.textContent}`);
  }

  const rowAt = (x, y) => {
    const { map, cell } = layoutOf(sizes());
    const row = Math.floor((y - map.y) / cell);
    return row >= 0 && row < rows ? row : null;
  };
  clickable(canvas, rowAt, (row) => setStep(model, row));
  return keepDrawn(model, root, redraw);
}

export default { render };
