// planner.js — the chooser and memory planner (chapter 08). Python computes; here it is shown. The plans of all lengths
// for the settings shown are there at once, so that the length moves without Python; the other controls ask it. On a page
// alone, without Python, the settings stand there in words.
// with address.js

const LABELS = {
  batch: "batch", heads: "heads", kv_heads: "key heads", head_dim: "head dim d", dtype: "dtype", device: "GPU",
  is_causal: "causal", window: "window", target_ms: "target a layer",
};
const WORDS = { dense: "all pairs; S and P stored", flash: "nothing of size L² stored", sparse: "the rest is skipped" };
const ALL_SEEN = "the window covers all"; // in place of the last one
const GAP = 26;
const CAPTION = 62; // height of the four lines below a square

// What a value of a setting is called.
function nameOf(setting, value) {
  if (setting === "is_causal") return value ? "yes" : "no";
  if (setting === "kv_heads" && value === 0) return "as many";
  if (setting === "target_ms") return value >= 1000 ? `${value / 1000} s` : `${value} ms`;
  return typeof value === "number" ? bytes(value) : value;
}

// Three squares side by side where there is room for their captions, else one below the other.
function layoutOf(width) {
  const columns = width >= 640 ? 3 : 1;
  const side = Math.min(230, (width - (columns - 1) * GAP) / columns);
  const cell = side + 22 + CAPTION;
  const places = [0, 1, 2].map((n) => (columns === 3 ? [n * (side + GAP), 22] : [0, n * (cell + 14) + 22]));
  return { side, places, width: columns === 3 ? 3 * side + 2 * GAP : Math.max(side, 250), height: columns === 3 ? cell : 3 * cell + 28 };
}

// The pairs (j, i) with 0 <= i - j <= part, or |i - j| <= part, of a square.
function band(ctx, x, y, side, part, isCausal) {
  const corners = [[0, 0], [0, part], [1 - part, 1], [1, 1]];
  if (!isCausal) corners.push([1, 1 - part], [part, 0]);
  ctx.beginPath();
  corners.forEach(([j, i], n) => ctx[n ? "lineTo" : "moveTo"](x + j * side, y + i * side));
  ctx.closePath();
}

function drawSquare(ctx, theme, method, { window, isCausal }, side, x, y) {
  ctx.save();
  ctx.globalAlpha = 0.85;
  if (method.name === "dense") {
    ctx.fillStyle = COLOURS.K;
    ctx.fillRect(x, y, side, side);
    if (isCausal) {
      ctx.beginPath(); // the hidden half: computed, stored, and then overwritten
      ctx.moveTo(x, y);
      ctx.lineTo(x + side, y);
      ctx.lineTo(x + side, y + side);
      ctx.clip();
      hatch(ctx, theme, x, y, side, side, 9);
    }
  } else {
    band(ctx, x, y, side, method.name === "flash" ? 1 : Math.max(window, 2 / side), isCausal);
    ctx.fillStyle = COLOURS.Q;
    ctx.fill();
  }
  ctx.restore();
  frame(ctx, theme, x, y, side, side);
}

function draw(ctx, theme, page, { side, places }) {
  page.methods.slice(0, 3).forEach((method, n) => {
    const [x, y] = places[n];
    write(ctx, theme, method.title, x, y - 11, { bold: true, size: 13 });
    drawSquare(ctx, theme, method, page, side, x, y);
    const lines = [
      method.name === "sparse" && page.window >= 1 ? ALL_SEEN : WORDS[method.name],
      `memory ${method.memoryText}`,
      method.fits ? "fits" : `out of memory at ${method.breaking}`,
      `at least ${method.secondsText}`,
    ];
    lines.forEach((line, k) => write(ctx, theme, line, x, y + side + 11 + 15 * k, { bold: k === 2 && !method.fits }));
  });
}

// The text of a node, changed only where it differs: what stays is not laid out anew.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// What a method takes of the device's memory: "38 %", or "7.8 ×" where it does not fit.
function shareOf(method, page) {
  const part = method.memory / page.capacity;
  if (method.fits) return part < 0.01 ? "< 1 %" : `${Math.floor(100 * part)} %`;
  return `${part >= 100 ? bytes(Math.round(part)) : part < 1.1 ? part.toFixed(2) : part.toFixed(1)} ×`;
}

// A row of the memory table, made once and filled for each page. The bar is full where a method does not fit.
function methodRow() {
  const title = element("th", { scope: "row" });
  const fill = element("span", {});
  const share = element("span", { class: "ak-number" });
  const texts = Array.from({ length: 5 }, () => element("td", {}));
  const bar = element("td", {}, element("div", { class: "ak-capacity" }, element("div", { class: "ak-bar" }, fill), share));
  const [memory, ...others] = texts;
  const show = (method, page) => {
    const values = [method.memoryText, method.breaking || "–", method.secondsText, method.bound, method.flopsText];
    texts.forEach((node, n) => say(node, values[n]));
    say(title, method.title);
    say(share, shareOf(method, page));
    fill.style.width = `${100 * Math.min(method.memory / page.capacity, 1)}%`;
    fill.style.background = method.fits ? COLOURS.Q : COLOURS.K;
  };
  return { root: element("tr", {}, title, memory, bar, ...others), show };
}

// The table of the methods, and below it what the memory of each consists of.
function memoryTable() {
  const share = element("th", { scope: "col" });
  const [method, memory, ...others] = ["method", "memory", "runs out at", "at least", "floor of", "FLOPs"].map(
    (text) => element("th", { scope: "col" }, text));
  const body = element("tbody", {});
  let rows = [];
  const show = (page) => {
    say(share, `of ${page.device}'s ${page.capacityText}`);
    if (rows.length !== page.methods.length) {
      rows = page.methods.map(methodRow);
      body.replaceChildren(...rows.map((row) => row.root));
    }
    rows.forEach((row, n) => row.show(page.methods[n], page));
  };
  const head = element("thead", {}, element("tr", {}, method, memory, share, ...others));
  return { root: element("table", { class: "ak-table ak-plan" }, head, body), show };
}

function partsList(page) {
  return page.methods.map((method) => element("li", {},
    element("b", {}, method.title), `: ${method.parts.map(([name, , text]) => `${name} ${text}`).join(" + ")}`));
}

// A step of what to try, made once and filled for each page.
function adviceItem() {
  const [name, verdict, effect, why] = ["b", "span", "span", "span"].map((tag) => element(tag, {}));
  why.className = "ak-note";
  const root = element("li", {}, name, " ", verdict, " ", effect, " ", why);
  const show = (step) => {
    root.className = step.verdict === "try this" ? "ak-now" : "";
    say(name, step.step);
    say(verdict, `${step.verdict}.`);
    say(effect, `${step.effect[0].toUpperCase()}${step.effect.slice(1)}.`);
    say(why, step.why);
  };
  return { root, show };
}

function render({ model, el }) {
  const { lengths, choices } = model.get("meta");
  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const length = stepper("length L", lengths.length - 1, (step) => setStep(model, step));
  const selects = Object.fromEntries(Object.entries(choices).map(([setting, values]) => [setting,
    control("select", { class: `ak-${setting}`, onchange: ask }, ...values.map((value, n) => element("option", { value: n }, nameOf(setting, value))))]));
  const { settings: started } = model.get("meta").shown;
  const settings = Object.entries(LABELS).map(([name, words]) => `${words} ${nameOf(name, started[name])}`);
  const controls = model.get("alone")
    ? element("div", {}, `Python has recorded these plans for ${settings.join(", ")}. Other settings need Python: run this cell in JupyterLab.`)
    : element("div", { class: "ak-row" }, ...Object.entries(selects).map(([setting, select]) => element("label", {}, LABELS[setting], select)));
  const methods = memoryTable();
  const table = control("div", { class: "ak-scroll", tabindex: 0, role: "region", "aria-label": "memory and time floor of each method" }, methods.root);
  const list = element("ul", {});
  const parts = element("details", { class: "ak-parts", ontoggle: redraw }, control("summary", {}, "What takes the memory"), list);
  const decode = element("div", { class: "ak-decode" });
  const notes = element("div", { class: "ak-note" });
  const steps = Array.from({ length: 4 }, adviceItem);
  const advice = element("ol", { class: "ak-advice" }, ...steps.map((step) => step.root));
  const root = element("div", { class: "ak-widget", "data-widget": "planner" },
    element("div", { class: "ak-row" }, length.prev, length.next, length.row),
    controls,
    status,
    canvas,
    element("div", { class: "ak-legend" },
      legendItem(COLOURS.K, "computed, and stored in HBM"), legendItem("", "computed, stored, and masked", "ak-hatch"),
      legendItem(COLOURS.Q, "computed, kept on the chip"), legendItem("transparent", "skipped"),
      element("span", {}, "each square is S: queries down, keys across")),
    table, parts, decode, notes,
    element("div", { class: "ak-title" }, "What to try, in this order"), advice);
  el.append(root);

  function ask() {
    const settings = Object.fromEntries(Object.entries(selects).map(([setting, select]) => [setting, choices[setting][select.value]]));
    model.set("asked", settings);
    model.save_changes();
  }

  let last = null; // what Python said, as the controls show it

  function redraw() {
    const { shown } = model.get("meta");
    const step = Math.min(model.get("step"), lengths.length - 1);
    const box = layoutOf(Math.max(root.clientWidth - 8, 280)); // read before anything is written, or all is laid out twice
    length.input.value = step;
    say(length.text, bytes(lengths[step]));
    if (shown !== last) {
      for (const [setting, select] of Object.entries(selects)) select.value = choices[setting].indexOf(shown.settings[setting]);
      last = shown;
    }
    if (shown.error) {
      status.textContent = `These settings do not go together. ${shown.error}`;
      return;
    }
    const page = shown.plans[step];
    draw(prepare(canvas, box.width, box.height), themeOf(root), page, box);
    methods.show(page);
    if (parts.open) list.replaceChildren(...partsList(page));
    say(decode, page.decode);
    say(notes, [
      "Of one layer, forward, at the datasheet's rates; kernels take a multiple of a floor.",
      "MLA and DSA are of DeepSeek-V3.2's own sizes, whatever heads, d and dtype are.",
      ...page.leftOut.map((text) => `${text}, so left out here.`),
    ].join(" "));
    steps.forEach((step, n) => step.show(page.advice[n]));
    say(status, page.status);
    canvas.setAttribute("aria-label", `The score matrix of dense, flash and sparse attention: what is computed, stored and skipped. ${page.status}`);
  }

  const address = keepInAddress(model, root, () => ({ length: lengths[model.get("step")] }),
    ({ length: text }) => setStep(model, lengths.indexOf(oneOf(text, lengths, lengths[model.get("step")]))));
  model.on("change:meta", redraw);
  const stop = keepDrawn(model, root, redraw);
  return () => {
    model.off("change:meta", redraw);
    address.forget();
    stop();
  };
}

export default { render };
