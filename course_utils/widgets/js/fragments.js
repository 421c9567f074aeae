// fragments.js — who holds what in mma.sync, and which banks ldmatrix reads (chapter 03). Registers, addresses and
// wavefronts come from Python (fragments.py); here they are only drawn.

const CELL = 14; // of a matrix
const STEP = { x: 32, y: 17 }; // of the tile in shared memory: 16 bytes at D = 64, a row
const ROWS = 16;
// For each matrix that ldmatrix reads: the product, its operands, what it becomes.
const PRODUCTS = {
  Q: { text: "S = Q Kᵀ", A: "Q", B: "Kᵀ", D: "S", n: "n", inner: "d", outer: "keys" },
  K: { text: "S = Q Kᵀ", A: "Q", B: "Kᵀ", D: "S", n: "n", inner: "d", outer: "keys" },
  V: { text: "O = P V", A: "P", B: "V", D: "O", n: "c", inner: "keys", outer: "d" },
};
const SHARED = { A: { x: 24, y: 294, columns: 16 }, B: { x: 262, y: 28, columns: 8 }, D: { x: 262, y: 294, columns: 8 } };
const WIDE = {
  width: 493,
  height: 538,
  boxes: { ...SHARED, B2: { x: 379, y: 28, columns: 8 }, D2: { x: 379, y: 294, columns: 8 } },
};
// Where there is no room for the second product beside the first, it stands below.
const NARROW = {
  width: 376,
  height: 804,
  boxes: { ...SHARED, B2: { x: 136, y: 560, columns: 8 }, D2: { x: 262, y: 560, columns: 8 } },
};
const layoutOf = (room) => (room < WIDE.width ? NARROW : WIDE);
const TILE = { x: 32, y: 48, width: 8 * STEP.x, height: ROWS * STEP.y };
const TURNS = { x: TILE.x, y: TILE.y + TILE.height + 62, bank: TILE.width / 32, height: 15 };
const TILE_SIZE = { width: TILE.x + TILE.width + 50, height: TURNS.y + 8 * TURNS.height + 28 };

const colourOf = (matrix, { A, B, D }) => COLOURS[{ A: A === "P" ? "S" : A, B: B[0], D }[matrix[0]]];
const bankColour = (bank) => `rgb(${colourAt(bank / 32, TWILIGHT).join(",")})`;

// Which 8 × 8 part of which matrix the four matrices of ldmatrix become: registers a0 to a3, or b0, b1 of two products.
function target(reads, phase) {
  if (reads === "Q") return { matrix: "A", row: 8 * (phase % 2), column: 8 * (phase >> 1), register: `a${phase}` };
  const second = phase >> 1;
  return { matrix: second ? "B2" : "B", row: 8 * (phase % 2), column: 0, register: `b${phase % 2}`, second };
}

function describe({ lane, reads, layout, head_dim, request }) {
  const [g, t, phase] = [lane >> 2, lane % 4, lane >> 3];
  const product = PRODUCTS[reads];
  const lanes = [...Array(8).keys()].map((r) => 8 * phase + r);
  const wavefronts = Math.max(...lanes.map((l) => request.turns[l])) + 1;
  const banks = 4 * new Set(lanes.map((l) => (request.offsets[l] / 16) % 8)).size;
  const { register, second } = target(reads, phase);
  const filled = `${register}${second === undefined ? "" : ` of ${product.D}[${product.n}${second ? " + 1" : ""}]`}`;
  const kept = reads === "V" ? " P is not loaded: a0 is d0 and d1 of S[n], packed, in the same lane." : "";
  return (
    `Lane ${lane} = 4·${g} + ${t} holds rows ${g} and ${g + 8} of ${product.A} and of ${product.D}.${kept} For ldmatrix it ` +
    `brings the address of row ${lane % 8} of matrix ${phase}, which becomes ${filled}. Lanes ${lanes[0]} to ${lanes[7]} read ` +
    `together: ${banks} of 32 banks, ${plural(wavefronts, "wavefront")} (D = ${head_dim}, ${layout}).`
  );
}

// ---- left: the matrices of the product

function drawProduct(ctx, theme, state) {
  const { lane, lanes, reads, boxes } = state;
  const product = PRODUCTS[reads];
  for (const [name, box] of Object.entries(boxes)) drawMatrix(ctx, theme, name, box, product);
  for (const [register, elements] of Object.entries(lanes[lane])) {
    const matrix = register[0].toUpperCase();
    const colour = colourOf(matrix, product);
    for (const name of matrix === "A" ? ["A"] : [matrix, `${matrix}2`]) {
      drawRegister(ctx, register, elements, boxes[name], colour, reads === "V");
    }
  }
  const part = target(reads, lane >> 3);
  const box = boxes[part.matrix];
  ctx.strokeStyle = COLOURS.pick;
  ctx.lineWidth = 2.5;
  ctx.strokeRect(box.x + CELL * part.column, box.y + CELL * part.row, 8 * CELL, 8 * CELL);
  drawRegisterList(ctx, theme, state, product);
}

function drawMatrix(ctx, theme, name, { x, y, columns }, product) {
  const [width, height] = [columns * CELL, ROWS * CELL];
  const next = name.endsWith("2") ? " + 1" : "";
  const index = `[${product.n}${next}]`;
  const titles = {
    A: product.A === "P" ? "A: S[n], S[n + 1] as P" : "A: Q",
    B: `B: ${product.B} of ${product.D}${index}`,
    D: `D: ${product.D}${index}`,
  };
  write(ctx, theme, titles[name[0]], x, y - 12, { bold: true, colour: inked(theme, colourOf(name, product)) });
  const [down, right] = { A: ["queries", product.inner], B: [product.inner, product.outer], D: ["", product.outer] }[name[0]];
  write(ctx, theme, right, x + width / 2, y + height + 9, { size: 11, align: "center" });
  if (!next && down) {
    ctx.save();
    ctx.translate(x - 10, y + height / 2);
    ctx.rotate(-Math.PI / 2);
    write(ctx, theme, down, 0, 0, { size: 11, align: "center" });
    ctx.restore();
  }
  ctx.save();
  ctx.globalAlpha = 0.16;
  ctx.fillStyle = theme.ink;
  const tall = name[0] === "B"; // a pair is two rows of B, but two columns of A and D
  const [wide, high] = tall ? [CELL, 2 * CELL] : [2 * CELL, CELL];
  for (let line = high; line < height; line += high) ctx.fillRect(x, y + line, width, 1);
  for (let line = wide; line < width; line += wide) ctx.fillRect(x + line, y, 1, height);
  ctx.globalAlpha = 0.65;
  for (let row = 0; row < height / high; row++) {
    for (let column = 0; column < width / wide; column++) {
      const holder = tall ? 4 * column + (row % 4) : 4 * (row % 8) + (column % 4);
      write(ctx, theme, `${holder}`, x + (column + 0.5) * wide, y + (row + 0.5) * high + 0.5, { size: 9, align: "center" });
    }
  }
  ctx.restore();
  frame(ctx, theme, x, y, width, height, 0.7);
  if (name === "A") {
    ctx.save();
    ctx.globalAlpha = 0.7;
    ctx.fillStyle = theme.ink;
    ctx.fillRect(x + 8 * CELL, y, 1, height);
    ctx.fillRect(x, y + 8 * CELL, width, 1);
    ctx.restore();
  }
}

// The numbers of one register in black, the more legible ink, on the matrix' colour. An A that was a D (`was_d`) shows what was packed.
function drawRegister(ctx, register, elements, { x, y }, colour, was_d) {
  const [rows, columns] = [0, 1].map((k) => elements.map((element) => element[k]));
  const [top, left] = [Math.min(...rows), Math.min(...columns)];
  const [height, width] = [Math.max(...rows) - top + 1, Math.max(...columns) - left + 1];
  ctx.fillStyle = colour;
  ctx.fillRect(x + left * CELL, y + top * CELL, width * CELL + 1, height * CELL + 1);
  const theme = { ink: "#000", font: "sans-serif" };
  const words = was_d && register[0] === "a" ? [0, 1].map((k) => `d${2 * (register[1] % 2) + k}`) : [register];
  words.forEach((word, k) => {
    const across = words.length > 1 ? k + 0.5 : width / 2;
    write(ctx, theme, word, x + (left + across) * CELL + 0.5, y + (top + height / 2) * CELL + 1, { size: 10, align: "center", bold: true });
  });
}

// All registers of the lane in words, in the free corner.
function drawRegisterList(ctx, theme, { lane, lanes, reads }, product) {
  const [g, t] = [lane >> 2, lane % 4];
  write(ctx, theme, `Lane ${lane} = 4 g + t, g = ${g}, t = ${t}`, 4, 16, { bold: true, size: 13 });
  const held = lanes[lane];
  const at = (name, elements, [down, right] = [0, 0], transposed = false) => {
    let pairs = elements.map(([r, c]) => [r + down, c + right]);
    if (transposed) pairs = pairs.map(([r, c]) => [c, r]);
    const [rows, columns] = [0, 1].map((k) => [...new Set(pairs.map((pair) => pair[k]))].join(", "));
    return `${name}[${rows}][${columns}]`;
  };
  const lines = []; // matrix, register, what it holds, for which of the two products
  const names = [`${product.D}[${product.n}]`, `${product.D}[${product.n} + 1]`];
  for (const n of [0, 1, 2, 3]) {
    const packed = `d${2 * (n % 2)}, d${2 * (n % 2) + 1} of S[n${n > 1 ? " + 1" : ""}], packed`;
    lines.push(["A", `a${n}`, reads === "V" ? packed : at("Q", held[`a${n}`])]);
  }
  for (const second of [0, 1]) {
    for (const b of ["b0", "b1"]) {
      lines.push(["B", b, at(product.B[0], held[b], [0, 8 * second], reads !== "V"), `for ${names[second]}`]);
    }
  }
  for (const second of [0, 1]) {
    for (const n of [0, 2]) {
      const both = [...held[`d${n}`], ...held[`d${n + 1}`]];
      lines.push(["D", `d${n}, d${n + 1}`, at(product.D, both, [0, 8 * second]), `in ${names[second]}`]);
    }
  }
  let y = 44;
  lines.forEach(([matrix, name, text, use = ""], n) => {
    if (n % 4 === 0 && n) y += 6;
    write(ctx, theme, name, 4, y, { bold: true, size: 12, colour: inked(theme, colourOf(matrix, product)) });
    write(ctx, theme, text, 52, y, { size: 12 });
    write(ctx, theme, use, 158, y, { size: 12 });
    y += 16.5;
  });
}

// ---- right: the tile in shared memory, and the wavefronts of one phase

function drawTile(ctx, theme, { lane, reads, layout, head_dim, request }) {
  const chunks = head_dim / 8;
  const width = TILE.width / chunks;
  const phase = lane >> 3;
  const { x, y, height } = TILE;
  write(ctx, theme, `Tile of ${reads} in shared memory, ${layout}`, x, 10, { bold: true });
  write(ctx, theme, "bank", x - 4, y - 10, { size: 10.5, align: "right" });
  const word = (4 * width) / 16;
  ctx.save();
  ctx.globalAlpha = 0.38;
  for (let n = 0; n < 4 * chunks; n++) {
    ctx.fillStyle = bankColour(n % 32);
    ctx.fillRect(x + n * word, y, word, height);
  }
  ctx.restore();
  for (let place = 0; place < chunks; place += chunks / 8) {
    write(ctx, theme, `${(4 * place) % 32}`, x + place * width + 1, y - 10, { size: 10.5 });
  }
  ctx.save();
  ctx.globalAlpha = 0.3;
  ctx.fillStyle = theme.ink;
  for (let line = 1; line < ROWS; line++) ctx.fillRect(x, y + line * STEP.y, TILE.width, 1);
  for (let line = 1; line < chunks; line++) ctx.fillRect(x + line * width, y, 1, height);
  ctx.restore();
  for (let row = 0; row < ROWS; row++) {
    write(ctx, theme, `${row}`, x - 6, y + (row + 0.5) * STEP.y, { size: 10.5, align: "right" });
    for (let place = 0; place < chunks; place++) {
      const chunk = layout === "swizzled" ? place ^ row % 8 : place;
      write(ctx, theme, `${chunk}`, x + (place + 0.5) * width, y + (row + 0.5) * STEP.y + 0.5, { size: 10.5, align: "center" });
    }
  }
  frame(ctx, theme, x, y, TILE.width, height, 0.7);
  for (let l = 8 * phase; l < 8 * phase + 8; l++) {
    const row = request.rows[l];
    const place = (request.offsets[l] % (2 * head_dim)) / 16;
    const box = [x + place * width, y + row * STEP.y, width, STEP.y];
    drawChunk(ctx, theme, place, `${request.chunks[l]}`, ...box);
    write(ctx, theme, `lane ${l}`, x + TILE.width + 5, y + (row + 0.5) * STEP.y, { size: 10.5, bold: l === lane });
    if (l !== lane) continue;
    ctx.strokeStyle = COLOURS.pick;
    ctx.lineWidth = 2.5;
    ctx.strokeRect(...box);
  }
  drawTurns(ctx, theme, { lane, phase, request });
}

// 16 bytes in the colours of their four banks, opaque.
function drawChunk(ctx, theme, place, text, x, y, width, height) {
  for (let word = 0; word < 4; word++) {
    ctx.fillStyle = bankColour((4 * place + word) % 32);
    ctx.fillRect(x + (word * width) / 4, y, width / 4 + 0.5, height);
  }
  const bright = [2, 3, 4, 5].includes(place % 8); // of the four banks of this place
  write(ctx, theme, text, x + width / 2, y + height / 2 + 0.5, { size: 11, align: "center", bold: true, colour: bright ? "#000" : "#fff" });
  frame(ctx, theme, x, y, width, height, 0.9);
}

function drawTurns(ctx, theme, { lane, phase, request }) {
  const { x, y, bank, height } = TURNS;
  const lanes = [...Array(8).keys()].map((r) => 8 * phase + r);
  const count = Math.max(...lanes.map((l) => request.turns[l])) + 1;
  write(ctx, theme, `Rows ${request.rows[lanes[0]]} to ${request.rows[lanes[7]]} by bank: ${plural(count, "wavefront")}`, x, y - 34, { bold: true });
  write(ctx, theme, "bank", x - 4, y - 10, { size: 10.5, align: "right" });
  for (let n = 0; n < 32; n += 4) write(ctx, theme, `${n}`, x + n * bank + 1, y - 10, { size: 10.5 });
  for (let turn = 0; turn < count; turn++) {
    write(ctx, theme, `${turn + 1}`, x - 6, y + (turn + 0.5) * height, { size: 10.5, align: "right" });
    frame(ctx, theme, x, y + turn * height, 32 * bank, height, 0.35);
  }
  for (const l of lanes) {
    const place = (request.offsets[l] / 16) % 8;
    const box = [x + 4 * place * bank, y + request.turns[l] * height, 4 * bank, height];
    drawChunk(ctx, theme, place, `${request.rows[l]}`, ...box);
    if (l !== lane) continue;
    ctx.strokeStyle = COLOURS.pick;
    ctx.lineWidth = 2.5;
    ctx.strokeRect(...box);
  }
  const all = [0, 8, 16, 24].map((first) => Math.max(...request.turns.slice(first, first + 8)) + 1);
  const total = all.reduce((sum, part) => sum + part);
  write(ctx, theme, `All four matrices: ${all.join(" + ")} = ${total}`, x, y + count * height + 16);
}

function render({ model, el }) {
  const { lanes, requests, start } = model.get("meta");
  const settings = { ...start };
  const change = (name) => (value) => {
    settings[name] = value;
    redraw();
  };
  const product = element("canvas", { role: "img" });
  const tile = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const controls = stepper("lane", lanes.length - 1, (lane) => setStep(model, lane));
  const reads = { Q: "Q, for S = Q Kᵀ", K: "K, for S = Q Kᵀ", V: "V (.trans), for O = P V" };
  const root = element("div", { class: "ak-widget", "data-widget": "fragments" },
    element("div", { class: "ak-row" }, controls.prev, controls.next, controls.row),
    element("div", { class: "ak-row" },
      radios("ldmatrix reads", reads, start.reads, change("reads")),
      radios("The tile is", { plain: "plain", swizzled: "swizzled" }, start.layout, change("layout")),
      radios("Head dimension D", { 64: "64", 128: "128" }, start.head_dim, (value) => change("head_dim")(Number(value)))),
    status,
    element("div", { class: "ak-columns" }, product, tile),
    element("div", { class: "ak-note" },
      "Matrices: a number is the lane that holds the pair; frame: the 8 × 8 matrix that these eight lanes point at. ",
      "Tile: memory as it lies, coloured by bank; a number is the chunk of 16 bytes stored there. Below it, the rows ",
      "that a wavefront delivers. Rows and columns count from the fragment's first. A register of A or B holds two ",
      "16-bit numbers, one of D an fp32."));
  el.append(root);

  function redraw() {
    const { reads, layout, head_dim } = settings;
    const state = { ...settings, lane: model.get("step"), lanes, request: requests[`${reads} ${layout} ${head_dim}`] };
    const theme = themeOf(root);
    const { boxes, width, height } = layoutOf(widthOf(root));
    drawProduct(prepare(product, width, height), theme, { ...state, boxes });
    drawTile(prepare(tile, TILE_SIZE.width, TILE_SIZE.height), theme, state);
    controls.input.value = state.lane;
    controls.text.textContent = `${state.lane} (0 to ${lanes.length - 1})`;
    status.textContent = describe(state);
    product.setAttribute("aria-label", `The registers of one lane in A, B and D of ${PRODUCTS[reads].text}. ${status.textContent}`);
    tile.setAttribute("aria-label", `The tile in shared memory, coloured by bank. ${status.textContent}`);
  }

  const laneAt = (offsetX, offsetY) => {
    const { boxes } = layoutOf(widthOf(root));
    for (const [name, { x, y, columns }] of Object.entries(boxes)) {
      const [row, column] = [Math.floor((offsetY - y) / CELL), Math.floor((offsetX - x) / CELL)];
      if (row < 0 || row >= ROWS || column < 0 || column >= columns) continue;
      const register = (held) => Object.entries(held).some(([key, elements]) =>
        key[0].toUpperCase() === name[0] && elements.some((at) => at[0] === row && at[1] === column));
      return lanes.findIndex(register);
    }
    return null;
  };
  clickable(product, laneAt, (lane) => setStep(model, lane));
  return keepDrawn(model, root, redraw);
}

export default { render };
