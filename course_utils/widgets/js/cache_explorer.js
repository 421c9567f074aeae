// cache_explorer.js — a paged cache, step by step, and what fits into a GPU's memory (chapter 06). Python kept the books
// and computed every figure; this draws.
// with address.js

const GAP = 6; // between the pages of a line
const HIGH = { number: 13, row: 24, below: 9 }; // of a line of the pool: page numbers, rows, space
const ENTRY = { width: 30, high: 22, below: 6 }; // of a block table
const HEAD = 24;
const LABEL = 92;

// How many of something, in words.

// ---- the pool

// Pool and tables side by side where both have room, else one below the other.
function layoutOf({ line, states }, size, room) {
  const sideBySide = room >= 660;
  const poolWidth = Math.min(sideBySide ? Math.round(0.56 * room) : room, 440);
  const cell = Math.floor((poolWidth - (line / 2) * GAP) / line); // the same for every page size
  const lines = (states[size][0].pages.length * size) / line;
  const tablesWidth = Math.min(sideBySide ? room - poolWidth - 20 : room, 460);
  const perLine = Math.floor((tablesWidth - LABEL) / ENTRY.width);
  const tall = Math.max(...states[size].map((state) => tablesHeight(state, perLine)));
  return {
    cell, perLine,
    pool: { width: poolWidth, height: HEAD + lines * (HIGH.number + HIGH.row + HIGH.below) },
    tables: { width: tablesWidth, height: HEAD + tall },
  };
}

// The box of a page's rows.
function pageBox({ line }, { cell }, size, page) {
  const column = (page * size) % line;
  const down = Math.floor((page * size) / line);
  const y = HEAD + HIGH.number + down * (HIGH.number + HIGH.row + HIGH.below);
  return { x: 1 + column * cell + (column / size) * GAP, y, width: size * cell, height: HIGH.row };
}

function drawPool(ctx, theme, { meta, state, size, box }) {
  write(ctx, theme, `The pool: ${plural(state.pages.length, "page")} of ${size} rows`, 1, 9, { bold: true });
  const written = new Set(state.written);
  state.pages.forEach(([owners, filled, first], page) => {
    const { x, y, width, height } = pageBox(meta, box, size, page);
    const shared = owners.length > 1;
    write(ctx, theme, shared ? `${page} ×${owners.length}` : `${page}`, x, y - 7, { size: 10.5, bold: shared });
    for (let row = 0; row < (owners ? size : 0); row++) {
      const left = x + row * box.cell;
      if (row >= filled) {
        hatch(ctx, theme, left, y, box.cell, height, 5);
        continue;
      }
      bands(ctx, meta, owners, { x: left, y, width: box.cell, height });
      const fresh = written.has(page * size + row);
      write(ctx, theme, `${first + row}`, left + box.cell / 2, y + height / 2 + 0.5, { size: 10.5, align: "center", colour: "#000", bold: fresh });
      if (fresh) {
        ctx.fillStyle = "#000";
        ctx.fillRect(left + 3, y + height - 4, box.cell - 6, 2);
      }
    }
    outline(ctx, theme, state, page, { x, y, width, height });
  });
  for (const pair of state.copies) {
    const [from, to] = pair.map((page) => ({ ...pageBox(meta, box, size, page), width: state.pages[page][1] * box.cell }));
    arrow(ctx, theme, from, to);
  }
}

// The colours of all who have a page, one below the other.
function bands(ctx, { colours }, owners, { x, y, width, height }) {
  [...owners].forEach((owner, n) => {
    ctx.fillStyle = colours[owner];
    ctx.fillRect(x, y + (n * height) / owners.length, width, height / owners.length);
  });
}

// A page that was taken in this step has a thick frame, one that was given back a dashed one.
function outline(ctx, theme, { taken, freed }, page, { x, y, width, height }) {
  const [isTaken, isFreed] = [taken.includes(page), freed.includes(page)];
  ctx.save();
  ctx.strokeStyle = theme.ink;
  ctx.globalAlpha = isTaken || isFreed ? 1 : 0.4;
  ctx.lineWidth = isTaken ? 2.5 : isFreed ? 1.5 : 1;
  if (isFreed) ctx.setLineDash([4, 3]);
  ctx.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  ctx.restore();
}

// An arrow from the rows of a page to the rows of its copy, straight to a line below, or as a bow on the same line.
function arrow(ctx, theme, from, to) {
  const below = to.y > from.y;
  const [x0, y0] = [from.x + from.width / 2, from.y + from.height];
  const [x1, y1] = [to.x + to.width / 2, below ? to.y - 1 : to.y + to.height + 1];
  const [cx, cy] = [(x0 + x1) / 2, (y0 + y1) / 2 + (below ? 0 : 14)];
  const angle = Math.atan2(y1 - cy, x1 - cx);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = theme.ink;
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.quadraticCurveTo(cx, cy, x1, y1);
  ctx.stroke();
  ctx.translate(x1, y1);
  ctx.rotate(angle);
  ctx.beginPath();
  ctx.moveTo(0, 0);
  ctx.lineTo(-9, -5);
  ctx.lineTo(-9, 5);
  ctx.fill();
  ctx.restore();
}

// ---- the block tables

const linesOf = (table, perLine) => Math.max(Math.ceil(table.length / perLine), 1);

function tablesHeight({ tables, waiting }, perLine) {
  const lines = Object.values(tables).reduce((sum, table) => sum + linesOf(table, perLine), waiting ? 1 : 0);
  return lines * (ENTRY.high + ENTRY.below);
}

// A line for each sequence: its letter, its tokens, and its pages in order, each as full as it is.
function drawTables(ctx, theme, { meta, state, size, box: { perLine } }) {
  write(ctx, theme, "Block tables: pages in order", 1, 9, { bold: true });
  let y = HEAD;
  for (const [name, table] of Object.entries(state.tables)) {
    const tokens = state.lengths[name];
    ctx.fillStyle = meta.colours[name];
    ctx.fillRect(1, y, 20, ENTRY.high);
    write(ctx, theme, name, 11, y + ENTRY.high / 2, { align: "center", bold: true, colour: "#000" });
    write(ctx, theme, plural(tokens, "token"), 27, y + ENTRY.high / 2, { size: 11.5 });
    table.forEach((page, n) => {
      const left = LABEL + (n % perLine) * ENTRY.width;
      const top = y + Math.floor(n / perLine) * (ENTRY.high + ENTRY.below);
      const [owners] = state.pages[page];
      const box = { x: left, y: top, width: ENTRY.width - 3, height: ENTRY.high };
      const full = (box.width * Math.min(tokens - n * size, size)) / size;
      ctx.save();
      ctx.globalAlpha = 0.4;
      bands(ctx, meta, owners, { ...box, width: full });
      ctx.restore();
      outline(ctx, theme, state, page, box);
      write(ctx, theme, `${page}`, left + box.width / 2, top + box.height / 2, { align: "center", bold: owners.length > 1 });
    });
    y += linesOf(table, perLine) * (ENTRY.high + ENTRY.below);
  }
  if (state.waiting) write(ctx, theme, state.waiting, 27, y + ENTRY.high / 2);
}

// ---- the meters, and what fits

// Rows of a cache: with a token, taken and empty, free. No word stands on a hatch: the legend has it.
function meter() {
  const [title, words] = [element("b", {}), element("div", {})];
  const kinds = { filled: "with a token", empty: "", free: "free" };
  const parts = Object.keys(kinds).map((kind) => element("span", { class: `ak-${kind}` }));
  const root = element("div", {}, title, words, element("div", { class: "ak-bar ak-cache-rows" }, ...parts));
  const show = (state) => {
    title.textContent = state.title;
    words.textContent = state.said;
    Object.values(kinds).forEach((name, n) => {
      parts[n].style.flex = `${state.rows[n]} 0 0`;
      parts[n].textContent = state.rows[n] > 20 ? name : "";
    });
  };
  return { root, show };
}

// A row for each model: bytes of a token and of a sequence, and how many sequences fit, as bars.
function fitsTable(models, memory) {
  const rows = models.map((model) => {
    const [token, sequence] = [element("td", {}), element("td", {})];
    const bar = element("span", {});
    const number = element("span", { class: "ak-number" });
    const space = element("div", { class: "ak-capacity" }, element("div", { class: "ak-bar" }, bar), number);
    const root = element("tr", {}, element("th", { scope: "row" }, model), token, sequence, element("td", {}, space));
    const show = (fit, most, picked) => {
      token.textContent = fit.token;
      sequence.textContent = fit.sequence;
      number.textContent = bytes(fit.sequences);
      bar.style.width = `${(100 * fit.sequences) / most}%`;
      bar.style.background = picked ? COLOURS.Q : COLOURS.S;
      root.className = picked ? "ak-picked" : "";
    };
    return { root, show };
  });
  const head = ["cache of", "a token", "a sequence", `fit into ${memory}`].map((text) => element("th", { scope: "col" }, text));
  const root = element("table", { class: "ak-table ak-cache-fits" },
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows.map((row) => row.root)));
  const show = (fits, model) => {
    const most = Math.max(...models.map((name) => fits[name].sequences));
    rows.forEach((row, n) => row.show(fits[models[n]], most, models[n] === model));
  };
  return { root, show };
}

function render({ model, el }) {
  const meta = model.get("meta");
  const { states, contexts, fits, notes } = meta;
  const settings = { ...meta.start };
  const sizes = Object.keys(states).map(Number);
  const last = states[settings.page_size].length - 1;
  const models = Object.keys(Object.values(fits)[0][0]);
  const pool = element("canvas", { role: "img" });
  const tables = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const steps = stepper("step", last, (step) => setStep(model, step));
  const change = (name, draw) => (value) => {
    settings[name] = value;
    draw();
    address.note();
  };
  const radioRows = {
    page_size: radios("Rows of a page", sizes, settings.page_size, (text) => change("page_size", redraw)(Number(text))),
    model: radios("Model", models, settings.model, change("model", fill)),
    dtype: radios("Cache in", Object.keys(fits), settings.dtype, change("dtype", fill)),
  };
  const meters = [meter(), meter()]; // in pages, and without
  const table = fitsTable(models, meta.memory);
  const said = element("div", { class: "ak-cache-said", "aria-live": "polite" });
  const context = slider("tokens of a sequence", { class: "ak-context", min: 0, max: contexts.length - 1, step: 1 });
  context.input.value = contexts.indexOf(settings.context);
  context.input.addEventListener("input", () => change("context", fill)(contexts[Number(context.input.value)]));

  const root = element("div", { class: "ak-widget", "data-widget": "cache-explorer" },
    element("div", { class: "ak-row" }, steps.prev, steps.next, steps.row),
    radioRows.page_size,
    status,
    element("div", { class: "ak-columns" }, pool, element("div", { class: "ak-cache-books" }, tables,
      element("div", { class: "ak-legend" },
        legendItem("", "shared: one page, two users", "ak-cache-shared"),
        legendItem("", "taken, and empty", "ak-hatch"),
        legendItem("", "written in this step", "ak-cache-written"),
        legendItem("", "taken in this step", "ak-cache-taken"),
        legendItem("", "given back in this step", "ak-cache-freed")))),
    element("div", { class: "ak-meters" }, ...meters.map((one) => one.root)),
    element("div", { class: "ak-note" }, notes[0]),
    element("div", { class: "ak-title" }, `What fits into ${meta.memory}`),
    element("div", { class: "ak-row" }, radioRows.model, radioRows.dtype),
    element("div", { class: "ak-row" }, context.row),
    control("div", { class: "ak-scroll", tabindex: 0, role: "region", "aria-label": "what fits of each model's cache" }, table.root),
    said,
    element("div", { class: "ak-note" }, notes[1]));
  el.append(root);

  function redraw() {
    const now = model.get("step");
    const size = settings.page_size;
    const state = states[size][now];
    const box = layoutOf(meta, size, widthOf(root, Infinity));
    const theme = themeOf(root);
    for (const [canvas, { width, height }, draw] of [[pool, box.pool, drawPool], [tables, box.tables, drawTables]]) {
      draw(prepare(canvas, width, height), theme, { meta, state, size, box });
    }
    meters.forEach((one, n) => one.show(state.meters[n]));
    steps.input.value = now;
    steps.text.textContent = `${now} of ${last}`;
    status.textContent = `Step ${now} of ${last}. ${state.said}`;
    const held = Object.entries(state.tables).map(([name, pages]) => `${name} ${pages.join(" ")}`).join("; ");
    pool.setAttribute("aria-label", `The pages of the pool and who has them. ${status.textContent}`);
    tables.setAttribute("aria-label", `Block tables. ${held || "No sequence."}`);
  }

  function fill() {
    const row = fits[settings.dtype][contexts.indexOf(settings.context)];
    context.text.textContent = bytes(settings.context);
    table.show(row, settings.model);
    said.textContent = row[settings.model].said;
  }
  const address = keepInAddress(model, root, () => ({ step: model.get("step"), ...settings }), (texts) => {
    settings.page_size = oneOf(texts.page_size, sizes, settings.page_size);
    settings.model = oneOf(texts.model, models, settings.model);
    settings.dtype = oneOf(texts.dtype, Object.keys(fits), settings.dtype);
    settings.context = oneOf(texts.context, contexts, settings.context);
    for (const [name, row] of Object.entries(radioRows)) pick(row, settings[name]);
    context.input.value = contexts.indexOf(settings.context);
    fill();
    redraw();
    setStep(model, wholeNumber(texts.step, [0, last], model.get("step")));
  });
  fill();
  const stop = keepDrawn(model, root, redraw);
  return () => {
    address.forget();
    stop();
  };
}

export default { render };
