// bank_turns.js — how many turns a warp waits that reads a column of a tile in shared memory (chapter 00).

const LANES = 32;
const BANKS = 32;
const TOP = 38;
const HIGH = 9; // of a row of the tile, and of a turn

// The same as column_state in bank_turns.py.
export function columnState(pitch) {
  const words = [...Array(LANES).keys()].map((lane) => lane * pitch);
  const seen = Array(BANKS).fill(0);
  const turnOf = new Map();
  for (const word of new Set(words)) turnOf.set(word, seen[word % BANKS]++);
  return { banks: words.map((word) => word % BANKS), turns: words.map((word) => turnOf.get(word)) };
}

function describe(pitch) {
  const { banks, turns } = columnState(pitch);
  const [used, count] = [new Set(banks).size, Math.max(...turns) + 1];
  if (pitch === 0) return "Pitch 0: all 32 lanes want the same word, which is handed to all of them in 1 turn.";
  const wait = count === 1 ? "No lane waits." : `${count} lanes want different words of one bank and wait for one another.`;
  return `Rows of ${plural(pitch, "word")}: the column lies in ${used} of 32 banks and takes ${plural(count, "turn")}. ${wait}`;
}

// Tile and banks stand side by side where there is room for both.
function layoutOf(width, most) {
  const sideBySide = width >= 560;
  const part = sideBySide ? (width - 40) / 2 : width - 30;
  const cell = Math.min((part - 30) / most, HIGH);
  return { tile: { x: 30, y: TOP, cell }, banks: sideBySide ? { x: width / 2 + 40, y: TOP } : { x: 30, y: TOP + LANES * HIGH + 60 },
    bank: (sideBySide ? width / 2 - 46 : width - 36) / BANKS, height: (TOP + LANES * HIGH + 24) * (sideBySide ? 1 : 2) };
}

function drawTile(ctx, theme, { x, y, cell }, pitch, colours) {
  write(ctx, theme, `Shared memory as rows of ${pitch} words`, x, 9, { bold: true });
  for (const column of [0, 8, 16, 24, 32]) if (column < pitch) write(ctx, theme, `${column}`, x + (column + 0.5) * cell, y - 9, { size: 10.5, align: "center" });
  for (let row = 0; row < LANES; row++) {
    if (row % 8 === 0) write(ctx, theme, `${row}`, x - 6, y + (row + 0.5) * HIGH, { size: 10.5, align: "right" });
    for (let column = 0; column < Math.max(pitch, 1); column++) {
      ctx.save();
      ctx.globalAlpha = column === 0 ? 1 : column < BANKS ? 0.55 : 0.15;
      ctx.fillStyle = colours[(row * pitch + column) % BANKS];
      ctx.fillRect(x + column * cell, y + row * HIGH, cell, HIGH);
      ctx.restore();
    }
  }
  if (pitch > BANKS) hatch(ctx, theme, x + BANKS * cell, y, (pitch - BANKS) * cell, LANES * HIGH);
  frame(ctx, theme, x - 1, y - 1, cell + 2, LANES * HIGH + 2, 1);
  write(ctx, theme, "framed: what the warp reads, lane l in row l", x, y + LANES * HIGH + 14, { size: 11 });
}

function drawTurns(ctx, theme, { x, y }, bank, pitch, colours) {
  const { banks, turns } = columnState(pitch);
  const count = Math.max(...turns) + 1;
  write(ctx, theme, `${plural(count, "turn")} of the banks`, x, y - TOP + 9, { bold: true });
  for (let n = 0; n < BANKS; n += 8) write(ctx, theme, `${n}`, x + (n + 0.5) * bank, y - 9, { size: 10.5, align: "center" });
  write(ctx, theme, "bank", x - 4, y - 9, { size: 10.5, align: "right" });
  for (let turn = 0; turn < count; turn++) frame(ctx, theme, x, y + turn * HIGH, BANKS * bank, HIGH, 0.2);
  turns.forEach((turn, lane) => {
    ctx.fillStyle = colours[banks[lane]];
    ctx.fillRect(x + banks[lane] * bank, y + turn * HIGH + 0.5, bank, HIGH - 1);
  });
  for (const turn of new Set(count > 2 ? [0, count - 1] : [count - 1])) write(ctx, theme, `${turn + 1}`, x - 6, y + (turn + 0.5) * HIGH, { size: 10.5, align: "right" });
  write(ctx, theme, "a line: what the banks deliver in one turn", x, y + LANES * HIGH + 14, { size: 11 });
}

function render({ model, el }) {
  const { most, colours } = model.get("meta");
  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const controls = stepper("pitch, words in a row", most, (pitch) => setStep(model, pitch));
  const root = element("div", { class: "ak-widget", "data-widget": "bank-turns" },
    element("div", { class: "ak-row" }, controls.prev, controls.next, controls.row),
    status, canvas);
  el.append(root);

  function redraw() {
    const pitch = model.get("step");
    const theme = themeOf(root);
    const width = widthOf(root);
    const { tile, banks, bank, height } = layoutOf(width, most);
    const ctx = prepare(canvas, width, height);
    drawTile(ctx, theme, tile, pitch, colours);
    drawTurns(ctx, theme, banks, bank, pitch, colours);
    controls.input.value = pitch;
    controls.text.textContent = `${pitch} (0 to ${most})`;
    status.textContent = describe(pitch);
    canvas.setAttribute("aria-label", `A tile coloured by bank, and the turns of a load. ${status.textContent}`);
  }
  return keepDrawn(model, root, redraw);
}

export default { render };
