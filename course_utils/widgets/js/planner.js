// planner.js — the chooser and memory planner (chapter 08). Python computes; here it is shown. The plans of all lengths
// for the settings shown are there at once, so that the length moves without Python; the other controls ask it.

const LABELS = {
  batch: "batch", heads: "heads", kv_heads: "key heads", head_dim: "head dim d", dtype: "dtype", device: "GPU",
  is_causal: "causal", window: "window", target_ms: "target a layer",
};
const WORDS = { dense: "all pairs; S and P stored", flash: "nothing of size L² stored", sparse: "the rest is skipped" };
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
      WORDS[method.name],
      `memory ${method.memoryText}`,
      method.fits ? "fits" : `out of memory at ${method.breaking}`,
      `at least ${method.secondsText}`,
    ];
    lines.forEach((line, k) => write(ctx, theme, line, x, y + side + 11 + 15 * k, { bold: k === 2 && !method.fits }));
  });
}

// A bar of a method's memory beside the device's: full where it does not fit.
function memoryBar(method, page) {
  const part = method.memory / page.capacity;
  const words = method.fits ? "" : `${part >= 100 ? bytes(Math.round(part)) : part.toFixed(1)} × what there is`;
  const colour = method.fits ? COLOURS.Q : COLOURS.K;
  return element("div", { class: "ak-bar ak-capacity" },
    element("span", { style: `width: ${100 * Math.min(part, 1)}%; background: ${colour}` }, words));
}

function memoryTable(page) {
  const head = ["method", "memory", `of ${page.device}'s ${page.capacityText}`, "runs out at", "at least", "floor of", "FLOPs"];
  const rows = page.methods.map((method) => element("tr", {},
    element("th", { scope: "row" }, method.title),
    element("td", { title: method.parts.map(([name, , text]) => `${name}: ${text}`).join("\n") }, method.memoryText),
    element("td", {}, memoryBar(method, page)),
    element("td", {}, method.breaking || "–"),
    element("td", {}, method.secondsText),
    element("td", {}, method.bound),
    element("td", {}, method.flopsText)));
  return element("table", { class: "ak-table ak-plan" },
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows));
}

function adviceList(page) {
  return page.advice.map((step) => element("li", { class: step.verdict === "try this" ? "ak-now" : "" },
    element("b", {}, step.step), ` ${step.verdict}. `,
    element("span", {}, `${step.effect[0].toUpperCase()}${step.effect.slice(1)}. `), element("span", { class: "ak-note" }, step.why)));
}

function swatch(style, words) {
  return element("span", {}, element("span", { class: `ak-swatch ${style === "hatch" ? "ak-hatch" : ""}`, style: style === "hatch" ? "" : `background: ${style}` }), words);
}

function render({ model, el }) {
  const { lengths, choices } = model.get("meta");
  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const length = stepper("length L", lengths.length - 1, (step) => setStep(model, step));
  const selects = Object.fromEntries(Object.entries(choices).map(([setting, values]) => [setting,
    control("select", { class: `ak-${setting}`, onchange: ask }, ...values.map((value, n) => element("option", { value: n }, nameOf(setting, value))))]));
  const table = control("div", { class: "ak-scroll", tabindex: 0, role: "region", "aria-label": "memory and time floor of each method" });
  const notes = element("div", { class: "ak-note" });
  const advice = element("ol", { class: "ak-advice" });
  const root = element("div", { class: "ak-widget", "data-widget": "planner" },
    element("div", { class: "ak-row" }, length.prev, length.next, length.row),
    element("div", { class: "ak-row" }, ...Object.entries(selects).map(([setting, select]) => element("label", {}, LABELS[setting], select))),
    status,
    canvas,
    element("div", { class: "ak-legend" },
      swatch(COLOURS.K, "computed, and stored in HBM"), swatch("hatch", "computed, stored, and masked"),
      swatch(COLOURS.Q, "computed, kept on the chip"), swatch("transparent", "skipped")),
    table, notes,
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
    length.input.value = step;
    length.text.textContent = bytes(lengths[step]);
    if (shown !== last) {
      for (const [setting, select] of Object.entries(selects)) select.value = choices[setting].indexOf(shown.settings[setting]);
      last = shown;
    }
    if (shown.error) {
      status.textContent = `These settings do not go together. ${shown.error}`;
      return;
    }
    const page = shown.plans[step];
    const box = layoutOf(Math.max(root.clientWidth - 8, 280));
    draw(prepare(canvas, box.width, box.height), themeOf(root), page, box);
    table.replaceChildren(memoryTable(page));
    notes.textContent = [
      "Of one layer, forward, at the datasheet's rates; kernels take a multiple of a floor.",
      "MLA and DSA are of DeepSeek-V3.2's own sizes, whatever heads, d and dtype are.",
      ...page.leftOut.map((text) => `${text}, so left out here.`),
    ].join(" ");
    advice.replaceChildren(...adviceList(page));
    status.textContent = page.status;
    canvas.setAttribute("aria-label", `The score matrix of dense, flash and sparse attention: what is computed, stored and skipped. ${page.status}`);
  }

  model.on("change:meta", redraw);
  const stop = keepDrawn(model, root, redraw);
  return () => {
    model.off("change:meta", redraw);
    stop();
  };
}

export default { render };
