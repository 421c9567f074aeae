// pipeline.js — who does what, and who waits, in one block of each step of the ladder (chapter 07).

const LANE = { x: 150, high: 22, gap: 6, top: 26 };
const WAIT = "waits";
const PRODUCTS = "products"; // how the names of lanes begin that have both, S and PV

// The spans of a lane that are seen between two cycles, cut there.
export function seen(spans, from, to) {
  return spans.filter(([begin, end]) => end > from && begin < to)
    .map(([begin, end, kind]) => [Math.max(begin, from), Math.min(end, to), kind]);
}

// Of the cycles that are seen, how many lie in spans that `counts` takes; spans may overlap.
export function covered(spans, from, to, counts) {
  let [sum, reached] = [0, from];
  for (const [begin, end, kind] of seen(spans, from, to)) {
    if (!counts(kind)) continue;
    sum += Math.max(0, end - Math.max(begin, reached));
    reached = Math.max(reached, end);
  }
  return sum;
}

function describe({ number, title, lanes, cycles, share, slower }, from, to) {
  const per = (part) => `${Math.round((100 * part) / (to - from))} %`;
  const products = lanes.filter(({ name }) => name.startsWith(PRODUCTS)).flatMap(({ spans }) => spans).sort((a, b) => a[0] - b[0]);
  const waiting = lanes.filter(({ name }) => name.startsWith("warpgroup")).map(({ spans }) => covered(spans, from, to, (kind) => kind === WAIT));
  const mean = waiting.reduce((a, b) => a + b, 0) / waiting.length;
  return `Step ${number} ${title}: ${cycles.toLocaleString("en-US")} cycles from tile to tile, ${Math.round(100 * share)} % of what the tensor cores could do. ` +
    `Of the time shown, some product is under way in ${per(covered(products, from, to, () => true))}; a computing warpgroup waits in ${per(mean)}. ` +
    `(The clocks that were noted made the kernel take ${slower.toFixed(2)} times as long.)`;
}

// Both products stand in one lane: who does not tell their colours apart reads their letters.
function drawLetters(ctx, theme, colour, letters, x, y, wide) {
  if (wide < 8 * letters.length + 4) return;
  const ink = inkOn([1, 3, 5].map((n) => parseInt(colour.slice(n, n + 2), 16)));
  write(ctx, theme, letters, x + wide / 2, y + LANE.high / 2, { size: 10.5, align: "center", colour: ink });
}

function draw(ctx, theme, width, { lanes }, kinds, from, to) {
  const at = (cycle) => LANE.x + ((cycle - from) / (to - from)) * (width - LANE.x - 2);
  for (let cycle = Math.ceil(from / 1000) * 1000; cycle <= to; cycle += width < 560 ? 4000 : 2000) {
    write(ctx, theme, cycle.toLocaleString("en-US"), Math.min(at(cycle), width - 22), 9, { size: 11, align: "center" });
  }
  write(ctx, theme, "cycle", 0, 9, { size: 11 });
  lanes.forEach(({ name, spans }, n) => {
    const y = LANE.top + n * (LANE.high + LANE.gap);
    write(ctx, theme, name, 0, y + LANE.high / 2, { size: 11 });
    for (const [begin, end, kind] of seen(spans, from, to)) {
      const wide = Math.max(at(end) - at(begin), 0.5);
      ctx.fillStyle = kinds[kind][0];
      if (kind === WAIT) hatch(ctx, theme, at(begin), y, wide, LANE.high, 5);
      else ctx.fillRect(at(begin), y, wide, LANE.high);
      if (name.startsWith(PRODUCTS)) drawLetters(ctx, theme, kinds[kind][0], kind, at(begin), y, wide);
    }
    frame(ctx, theme, LANE.x, y, width - LANE.x - 2, LANE.high, 0.2);
  });
}

function render({ model, el }) {
  const { blocks, kinds, window: span, from } = model.get("meta");
  const last = Math.max(...blocks.flatMap(({ lanes }) => lanes.flatMap(({ spans }) => spans.map(([begin]) => begin)))) - span;
  const settings = { from };
  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const controls = stepper("step of the ladder", blocks.length - 1, (block) => setStep(model, block));
  const time = slider("from cycle", { min: 0, max: Math.max(last, from), step: 250 });
  time.input.value = from;
  time.input.addEventListener("input", () => {
    settings.from = Number(time.input.value);
    redraw();
  });
  const root = element("div", { class: "ak-widget", "data-widget": "pipeline" },
    element("div", { class: "ak-row" }, controls.prev, controls.next, controls.row),
    element("div", { class: "ak-row" }, time.row),
    status, canvas,
    element("div", { class: "ak-legend" }, ...Object.entries(kinds).map(([kind, [colour, words]]) => (kind === WAIT ? legendItem("", words, "ak-hatch") : legendItem(colour, words)))));
  el.append(root);

  function redraw() {
    const block = blocks[model.get("step")];
    const width = widthOf(root);
    const height = LANE.top + Math.max(...blocks.map(({ lanes }) => lanes.length)) * (LANE.high + LANE.gap);
    draw(prepare(canvas, width, height), themeOf(root), width, block, kinds, settings.from, settings.from + span);
    controls.input.value = model.get("step");
    controls.text.textContent = block.number;
    time.text.textContent = settings.from.toLocaleString("en-US");
    status.textContent = describe(block, settings.from, settings.from + span);
    canvas.setAttribute("aria-label", `Lanes over time: copies, products, and what each warpgroup does. ${status.textContent}`);
  }
  return keepDrawn(model, root, redraw);
}

export default { render };
