// explorer.js — masks of sparse patterns at token and at tile level, what they cost, and who reaches whom (chapter 04).
// Everything is computed here.
// with masks.js
// with address.js

const MOST_LAYERS = 16;

// ---- drawing

const BOX = { x: 34, y: 24 }; // the corner of both pictures
const FOOT = 20; // room below a picture for its axis
const STRIP = { gap: 20, height: 68 };

// The mask in pixels, one for fold × fold pairs; a single pair among them can still be seen.
function maskImage({ length, words, bits }, fold) {
  const side = Math.ceil(length / fold);
  const image = new OffscreenCanvas(side, side);
  const pixels = new ImageData(side, side);
  const out = new Uint32Array(pixels.data.buffer);
  const [r, g, b] = [0x2b, 0x7d, 0xe0]; // COLOURS.Q
  const most = fold * fold;
  const shade = Array.from({ length: most + 1 }, (_, n) =>
    n && ((Math.round(130 + (125 * n) / most) << 24) | (b << 16) | (g << 8) | r) >>> 0);
  const [perWord, part] = [32 / fold, (1 << fold) - 1];
  const counts = new Uint8Array(words * perWord);
  for (let y = 0; y < side; y++) {
    counts.fill(0);
    for (let i = y * fold; i < Math.min((y + 1) * fold, length); i++) {
      for (let w = 0; w < words; w++) {
        let word = bits[i * words + w];
        for (let x = w * perWord; word !== 0; x++, word >>>= fold) counts[x] += ones(word & part);
      }
    }
    for (let x = 0; x < side; x++) out[y * side + x] = shade[counts[x]];
  }
  image.getContext("2d").putImageData(pixels, 0, 0);
  return image;
}

function drawImage(ctx, image, x, y, width, height) {
  ctx.imageSmoothingEnabled = image.width > width * (window.devicePixelRatio || 1);
  ctx.drawImage(image, x, y, width, height);
}

function drawAxes(ctx, theme, title, side, { length, query }) {
  write(ctx, theme, title, BOX.x, 10, { bold: true });
  const marks = [[0, "0"], [length, `${length}`]].filter(([at]) => Math.abs((at - query) * side) / length > 14);
  for (const [at, text] of marks) write(ctx, theme, text, BOX.x - 6, BOX.y + (at / length) * side, { size: 11, align: "right" });
  const y = BOX.y + ((query + 0.5) / length) * side;
  write(ctx, theme, `${query}`, BOX.x - 6, y, { size: 11, align: "right", bold: true });
}

function pickRow(ctx, x, y, width, height) {
  ctx.strokeStyle = COLOURS.pick;
  ctx.lineWidth = 2;
  ctx.strokeRect(x - 1, y - 1, width + 2, height + 2);
}

function drawMask(ctx, theme, side, state) {
  const { length, query, image, tiles } = state;
  const row = side / length;
  drawAxes(ctx, theme, "Tokens: query i sees key j", side, state);
  drawImage(ctx, image, BOX.x, BOX.y, side, side);
  const grid = (tiles.size / length) * side;
  if (grid >= 12) {
    ctx.save();
    ctx.globalAlpha = 0.15;
    ctx.fillStyle = theme.ink;
    for (let at = grid; at < side - 1; at += grid) {
      ctx.fillRect(BOX.x + at, BOX.y, 1, side);
      ctx.fillRect(BOX.x, BOX.y + at, side, 1);
    }
    ctx.restore();
  }
  frame(ctx, theme, BOX.x, BOX.y, side, side);
  pickRow(ctx, BOX.x, BOX.y + query * row, side, row);
  write(ctx, theme, "key j", BOX.x + side / 2, BOX.y + side + 10, { size: 11, align: "center" });
  drawStrip(ctx, theme, side, state);
}

// Below the mask, key under key: what has been reached after 0, 1, … layers; orange: for the first time.
function drawStrip(ctx, theme, side, { length, query, layers, reached }) {
  const y = BOX.y + side + FOOT + STRIP.gap;
  const fold = Math.ceil(length / side); // so many keys share a pixel: the first to be reached counts
  const image = new OffscreenCanvas(Math.ceil(length / fold), layers + 1);
  const pixels = new ImageData(image.width, image.height);
  for (let x = 0; x < image.width; x++) {
    const first = reached.subarray(x * fold, (x + 1) * fold).reduce((least, n) => (n >= 0 && n < least ? n : least), Infinity);
    for (let layer = first; layer <= layers; layer++) {
      const colour = layer === first ? [0xe0, 0x70, 0x1a, 255] : [0x2b, 0x7d, 0xe0, 255]; // COLOURS.pick, COLOURS.Q
      pixels.data.set(colour, 4 * (layer * image.width + x));
    }
  }
  image.getContext("2d").putImageData(pixels, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(image, BOX.x, y, side, STRIP.height);
  frame(ctx, theme, BOX.x, y, side, STRIP.height);
  const line = STRIP.height / (layers + 1);
  write(ctx, theme, `Query ${query} draws on, by layer`, BOX.x, y - 10, { bold: true });
  for (const layer of [0, layers]) {
    write(ctx, theme, `${layer}`, BOX.x - 6, y + (layer + 0.5) * line, { size: 11, align: "right" });
  }
}

// Dots on a tint: partial tiles stay apart from full ones in grey, too.
function dots(ctx, colour) {
  const cell = new OffscreenCanvas(4, 4);
  const pen = cell.getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(1, 1, 2, 2);
  return ctx.createPattern(cell, "repeat");
}

// Runs of tiles in the same state, row by row: few rectangles where there are many tiles.
function eachRun({ side, state }, draw) {
  for (let row = 0; row < side; row++) {
    for (let first = 0, end = 1; first < side; first = end++) {
      while (end < side && state[row * side + end] === state[row * side + first]) end++;
      if (state[row * side + first] !== SKIPPED) draw(state[row * side + first], row, first, end);
    }
  }
}

function drawTiles(ctx, theme, side, state) {
  const { length, query, tiles } = state;
  const cell = (tiles.size / length) * side;
  const dotted = dots(ctx, COLOURS.V);
  drawAxes(ctx, theme, `Tiles of ${tiles.size} × ${tiles.size}`, side, state);
  ctx.save();
  ctx.beginPath();
  ctx.rect(BOX.x, BOX.y, side, side); // the last tiles may reach past the sequence
  ctx.clip();
  hatch(ctx, theme, BOX.x, BOX.y, side, side);
  eachRun(tiles, (kind, row, first, end) => {
    const run = [BOX.x + first * cell, BOX.y + row * cell, (end - first) * cell, cell];
    ctx.clearRect(...run);
    ctx.globalAlpha = kind === FULL ? 1 : 0.3;
    ctx.fillStyle = kind === FULL ? COLOURS.Q : COLOURS.V;
    ctx.fillRect(...run);
    ctx.globalAlpha = 1;
    if (kind === FULL) return;
    ctx.fillStyle = dotted;
    ctx.fillRect(...run);
  });
  if (cell >= 5) {
    ctx.globalAlpha = 0.3;
    ctx.fillStyle = theme.ink;
    for (let n = 1; n < tiles.side; n++) {
      ctx.fillRect(BOX.x + n * cell, BOX.y, 1, side);
      ctx.fillRect(BOX.x, BOX.y + n * cell, side, 1);
    }
  }
  ctx.restore();
  frame(ctx, theme, BOX.x, BOX.y, side, side);
  const top = Math.floor(query / tiles.size) * cell;
  pickRow(ctx, BOX.x, BOX.y + top, side, Math.min(cell, side - top));
  write(ctx, theme, "tile of keys", BOX.x + side / 2, BOX.y + side + 10, { size: 11, align: "center" });
}

// ---- words and tables

// Three figures and a unit: 8,388,608 is 8.39 M.
function compact(value) {
  const units = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " K"]];
  const [unit, letter] = units.find(([least]) => value >= least) ?? [1, ""];
  return `${letter ? (value / unit).toPrecision(3) : Math.round(value)}${letter}`;
}

function milliseconds(seconds) {
  return `${Number((1e3 * seconds).toPrecision(2))} ms`;
}

export function describe({ length, query, layers, reached }) {
  const within = (n) => reached.reduce((sum, layer) => sum + (layer >= 0 && layer <= n), 0);
  const seen = reached.reduce((sum, layer) => sum + (layer === 1), 0);
  const [now, ever] = [within(layers), within(length)];
  const depth = Math.max(...reached);
  const most =
    ever === 1 ? "It never reaches another token."
    : `It can reach ${bytes(ever)} at most, all of them after ${plural(depth, "layer")}.`;
  return (
    `Query ${query} of ${length} sees ${plural(seen, "other key")}. After ` +
    `${plural(layers, "layer")} it draws on ${plural(now, "token")}, itself included ` +
    `(${percent(now / length)}). ${most}`
  );
}

function table(heads, rows) {
  const cells = (tag, texts) => texts.map((text) => element(tag, {}, text));
  return element("table", { class: "ak-table" },
    element("thead", {}, element("tr", {}, ...cells("th", heads))),
    element("tbody", {}, ...rows.map(([head, ...texts]) =>
      element("tr", {}, element("th", { scope: "row" }, head), ...cells("td", texts)))));
}

function figuresTable(all, length, dim) {
  const columns = (of) => all.map(of);
  const visited = (tiles) => tiles.partial + tiles.full;
  const work = (tiles) => visited(tiles) * tiles.size ** 2;
  return table(["one head", "this", "causal", "full"], [
    ["pairs kept", ...columns((tiles) => bytes(tiles.pairs))],
    ["density", ...columns((tiles) => percent(tiles.pairs / length ** 2))],
    ["FLOPs of pairs", ...columns((tiles) => compact(flopsOf(tiles.pairs, dim)))],
    ["tiles skipped", ...columns((tiles) => bytes(tiles.skipped))],
    ["tiles partial", ...columns((tiles) => bytes(tiles.partial))],
    ["tiles full", ...columns((tiles) => bytes(tiles.full))],
    ["FLOPs of tiles", ...columns((tiles) => compact(flopsOf(work(tiles), dim)))],
    ["of which useful", ...columns((tiles) => (work(tiles) ? percent(tiles.pairs / work(tiles)) : "–"))],
  ]);
}

function longTable(kind, values, size, { dim, rates }) {
  const lengths = Object.values(FULL_SIZES);
  const tiles = lengths.map((length) => visitedAt(kind, values, length, size));
  const causal = lengths.map((length) => ((length / size) * (length / size + 1)) / 2);
  const rows = [
    ["tiles visited, about", ...tiles.map(compact)],
    ["of causal attention's", ...tiles.map((count, n) => percent(count / causal[n]))],
  ];
  if (rates) {
    const times = (counts) => counts.map((count, n) => milliseconds(secondsOf(count, size, lengths[n], dim, rates)));
    rows.push(["estimated time", ...times(tiles)], ["the same, causal", ...times(causal)]);
  }
  return table(["same pattern, L =", ...Object.keys(FULL_SIZES)], rows);
}

// ---- the widget

function render({ model, el }) {
  const { kinds, given, dim, rates, start, lengths } = model.get("meta");
  const settings = { kind: start.kind, length: start.length, tile: start.tile, layers: start.layers };
  const valuesOf = Object.fromEntries(Object.entries(kinds).map(([kind, { sliders }]) =>
    [kind, Object.fromEntries(sliders.map(({ name, value }) => [name, value]))]));
  Object.assign(valuesOf[start.kind] ?? {}, start.values);

  const groups = given ? { "": { given: given.name } } : {};
  for (const [kind, { group, text }] of Object.entries(kinds)) (groups[group] ??= {})[kind] = text;
  const pattern = selectBox("ak-pattern", "pattern", groups, (kind) => change({ kind }));
  const tile = selectBox("ak-tile", "tile", { "": { 16: "16 × 16", 32: "32 × 32", 64: "64 × 64", 128: "128 × 128" } },
    (size) => change({ tile: Number(size) }));
  const length = slider("length L", { class: "ak-length", min: lengths[0], max: lengths[1], step: lengths[2] });
  const layers = slider("layers", { class: "ak-layers", min: 1, max: MOST_LAYERS, step: 1 });
  length.input.addEventListener("input", () => change({ length: Number(length.input.value) }));
  layers.input.addEventListener("input", () => change({ layers: Number(layers.input.value) }));
  const query = stepper("query", lengths[1] - 1, (i) => setStep(model, Math.min(i, lengthNow() - 1)));
  const parameters = element("div", { class: "ak-row ak-parameters" });
  const code = element("code");
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const maskCanvas = element("canvas", { role: "img", class: "ak-mask" });
  const tileCanvas = element("canvas", { role: "img", class: "ak-tiles" });
  const figures = element("div", { class: "ak-panel ak-figures" });
  const dotted = `radial-gradient(${COLOURS.V} 35%, color-mix(in srgb, ${COLOURS.V} 30%, transparent) 40%) 0 0 / 4px 4px`;
  const root = element("div", { class: "ak-widget", "data-widget": "mask-explorer" },
    element("div", { class: "ak-row" }, pattern.row, code),
    parameters,
    element("div", { class: "ak-row" }, length.row, layers.row, tile.row),
    element("div", { class: "ak-row" }, query.prev, query.next, query.row),
    status,
    element("div", { class: "ak-columns" }, maskCanvas,
      element("div", {}, tileCanvas,
        element("div", { class: "ak-legend" },
          legendItem(COLOURS.Q, "full"), legendItem(dotted, "partial"), legendItem("", "skipped", "ak-hatch"))),
      figures));
  el.append(root);

  const lengthNow = () => (settings.kind === "given" ? given.length : settings.length);
  let known = {}; // what depends on pattern, length and tile only; a step from query to query keeps it

  function change(changed) {
    const [before, query] = [lengthNow(), model.get("step")];
    const kind = settings.kind;
    Object.assign(settings, changed);
    if (changed.kind && changed.kind !== kind) showParameters();
    known = changed.layers ? known : {};
    const moved = Math.floor((query * lengthNow()) / before);
    if (moved === query) redraw();
    else setStep(model, moved); // draws
    address.note();
  }

  const limitsOf = (kind) => Object.fromEntries((kinds[kind]?.sliders ?? []).map(({ name, low, high, step }) => [name, [low, high, step]]));

  function read() {
    return { ...settings, query: model.get("step"), ...valuesOf[settings.kind] };
  }

  function restore(texts) {
    settings.kind = oneOf(texts.kind, [...(given ? ["given"] : []), ...Object.keys(kinds)], settings.kind);
    settings.length = wholeNumber(texts.length, lengths, settings.length);
    settings.tile = oneOf(texts.tile, [16, 32, 64, 128], settings.tile);
    settings.layers = wholeNumber(texts.layers, [1, MOST_LAYERS], settings.layers);
    const values = valuesOf[settings.kind];
    for (const [name, limits] of Object.entries(limitsOf(settings.kind))) values[name] = wholeNumber(texts[name], limits, values[name]);
    showParameters();
    change({});
    setStep(model, wholeNumber(texts.query, [0, lengthNow() - 1], model.get("step")));
  }

  function showParameters() {
    const values = valuesOf[settings.kind];
    const sliders = (kinds[settings.kind]?.sliders ?? []).map(({ name, low, high, step }) => {
      const parts = slider(name, { class: `ak-${name}`, min: low, max: high, step, value: values[name] });
      parts.text.textContent = values[name];
      parts.input.addEventListener("input", () => {
        values[name] = Number(parts.input.value);
        parts.text.textContent = values[name];
        change({});
      });
      return parts.row;
    });
    parameters.replaceChildren(...sliders);
  }

  let dense = {}; // the tiles of causal and full attention, to compare with
  function denseTiles(length, size) {
    if (dense.length !== length || dense.size !== size) {
      dense = { length, size, tiles: ["causal", "full"].map((kind) => tilesOf(maskOf(kind, {}, length), size)) };
    }
    return dense.tiles;
  }

  const long = element("div", { class: "ak-long" });
  let timer = null;
  function showLong() {
    long.replaceChildren(longTable(settings.kind, valuesOf[settings.kind], settings.tile, { dim, rates }));
    long.style.opacity = 1;
  }

  function analyse() {
    const { kind, tile: size } = settings;
    const length = lengthNow();
    const mask = kind === "given" ? givenMask(model.get("data"), length) : maskOf(kind, valuesOf[kind], length);
    const tiles = tilesOf(mask, size);
    figures.replaceChildren(
      figuresTable([tiles, ...denseTiles(length, size)], length, dim),
      long,
      element("div", { class: "ak-note" },
        `4 d FLOPs a pair, d = ${dim}; all pairs of a visited tile are computed.`,
        ...(rates && kind !== "given" ? [` Times: ${rates.heads} heads, forward, from ${rates.label}.`] : [])));
    clearTimeout(timer);
    if (kind === "given") long.replaceChildren();
    else if (!long.firstChild) showLong();
    else {
      long.style.opacity = 0.7; // out of date until the slider rests: long sequences can take longer than a frame
      timer = setTimeout(showLong, 60);
    }
    code.textContent = kind === "given" ? given.name : codeOf(kind, valuesOf[kind], length);
    return { length, mask, tiles };
  }

  // Both pictures in a row where they fit, beside the figures where there is room for these, too.
  function sideNow() {
    const room = Math.max(root.clientWidth - 8, 300);  // 0 before it is in the page, as JupyterLab first draws it
    const each = room >= 850 ? (room - 40 - 290) / 2 : room >= 520 ? (room - 20) / 2 : room;
    return Math.floor(Math.min(each, 420)) - BOX.x - 4;
  }

  function redraw() {
    if (!known.mask) known = analyse();
    const query_ = Math.min(model.get("step"), known.length - 1);
    const [theme, side] = [themeOf(root), sideNow()];
    const fold = [4, 2].find((fold) => known.length >= fold * side) ?? 1;
    if (known.fold !== fold) Object.assign(known, { fold, image: maskImage(known.mask, fold) });
    const state = { ...known, query: query_, layers: settings.layers, reached: layersTo(known.mask, query_) };
    const width = BOX.x + side + 4;
    drawMask(prepare(maskCanvas, width, BOX.y + side + FOOT + STRIP.gap + STRIP.height + 2), theme, side, state);
    drawTiles(prepare(tileCanvas, width, BOX.y + side + FOOT), theme, side, state);
    pattern.select.value = settings.kind;
    tile.select.value = settings.tile;
    length.input.value = known.length;
    length.input.disabled = settings.kind === "given";
    length.text.textContent = known.length;
    layers.input.value = layers.text.textContent = settings.layers;
    query.input.max = known.length - 1;
    query.input.value = query_;
    query.text.textContent = `${query_} (0 to ${known.length - 1})`;
    status.textContent = describe(state);
    maskCanvas.setAttribute("aria-label", `Mask of ${code.textContent}. ${status.textContent}`);
    tileCanvas.setAttribute("aria-label",
      `Tiles of ${code.textContent}: ${known.tiles.full} full, ${known.tiles.partial} partial, ${known.tiles.skipped} skipped.`);
  }

  for (const canvas of [maskCanvas, tileCanvas]) {
    const rowAt = (x, y) => {
      const row = Math.floor(((y - BOX.y) / sideNow()) * known.length);
      return row >= 0 && row < known.length ? row : null;
    };
    clickable(canvas, rowAt, (row) => setStep(model, row));
  }
  showParameters();
  const address = keepInAddress(model, root, read, restore);
  const forget = keepDrawn(model, root, redraw);
  return () => {
    clearTimeout(timer);
    address.forget();
    forget();
  };
}

// The mask that Python sent, packed as in maskOf.
function givenMask(view, length) {
  const bits = new Uint32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  return { length, words: Math.ceil(length / 32), bits };
}

export default { render };
