// bank_places.js — which bank each of eight lanes asks when ldmatrix reads one chunk of eight rows (chapter 03).

const ROWS = 8; // of the tile, a lane for each
const CHUNK = 16; // bytes
const LINE = 128; // bytes: all 32 banks
const GROUPS = LINE / CHUNK;
const MEMORY = { x: 40, y: 40, cell: 46, high: 22 };
const WAVES = { y: 40, cell: 40, high: 22 };
const GAP = 62;

// At which place of its row a chunk lies.
const placeOf = (layout, row, chunk) => (layout === "swizzled" ? chunk ^ row % 8 : chunk);

// The same as bank_state in bank_places.py.
export function bankState(layout, width, chunk) {
  const pitch = 2 * width + (layout === "padded" ? CHUNK : 0);
  const rows = [...Array(ROWS).keys()];
  const offsets = rows.map((row) => pitch * row + CHUNK * placeOf(layout, row, chunk));
  const bank = (offset) => (offset / 4) % 32;
  const turns = rows.map((row) => offsets.slice(0, row).filter((offset) => bank(offset) === bank(offsets[row])).length);
  return { offsets, turns, pitch };
}

function describe({ layout, width, chunk }) {
  const { offsets, turns, pitch } = bankState(layout, width, chunk);
  const banks = 4 * new Set(offsets.map((offset) => offset % LINE)).size;
  const waves = Math.max(...turns) + 1;
  const wait = waves > 1 ? ` ${waves} lanes want the same four banks and wait for one another.` : " No lane waits.";
  return (
    `Eight lanes read chunk ${chunk} of rows 0 to 7, ${layout}, ${pitch} bytes from row to row: they meet ${banks} of 32 banks, ` +
    `${plural(waves, "wavefront")}.${wait}`
  );
}

// Memory as it lies: a line is all 32 banks, a cell is a chunk in the colour of its row's lane.
function drawMemory(ctx, theme, { layout, width, chunk, colours }) {
  const { x, y, cell, high } = MEMORY;
  const { pitch } = bankState(layout, width, chunk);
  write(ctx, theme, "Shared memory", x, 9, { bold: true });
  write(ctx, theme, "bank", x - 4, y - 9, { size: 10.5, align: "right" });
  for (let group = 0; group < GROUPS; group++) write(ctx, theme, `${4 * group}`, x + group * cell + 1, y - 9, { size: 10.5 });
  for (let row = 0; row < ROWS; row++) {
    for (let one = 0; one < width / 8; one++) {
      const offset = pitch * row + CHUNK * placeOf(layout, row, one);
      const [left, top] = [x + ((offset % LINE) / CHUNK) * cell, y + Math.floor(offset / LINE) * high];
      ctx.save();
      ctx.globalAlpha = one === chunk ? 1 : 0.2;
      ctx.fillStyle = colours[row];
      ctx.fillRect(left, top, cell - 1, high - 1);
      ctx.restore();
      const read = one === chunk;
      const ink = read ? "#000" : theme.ink;
      write(ctx, theme, read ? `row ${row}` : `${one}`, left + cell / 2, top + high / 2, { size: read ? 11 : 10.5, align: "center", bold: read, colour: ink });
      if (read) frame(ctx, theme, left, top, cell - 1, high - 1, 0.9);
    }
  }
}

// The wavefronts stand beside the memory, or below it where there is no room for that.
function layoutOf({ width }, room) {
  const lines = (2 * width * ROWS) / LINE + 1; // one more than without padding
  const [memory, waves] = [MEMORY.x + GROUPS * MEMORY.cell, GROUPS * WAVES.cell + 2];
  const high = MEMORY.y + lines * MEMORY.high + 8;
  if (memory + GAP + waves <= room) return { x: memory + GAP, down: 0, width: memory + GAP + waves, height: high };
  return { x: MEMORY.x, down: high + 12, width: memory, height: high + 12 + WAVES.y + ROWS * WAVES.high + 8 };
}

// The wavefronts of the read, one below the other: which lane gets its chunk in which, from which banks.
function drawWaves(ctx, theme, x, { layout, width, chunk, colours }) {
  const { y, cell, high } = WAVES;
  const { offsets, turns } = bankState(layout, width, chunk);
  const waves = Math.max(...turns) + 1;
  write(ctx, theme, `${plural(waves, "wavefront")} for chunk ${chunk} of eight rows`, x, 9, { bold: true });
  for (let group = 0; group < GROUPS; group++) write(ctx, theme, `${4 * group}`, x + group * cell + 1, y - 9, { size: 10.5 });
  for (let wave = 0; wave < waves; wave++) frame(ctx, theme, x, y + wave * high, GROUPS * cell, high, 0.3);
  offsets.forEach((offset, lane) => {
    const [left, top] = [x + ((offset % LINE) / CHUNK) * cell, y + turns[lane] * high];
    ctx.fillStyle = colours[lane];
    ctx.fillRect(left + 1, top + 1, cell - 2, high - 2);
    write(ctx, theme, `lane ${lane}`, left + cell / 2, top + high / 2, { size: 10, align: "center", colour: "#000" });
  });
}

function render({ model, el }) {
  const { layouts, widths, colours, start } = model.get("meta");
  const settings = { ...start };
  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const last = Math.min(...widths) / 8 - 1; // the chunks that rows of every width have
  const controls = stepper("chunk", last, (chunk) => setStep(model, chunk));
  const change = (name) => (value) => {
    settings[name] = value;
    redraw();
  };
  const root = element("div", { class: "ak-widget", "data-widget": "bank-places" },
    element("div", { class: "ak-row" }, controls.prev, controls.next, controls.row),
    element("div", { class: "ak-row" },
      radios("The tile lies", layouts, start.layout, change("layout")),
      radios("Numbers in a row", widths, start.width, change("width"))),
    status,
    canvas,
    element("div", { class: "ak-note" },
      "Shared memory: 128 bytes a line; a cell is a chunk of 16 bytes with its number, in the colour of its row. ",
      "Opaque: what the eight lanes read, lane r in row r. Wavefronts: what the banks deliver at a time."));
  el.append(root);

  function redraw() {
    const state = { ...settings, chunk: model.get("step"), colours };
    const theme = themeOf(root);
    const { x, down, width, height } = layoutOf(settings, widthOf(root, Infinity));
    const ctx = prepare(canvas, width, height);
    drawMemory(ctx, theme, state);
    ctx.translate(0, down);
    drawWaves(ctx, theme, x, state);
    controls.input.value = state.chunk;
    controls.text.textContent = `${state.chunk} (0 to ${last})`;
    status.textContent = describe(state);
    canvas.setAttribute("aria-label", `Shared memory by bank, and the wavefronts of one read. ${status.textContent}`);
  }
  return keepDrawn(model, root, redraw);
}

export default { render };
