// load_sectors.js — into which sectors of memory the 32 addresses of a warp's load fall (chapter 00).

const LANES = 32;
const SECTOR = 32; // bytes
const A_LINE = 32; // sectors
const LANE = { y: 24, high: 16 };
const MEMORY = { y: 92, high: 18, gap: 8 };
const X = 2;

// The same as load_state in load_sectors.py.
export function loadState(stride, elementBytes) {
  const addresses = [...Array(LANES).keys()].map((lane) => lane * stride * elementBytes);
  const sectors = [...new Set(addresses.map((address) => Math.floor(address / SECTOR)))];
  return { addresses, sectors };
}

function describe(stride, elementBytes) {
  const count = loadState(stride, elementBytes).sectors.length;
  const [moved, wanted] = [SECTOR * count, stride ? LANES * elementBytes : elementBytes];
  const times = moved / wanted;
  const verdict = times > 1 ? `${Number(times.toFixed(2))} times as many as are wanted` : "nothing moves in vain";
  return `Stride ${stride}, ${elementBytes} bytes a lane: the addresses fall into ${plural(count, "sector")}. ` +
    `${bytes(moved)} bytes move for ${bytes(wanted)} different bytes wanted: ${verdict}.`;
}

const linesOf = ({ sectors }) => Math.floor(sectors[sectors.length - 1] / A_LINE) + 1;

function draw(ctx, theme, width, { stride, elementBytes, colours: [wanted, moved] }) {
  const state = loadState(stride, elementBytes);
  const room = width - 2 * X;
  const sector = room / A_LINE;
  const place = (address) => {
    const line = Math.floor(address / (SECTOR * A_LINE));
    return [X + ((address / SECTOR) % A_LINE) * sector, MEMORY.y + line * (MEMORY.high + MEMORY.gap)];
  };
  write(ctx, theme, "The 32 lanes of a warp", X, 9, { bold: true });
  write(ctx, theme, `Memory: lines of ${bytes(SECTOR * A_LINE)} bytes, sectors of ${SECTOR}`, X, MEMORY.y - 11, { bold: true });
  for (let n = 0; n < A_LINE * linesOf(state); n++) {
    const [x, y] = place(n * SECTOR);
    ctx.save();
    ctx.fillStyle = state.sectors.includes(n) ? moved : theme.ink;
    ctx.globalAlpha = state.sectors.includes(n) ? 0.45 : 0.06;
    ctx.fillRect(x, y, sector, MEMORY.high);
    ctx.restore();
    frame(ctx, theme, x, y, sector, MEMORY.high, 0.3);
  }
  state.addresses.forEach((address, lane) => {
    const [x, y] = place(address);
    const wide = Math.max((elementBytes / SECTOR) * sector, 1.5);
    const from = X + (lane + 0.5) * sector;
    ctx.fillStyle = wanted;
    ctx.fillRect(X + lane * sector + 0.5, LANE.y, sector - 1, LANE.high);
    if (sector >= 15) write(ctx, theme, `${lane}`, from, LANE.y + LANE.high / 2 + 0.5, { size: 10, align: "center", colour: "#fff" });
    ctx.fillStyle = wanted;
    ctx.fillRect(x, y, wide, MEMORY.high);
    if (y > MEMORY.y) return; // a line across other lines would say nothing
    ctx.save();
    ctx.globalAlpha = 0.35;
    ctx.strokeStyle = theme.ink;
    ctx.beginPath();
    ctx.moveTo(from, LANE.y + LANE.high);
    ctx.bezierCurveTo(from, LANE.y + LANE.high + 18, x + wide / 2, MEMORY.y - 40, x + wide / 2, MEMORY.y - 22);
    ctx.stroke();
    ctx.restore();
  });
}

function render({ model, el }) {
  const { element_bytes, elements, most, colours } = model.get("meta");
  const settings = { elementBytes: element_bytes };
  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const controls = stepper("stride", most, (stride) => setStep(model, stride));
  const size = radios("Bytes that a lane loads", elements, element_bytes, (chosen) => {
    settings.elementBytes = Number(chosen);
    redraw();
  });
  const root = element("div", { class: "ak-widget", "data-widget": "load-sectors" },
    element("div", { class: "ak-row" }, controls.prev, controls.next, controls.row),
    element("div", { class: "ak-row" }, size),
    status, canvas,
    element("div", { class: "ak-legend" }, legendItem(colours[0], "asked for"), legendItem(colours[1], "moves with it")));
  el.append(root);

  function redraw() {
    const state = { stride: model.get("step"), ...settings, colours };
    const width = widthOf(root);
    const lines = linesOf(loadState(state.stride, state.elementBytes));
    draw(prepare(canvas, width, MEMORY.y + lines * (MEMORY.high + MEMORY.gap)), themeOf(root), width, state);
    controls.input.value = state.stride;
    controls.text.textContent = `${state.stride} (0 to ${most})`;
    status.textContent = describe(state.stride, state.elementBytes);
    canvas.setAttribute("aria-label", `The lanes of a warp above the sectors of memory. ${status.textContent}`);
  }
  return keepDrawn(model, root, redraw);
}

export default { render };
