// paint.js — paint a mask on a grid of 64 × 64 cells, and see what it costs, how far it reaches, and its code (chapter 04).
// with masks.js
// with address.js
// with score.js

const SIDE = 64;
const SIZES = [64, 128]; // tiles, in tokens
const BRUSHES = [1, 2, 4, 8];
const UNDONE = 50; // so many strokes can be taken back
const GRID = { x: 30, y: 22, foot: 22, strip: 44, gap: 26 };

// ---- the grid, a mask of 64 cells as masks.js has them

export const has = ({ bits }, i, j) => ((bits[2 * i + (j >> 5)] >>> (j & 31)) & 1) === 1;

function put({ bits }, i, j, on) {
  const [word, bit] = [2 * i + (j >> 5), 1 << (j & 31)];
  bits[word] = on ? bits[word] | bit : bits[word] & ~bit;
}

const empty = () => ({ length: SIDE, words: 2, bits: new Uint32Array(2 * SIDE) });
const copyOf = ({ bits }) => ({ ...empty(), bits: bits.slice() });
const isSame = (one, other) => one.bits.every((word, n) => word === other.bits[n]);
const countOf = ({ bits }) => bits.reduce((sum, word) => sum + ones(word), 0);

// The mask of tokens that a grid stands for, with so many tokens to a cell.
export function tokensOf(grid, cell) {
  if (cell === 1) return grid;
  const [length, words] = [SIDE * cell, (SIDE * cell) / 32];
  const bits = new Uint32Array(length * words);
  for (let i = 0; i < SIDE; i++) {
    const row = bits.subarray(i * cell * words, (i * cell + 1) * words);
    for (let j = 0; j < length; j++) if (has(grid, i, Math.floor(j / cell))) row[j >> 5] |= 1 << (j & 31);
    for (let more = 1; more < cell; more++) bits.set(row, (i * cell + more) * words);
  }
  return { length, words, bits };
}

// The cells that a stroke at (i, j) covers: a square, a row, a column or a diagonal, `size` cells wide.
export function strokeAt(shape, size, i, j) {
  const [top, left] = [i - (i % size), j - (j % size)];
  const inside = {
    square: (r, c) => r >= top && r < top + size && c >= left && c < left + size,
    row: (r) => r >= top && r < top + size,
    column: (r, c) => c >= left && c < left + size,
    diagonal: (r, c) => Math.floor((r - c) / size) === Math.floor((i - j) / size),
  }[shape];
  const cells = [];
  for (let r = 0; r < SIDE; r++) for (let c = 0; c < SIDE; c++) if (inside(r, c)) cells.push([r, c]);
  return cells;
}

// How many pairs of cells (first, second) there are in which the first draws on the second after so many layers, and how
// many there are in all.
export function reach(grid, layers, isCausal) {
  let [got, all] = [0, 0];
  for (let i = 0; i < SIDE; i++) {
    layersTo(grid, i).forEach((layer, j) => {
      if (isCausal && j > i) return;
      all += 1;
      got += layer >= 0 && layer <= layers;
    });
  }
  return [got, all];
}

// What a level asks for, in words, and whether the grid has it.
export function judged(grid, level) {
  const checks = [];
  if (level.causal) {
    let later = false;
    for (let i = 0; i < SIDE; i++) for (let j = i + 1; j < SIDE; j++) later ||= has(grid, i, j);
    checks.push(["no cell sees a later one", !later]);
  }
  if (level.layers) {
    const [got, all] = reach(grid, level.layers, level.causal);
    const whom = level.causal ? "every earlier one" : "every other one";
    checks.push([`each draws on ${whom} within ${level.layers} layers: ${bytes(got)} of ${bytes(all)}`, got === all]);
  }
  if (level.density) {
    const [pairs, most] = [countOf(grid), Math.floor(level.density * SIDE ** 2)];
    checks.push([`at most ${most} cells, ${Math.round(100 * level.density)}% of all: ${bytes(pairs)}`, pairs <= most]);
  }
  if (level.skipped) {
    const { skipped, side } = tilesOf(tokensOf(grid, 16), 128);
    const least = Math.ceil(level.skipped * side * side);
    checks.push([`at least ${least} of ${side * side} tiles of 128 skipped: ${skipped}`, skipped >= least]);
  }
  return checks;
}

// ---- its code

const keysOf = (grid, i) => Array.from({ length: SIDE }, (_, j) => j).filter((j) => has(grid, i, j));

// Kinds and arguments in cells that agree with the first or the last row.
function* guesses(grid, presets) {
  yield* Object.entries(presets);
  const [first, last] = [keysOf(grid, 0).length, keysOf(grid, SIDE - 1)];
  if (first) {
    yield ["local", { radius: first - 1 }];
    yield ["block_diagonal", { block: first }];
  }
  if (!last.length) return;
  yield ["sliding_window", { window: last.length }];
  if (last.length > 1) yield ["dilated", { window: last.length, dilation: last.at(-1) - last.at(-2) }];
  const run = (keys, at) => (keys.findIndex((key, n) => key !== at(n)) + keys.length + 1) % (keys.length + 1);
  const [sinks, window] = [run(last, (n) => n), run([...last].reverse(), (n) => SIDE - 1 - n)];
  if (window) yield ["streaming", { sinks, window }];
  for (let stride = 2; stride <= SIDE / 2; stride++) yield ["strided", { stride }];
}

// A pattern as one types it for cells of so many tokens; "" where blocks of tokens are no such pattern.
function callOf(kind, values, cell) {
  if (cell === 1) return codeOf(kind, values, SIDE);
  if (kind === "full") return "full()";
  if (kind === "block_diagonal") return codeOf(kind, { block: values.block * cell });
  if (kind === "local") {
    return codeOf("bigbird", { block: cell, global_blocks: 0, window_blocks: 2 * values.radius + 1, random_blocks: 0, seed: 0 });
  }
  return ["random_blocks", "bigbird"].includes(kind) ? codeOf(kind, { ...values, block: values.block * cell }) : "";
}

function maskBy(see) {
  const grid = empty();
  for (let i = 0; i < SIDE; i++) for (let j = 0; j < SIDE; j++) if (see(i, j)) put(grid, i, j, true);
  return grid;
}

// Calls of patterns that the grid may be, with the grids that they are.
function* known(grid, cell, presets) {
  for (const [kind, values] of guesses(grid, presets)) {
    const call = callOf(kind, values, cell);
    if (call) yield [call, maskOf(kind, values, SIDE)];
  }
  const starts = [];
  for (let i = 0; i < SIDE; i++) if (i === 0 || !has(grid, i, i - 1)) starts.push(i);
  const lengths = starts.map((start, n) => (starts[n + 1] ?? SIDE) - start);
  const documentOf = (i) => starts.findLastIndex((start) => start <= i);
  yield [`document([${lengths.map((length) => length * cell).join(", ")}])`, maskBy((i, j) => documentOf(i) === documentOf(j))];
  const isFull = (j) => Array.from({ length: SIDE }, (_, i) => i).every((i) => has(grid, i, j));
  const positions = Array.from({ length: SIDE }, (_, j) => j).filter(isFull);
  if (positions.length && cell === 1) {
    yield [`global_tokens([${positions.join(", ")}])`, maskBy((i, j) => positions.includes(i) || positions.includes(j))];
  }
}

const namesIn = (call) => [...new Set([...call.matchAll(/(\w+)\(/g)].map(([, name]) => name))].filter((name) => name !== "range").join(", ");

// The first call of a pattern that makes this grid, if there is one.
function foundCall(grid, cell, presets) {
  for (const [call, mask] of known(grid, cell, presets)) if (isSame(mask, grid)) return call;
  return null;
}

// Python that makes the pattern of a grid: a call of a known pattern, or of one for blocks, or the list of what each row
// sees.
export function pythonOf(grid, cell, presets) {
  const lookUp = `pattern = from_mask_mod(lambda b, h, i, j: seen[i // ${cell}, j // ${cell}])\n`;
  const call = foundCall(grid, cell, presets);
  if (call) return `from course_utils.patterns import ${namesIn(call)}\n\npattern = ${call}\n`;
  const ofBlocks = cell > 1 ? foundCall(grid, 1, presets) : null;
  if (ofBlocks) {
    const whole = ofBlocks.includes(" | ") ? `(${ofBlocks})` : ofBlocks;
    return `from course_utils.patterns import from_mask_mod, ${namesIn(ofBlocks)}\n\n` +
      `# A pattern of blocks of ${cell}.\nseen = ${whole}.mask(${SIDE})\n${lookUp}`;
  }
  const rows = Array.from({ length: SIDE }, (_, i) => keysOf(grid, i));
  const ends = [0];
  for (const row of rows) ends.push(ends.at(-1) + row.length);
  const lists = `indptr = [${ends.join(", ")}]\nindices = [${rows.flat().join(", ")}]\n`;
  if (cell === 1) {
    return "from course_utils.patterns import from_csr\n\n" +
      `# Row r sees the keys indices[indptr[r]:indptr[r + 1]].\n${lists}pattern = from_csr(indptr, indices)\n`;
  }
  return "import torch\n\nfrom course_utils.patterns import from_mask_mod\n\n" +
    `# Block CSR: row r of blocks of ${cell} sees the blocks indices[indptr[r]:indptr[r + 1]].\n${lists}` +
    `seen = torch.zeros(${SIDE}, ${SIDE}, dtype=torch.bool)\nfor r in range(${SIDE}):\n` +
    `    seen[r, indices[indptr[r]:indptr[r + 1]]] = True\n${lookUp}`;
}

// ---- the grid in an address: the name of a preset, or its bits in base 64

export function textOf(grid, presets) {
  const name = Object.keys(presets).find((kind) => isSame(grid, maskOf(kind, presets[kind], SIDE)));
  if (name) return name;
  const text = btoa(String.fromCharCode(...new Uint8Array(grid.bits.buffer)));
  return `.${text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

// The grid of such a text, or null.
export function gridOf(text, presets) {
  if (Object.hasOwn(presets, text)) return maskOf(text, presets[text], SIDE);
  if (!/^\.[\w-]{683}$/.test(text)) return null;
  const bytes = Uint8Array.from(atob(text.slice(1).replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
  return { ...empty(), bits: new Uint32Array(bytes.buffer) };
}

// ---- drawing

function drawGrid(ctx, theme, px, { grid, cell, tiles, query, cursor }) {
  const side = SIDE * px;
  const { x, y } = GRID;
  write(ctx, theme, cell === 1 ? "Query token i sees key token j" : "Query block i sees key block j", x, 9, { bold: true });
  for (const at of [0, 16, 32, 48]) write(ctx, theme, `${at}`, x - 6, y + (at + 0.5) * px, { size: 11, align: "right" });
  const step = tiles.size / cell; // cells of a tile; what the smaller tiles skip is hatched
  for (let r = 0; r < tiles.side; r++) {
    for (let c = 0; c < tiles.side; c++) {
      if (tiles.state[r * tiles.side + c] === SKIPPED) hatch(ctx, theme, x + c * step * px, y + r * step * px, step * px, step * px);
    }
  }
  ctx.fillStyle = COLOURS.Q;
  const gap = px > 5 ? 1 : 0;
  for (let i = 0; i < SIDE; i++) {
    for (let j = 0; j < SIDE; j++) if (has(grid, i, j)) ctx.fillRect(x + j * px, y + i * px, px - gap, px - gap);
  }
  ctx.save();
  ctx.fillStyle = theme.ink;
  for (let at = 8; at < SIDE; at += 8) {
    ctx.globalAlpha = at % 16 ? 0.14 : 0.28;
    ctx.fillRect(x + at * px, y, 1, side);
    ctx.fillRect(x, y + at * px, side, 1);
  }
  ctx.restore();
  frame(ctx, theme, x, y, side, side);
  ctx.strokeStyle = COLOURS.pick;
  ctx.lineWidth = 1.5;
  ctx.strokeRect(x - 1, y + query * px - 0.5, side + 2, px + 1);
  if (cursor) {
    const [i, j] = cursor;
    ctx.lineWidth = 3;
    ctx.strokeRect(x + j * px - 2, y + i * px - 2, px + 4, px + 4);
  }
}

// What the row draws on, a column for each cell: the earlier it is reached, the higher.
function drawReach(ctx, theme, px, { cell, layers, query, reached }) {
  const [x, top] = [GRID.x, GRID.y + SIDE * px + GRID.foot + GRID.gap];
  write(ctx, theme, `${cell === 1 ? "Token" : "Block"} ${query} draws on, within ${plural(layers, "layer")}`, x, top - 12, { bold: true });
  reached.forEach((layer, j) => {
    if (layer < 0 || layer > layers) return;
    const high = (GRID.strip * (layers + 1 - layer)) / (layers + 1);
    ctx.fillStyle = layer ? COLOURS.Q : COLOURS.pick;
    ctx.fillRect(x + j * px, top + GRID.strip - high, px > 5 ? px - 1 : px, high);
  });
  frame(ctx, theme, x, top, SIDE * px, GRID.strip);
}

// ---- the widget

const row = (head, ...texts) => element("tr", {}, element("th", { scope: "row" }, head), ...texts.map((text) => element("td", {}, text)));

function render({ model, el }) {
  const { presets, levels, cells, layers: limits, dim, rates, start } = model.get("meta");
  const best = keptHere("paint", {}); // title of a level → the least density, or the most tiles skipped
  const settings = { cell: start.cell, level: start.level, layers: start.layers, shape: "square", size: 2, on: "paint" };
  let [grid, undo, cursor] = [maskOf(start.preset, presets[start.preset], SIDE), [], null];

  const canvas = control("canvas", { role: "application", tabindex: 0 });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const aloud = element("span", { class: "ak-aloud", "aria-live": "polite" });
  const query = stepper("row", SIDE - 1, (i) => setStep(model, i));
  const layers = slider("layers", { class: "ak-layers", min: limits[0], max: limits[1], step: 1 });
  layers.input.addEventListener("input", () => change({ layers: Number(layers.input.value) }));
  const level = selectBox("ak-paint-level", "level", { "": Object.fromEntries(levels.map(({ title }, n) => [n, title])) },
    (n) => change({ level: Number(n), layers: levels[n].layers ?? settings.layers, cell: Number(n) ? 16 : settings.cell }));
  const cell = selectBox("ak-paint-cell", "a cell is", { "": { [cells[0]]: "a token: L = 64", [cells[1]]: "a block of 16: L = 1,024" } },
    (tokens) => change({ cell: Number(tokens) }));
  const preset = selectBox("ak-paint-preset", "pattern", { "": Object.fromEntries(Object.keys(presets).map((kind) => [kind, kind])) }, () => redraw());
  preset.select.value = start.preset;
  const button = (name, text, act) => control("button", { class: `ak-paint-${name}`, type: "button", onclick: act }, text);
  const load = button("load", "", () => replace(maskOf(preset.select.value, presets[preset.select.value], SIDE)));
  const clear = button("clear", "Clear", () => replace(empty()));
  const back = button("undo", "Undo", () => {
    while (undo.length && isSame(undo.at(-1), grid)) undo.pop(); // strokes that changed nothing
    grid = undo.pop() ?? grid;
    redraw();
  });
  const shapes = radios("shape", ["square", "row", "column", "diagonal"], settings.shape, (shape) => change({ shape }));
  const size = selectBox("ak-paint-size", "wide", { "": Object.fromEntries(BRUSHES.map((n) => [n, n === 1 ? "1 cell" : `${n} cells`])) },
    (n) => change({ size: Number(n) }));
  const pens = radios("brush", ["paint", "erase"].map((pen) => `${pen}s`), "paints", (pen) => change({ on: pen.slice(0, -1) }));
  const figures = element("tbody", {});
  const aims = element("ul", { class: "ak-paint-aims" });
  const kept = element("span", { class: "ak-paint-score" });
  const reset = button("reset", "Reset the score", () => {
    best.reset();
    forgotten = gridNow();
    redraw();
  });
  const code = element("code", {});
  const listing = control("pre", { class: "ak-paint-code", tabindex: 0, "aria-label": "the code of this mask" }, code);
  const panel = element("div", { class: "ak-panel ak-paint-panel" },
    element("table", { class: "ak-table" },
      element("thead", {}, element("tr", {}, ...["one head", "this", "full"].map((text) => element("th", { scope: "col" }, text)))), figures),
    ...(rates ? [element("div", { class: "ak-note" }, `Time is a model: tiles of 64 that are visited, or Q, K, V and O once, whatever takes longer; ${rates.heads} heads, d = ${dim}, from ${rates.label}.`)] : []),
    aims,
    element("div", { class: "ak-row" }, kept, reset),
    element("div", { class: "ak-title" }, "The code that makes it"), listing);
  const root = element("div", { class: "ak-widget", "data-widget": "paint" },
    element("div", { class: "ak-row" }, level.row, cell.row),
    element("div", { class: "ak-row" }, preset.row, load, clear, back),
    element("div", { class: "ak-row" }, shapes, size.row, pens),
    element("div", { class: "ak-row" }, query.prev, query.next, query.row, layers.row),
    status,
    element("div", { class: "ak-columns" },
      element("div", {}, canvas, element("div", { class: "ak-legend" },
        legendItem(COLOURS.Q, "seen"),
        legendItem("", "a tile of 64 that is skipped", "ak-hatch")),
        element("div", { class: "ak-note" }, "Keys: arrows move, with Shift by 8; space paints or erases.")),
      panel), aloud);
  el.append(root);

  function change(changed) {
    Object.assign(settings, changed);
    redraw();
  }

  function remember() {
    undo = [...undo.slice(1 - UNDONE), copyOf(grid)];
  }

  function replace(other) {
    remember();
    grid = other;
    redraw();
  }

  // ---- by pointer

  const pixel = () => Math.min(Math.max(Math.floor((Math.max(root.clientWidth - 8, 300) - GRID.x - 4) / SIDE), 4), 7);

  function cellAt({ offsetX, offsetY }) {
    const drawn = parseFloat(canvas.style.width) / canvas.clientWidth;
    const [i, j] = [(offsetY * drawn - GRID.y) / pixel(), (offsetX * drawn - GRID.x) / pixel()].map(Math.floor);
    return i >= 0 && i < SIDE && j >= 0 && j < SIDE ? [i, j] : null;
  }

  function paint([i, j], on) {
    const before = copyOf(grid);
    for (const [r, c] of strokeAt(settings.shape, settings.size, i, j)) put(grid, r, c, on);
    return !isSame(before, grid);
  }

  let last = null; // where the pointer has just painted
  canvas.addEventListener("pointerdown", (event) => {
    const at = cellAt(event);
    if (!at || event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    remember();
    [last, cursor] = [at, null];
    if (paint(at, settings.on === "paint")) redraw();
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = last && cellAt(event);
    if (!at || (at[0] === last[0] && at[1] === last[1])) return;
    const steps = Math.max(Math.abs(at[0] - last[0]), Math.abs(at[1] - last[1]));
    let changed = false; // a fast pointer leaves no gaps
    for (let n = 1; n <= steps; n++) {
      const between = [0, 1].map((k) => Math.round(last[k] + ((at[k] - last[k]) * n) / steps));
      changed = paint(between, settings.on === "paint") || changed;
    }
    last = at;
    if (changed) redraw();
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, () => {
      last = null;
      redraw(); // now it counts for the score
    });
  }

  // ---- by keyboard

  canvas.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 8 : 1;
    const move = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] }[event.key];
    if (!move && event.key !== " ") return;
    event.preventDefault();
    cursor ??= [model.get("step"), 0];
    if (move) cursor = cursor.map((at, k) => Math.min(Math.max(at + move[k], 0), SIDE - 1));
    else {
      remember();
      paint(cursor, settings.on === "paint");
    }
    redraw();
    aloud.textContent = `Row ${cursor[0]}, column ${cursor[1]}: ${has(grid, ...cursor) ? "seen" : "not seen"}.`;
  });
  canvas.addEventListener("blur", () => {
    cursor = null;
    redraw();
  });

  // ---- what is shown

  let [full, known] = [{}, {}]; // what depends on the grid and the cell only
  let forgotten = null; // a grid that does not count: its score has just been reset, or it comes from the address
  const gridNow = () => `${settings.cell} ${grid.bits.join()}`;
  function analyse() {
    const text = gridNow();
    if (known.text === text) return known;
    if (full.cell !== settings.cell) {
      const all = tokensOf(maskOf("full", {}, SIDE), settings.cell);
      full = { cell: settings.cell, tiles: SIZES.map((each) => tilesOf(all, each)) };
    }
    const mask = tokensOf(grid, settings.cell);
    known = { text, length: mask.length, tiles: SIZES.map((each) => tilesOf(mask, each)), code: pythonOf(grid, settings.cell, presets) };
    return known;
  }

  function showFigures({ length, tiles }) {
    const time = (of) => secondsOf(of.partial + of.full, of.size, length, dim, rates);
    const micro = (of) => `${number(1e6 * time(of), 1)} µs`;
    figures.replaceChildren(
      row("pairs", bytes(tiles[0].pairs), bytes(length ** 2)),
      row("density", percent(tiles[0].pairs / length ** 2), "100 %"),
      ...tiles.map((of, n) => row(`tiles of ${of.size} skipped`, `${of.skipped} of ${of.side ** 2}`, `${full.tiles[n].skipped}`)),
      ...(rates ? [row("time, model", micro(tiles[0]), micro(full.tiles[0])), row("of dense", percent(time(tiles[0]) / time(full.tiles[0])), "")] : []));
  }

  function showAims(tiles) {
    const asked = levels[settings.level];
    const checks = judged(grid, asked);
    aims.replaceChildren(...checks.map(([words, done]) => element("li", {}, `${done ? "✓" : "✗"} ${words}`)));
    const isBySkipped = "skipped" in asked;
    const value = isBySkipped ? tiles[1].skipped / tiles[1].side ** 2 : countOf(grid) / SIDE ** 2;
    const won = checks.length > 0 && checks.every(([, done]) => done);
    const before = best.get()[asked.title];
    const isBetter = before === undefined || (isBySkipped ? value > before : value < before);
    if (known.text !== forgotten) forgotten = null;
    if (won && isBetter && last === null && forgotten === null) best.set({ ...best.get(), [asked.title]: value });
    const now = best.get()[asked.title];
    const what = isBySkipped ? "of the tiles skipped" : "of the pairs";
    kept.textContent = !checks.length ? "Choose a level to have an aim." : `${won ? "✓ Done. " : ""}Your best: ${now === undefined ? "none yet" : `${percent(now)} ${what}`}.`;
    return checks.length ? ` ${asked.title}: ${checks.filter(([, done]) => done).length} of ${checks.length} aims reached.` : "";
  }

  function redraw() {
    const found = analyse();
    const step = model.get("step");
    const reached = layersTo(grid, step);
    const within = reached.reduce((sum, layer) => sum + (layer >= 0 && layer <= settings.layers), 0);
    const [theme, px] = [themeOf(root), pixel()];
    const ctx = prepare(canvas, GRID.x + SIDE * px + 4, GRID.y + SIDE * px + GRID.foot + GRID.gap + GRID.strip + 2);
    drawGrid(ctx, theme, px, { grid, cell: settings.cell, tiles: found.tiles[0], query: step, cursor });
    write(ctx, theme, cell.select.value === "1" ? "key token" : "key block", GRID.x + (SIDE * px) / 2, GRID.y + SIDE * px + 11, { size: 11, align: "center" });
    drawReach(ctx, theme, px, { ...settings, query: step, reached });
    level.select.value = settings.level;
    load.textContent = `Draw ${preset.select.value}`;
    cell.select.value = settings.cell;
    cell.select.disabled = settings.level > 0;
    size.select.value = settings.size;
    pick(shapes, settings.shape);
    pick(pens, `${settings.on}s`);
    enable(back, undo.length);
    query.input.value = step;
    query.text.textContent = `${step}`;
    layers.input.value = layers.text.textContent = settings.layers;
    showFigures(found);
    if (code.textContent !== found.code) code.textContent = found.code;
    const aim = showAims(found.tiles);
    enable(reset, !best.isNothing());
    const [small] = found.tiles;
    const unit = settings.cell === 1 ? "tokens" : "blocks";
    status.textContent = `Density ${percent(small.pairs / found.length ** 2)}; ${small.skipped} of ${small.side ** 2} tiles of 64 are skipped. ` +
      `Row ${step} draws on ${within} of ${SIDE} ${unit} within ${plural(settings.layers, "layer")}.${aim}`;
    const brush = `${settings.on}s a ${settings.shape}, ${settings.size === 1 ? "1 cell" : `${settings.size} cells`} wide`;
    canvas.setAttribute("aria-label", `A grid of 64 by 64 cells to paint on. Space ${brush}. ${status.textContent}`);
    address.note();
  }

  const read = () => ({ cell: settings.cell, level: settings.level, layers: settings.layers, row: model.get("step"), grid: textOf(grid, presets) });
  const address = keepInAddress(model, root, read, (texts) => {
    settings.level = wholeNumber(texts.level, [0, levels.length - 1], settings.level);
    settings.cell = settings.level ? 16 : oneOf(texts.cell, cells, settings.cell);
    settings.layers = wholeNumber(texts.layers, limits, settings.layers);
    grid = gridOf(texts.grid ?? "", presets) ?? grid;
    forgotten = gridNow();
    setStep(model, wholeNumber(texts.row, [0, SIDE - 1], model.get("step")));
    redraw();
  });
  const stop = keepDrawn(model, root, redraw);
  return () => {
    address.forget();
    stop();
  };
}

export default { render };
