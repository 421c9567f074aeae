// shared.js — helpers of every widget. Python puts this file in front of the widget's own (frame.py).

// viridis, perceptually ordered: the same map as in the still pictures.
const VIRIDIS = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142],
  [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37],
];

// twilight_shifted, whose two ends meet: for banks, where the last is the neighbour of the first.
const TWILIGHT = [
  [48, 20, 55], [69, 19, 92], [89, 42, 143], [94, 81, 173], [98, 118, 186], [114, 151, 193], [149, 181, 199], [196, 206, 212],
  [226, 217, 226], [216, 199, 190], [204, 163, 137], [194, 124, 99], [178, 86, 82], [152, 53, 80], [116, 30, 79], [74, 19, 66],
  [48, 20, 55],
];

// Roles, the same in every widget and plot (plots/look.py): legible on white and on JupyterLab's dark background.
const COLOURS = { Q: "#2b7de0", K: "#c8641b", V: "#2e8b57", S: "#777777", O: "#a35bd6", pick: "#e0701a" };

// The colour [r, g, b] of t in [0, 1].
function colourAt(t, map = VIRIDIS) {
  const place = Math.min(Math.max(t, 0), 1) * (map.length - 1);
  const low = Math.min(Math.floor(place), map.length - 2);
  return map[low].map((c, k) => Math.round(c + (place - low) * (map[low + 1][k] - c)));
}

// Black or white, whichever stands out more from a colour [r, g, b] (WCAG 2).
function inkOn(colour) {
  const [r, g, b] = colour.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

// Build a DOM element; attributes starting with "on" are listeners.
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// A control that keeps its keys: in command mode JupyterLab would take the arrow keys for itself.
function control(tag, attributes, ...children) {
  return element(tag, { "data-lm-suppress-shortcuts": "true", ...attributes }, ...children);
}

// A range input with its label in front and a text behind that shows the value in words.
function slider(label, attributes) {
  const input = control("input", { type: "range", ...attributes });
  const text = element("span", { class: "ak-number" });
  return { input, text, row: element("label", { class: "ak-slider" }, label, input, text) };
}

// Previous and next buttons and the slider for whole numbers 0 … last; move(n) is called with the new number.
function stepper(label, last, move) {
  const parts = slider(label, { class: "ak-step", min: 0, max: last, step: 1 });
  const at = () => Number(parts.input.value);
  const go = (n) => move(Math.min(Math.max(n, 0), last));
  parts.input.addEventListener("input", () => go(at()));
  const prev = control("button", { class: "ak-prev", type: "button", onclick: () => go(at() - 1) }, "◀ Previous");
  const next = control("button", { class: "ak-next", type: "button", onclick: () => go(at() + 1) }, "Next ▶");
  return { ...parts, prev, next };
}

// Radio buttons for one of `options`, an array, or value → words; change(value) is called with the new one.
function radios(legend, options, start, change) {
  const group = `ak-${Math.random().toString(36).slice(2)}`; // two views must not share a group
  const named = Array.isArray(options) ? options.map((value) => [value, `${value}`]) : Object.entries(options);
  const labels = named.map(([value, words]) => {
    const input = control("input", { type: "radio", name: group, value, onchange: () => change(value) });
    input.checked = `${value}` === `${start}`;
    return element("label", {}, input, words);
  });
  return element("fieldset", {}, element("legend", {}, legend), ...labels);
}

// A sample of how something looks, its background or a class, in front of words.
function legendItem(background, words, name = "") {
  return element("span", {}, element("span", { class: `ak-swatch ${name}`, style: `background: ${background}` }), words);
}

// Whether a button can do anything now. It stays focusable: `disabled` would throw the keyboard's user out.
function enable(button, can) {
  button.setAttribute("aria-disabled", String(!can));
}

// Fills a box anew. Where one of its buttons has the focus, the button in its place gets it, or else the box.
function refill(box, ...nodes) {
  const buttons = () => [...box.querySelectorAll("button")];
  const at = buttons().findIndex((button) => button.matches(":focus"));
  box.replaceChildren(...nodes);
  if (at < 0) return;
  if (!buttons().length) box.tabIndex = -1;
  (buttons()[at] ?? buttons().at(-1) ?? box).focus();
}

// Checks the radio button with this value.
function pick(fieldset, value) {
  for (const input of fieldset.querySelectorAll("input")) input.checked = input.value === `${value}`;
}

// A select box with its label in front. groups: name of a group, "" for none → value → text; change(value) gets a text.
function selectBox(name, label, groups, change) {
  const select = control("select", { class: name, onchange: () => change(select.value) });
  for (const [group, options] of Object.entries(groups)) {
    const items = Object.entries(options).map(([value, text]) => element("option", { value }, text));
    select.append(...(group ? [element("optgroup", { label: group }, ...items)] : items));
  }
  return { select, row: element("label", {}, label, select) };
}

// The pixels that a picture may take in width. A widget has none before it is in the page.
function widthOf(root, most = 760) {
  return Math.min(Math.max(root.clientWidth - 8, 300), most);
}

// Size a canvas in CSS pixels, sharp on any screen, and return its cleared context. Where the page is narrower, the whole
// picture gets smaller.
function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return ctx;
}

// A picture with places to click: stepAt(x, y) is the step of a place, or null. The pointer
// is a hand over those places and over no others.
function clickable(canvas, stepAt, go) {
  const at = ({ offsetX, offsetY }) => {
    const drawn = parseFloat(canvas.style.width) / canvas.clientWidth; // more than 1 where the picture got smaller
    return stepAt(offsetX * drawn, offsetY * drawn);
  };
  canvas.addEventListener("pointermove", (event) => { canvas.style.cursor = at(event) === null ? "default" : "pointer"; });
  canvas.addEventListener("click", (event) => {
    const step = at(event);
    if (step !== null) go(step);
  });
}

// Ink and font of the page around the widget, so that a light and a dark theme both work.
function themeOf(root) {
  const style = getComputedStyle(root);
  return { ink: style.color, font: style.fontFamily };
}

// The colour of a role for words: on a light or a dark page the pure one would be too pale (WCAG 2 asks for 4.5).
function inked(theme, colour) {
  return `color-mix(in srgb, ${colour} 70%, ${theme.ink})`;
}

function write(ctx, theme, text, x, y, { size = 12, align = "left", colour = theme.ink, bold = false, base = "middle" } = {}) {
  ctx.font = `${bold ? "600 " : ""}${size}px ${theme.font}`;
  ctx.textAlign = align;
  ctx.textBaseline = base;
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
}

// Diagonal lines over a rectangle: masked or skipped.
function hatch(ctx, theme, x, y, width, height, gap = 7) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, width, height);
  ctx.clip();
  ctx.globalAlpha = 0.35;
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (let start = -height; start < width; start += gap) {
    ctx.moveTo(x + start, y + height);
    ctx.lineTo(x + start + height, y);
  }
  ctx.stroke();
  ctx.restore();
}

// A matrix as coloured cells; NaN and -Infinity stay empty, over a hatch.
function drawCells(ctx, theme, values, rows, cols, [low, high], x, y, width, height) {
  const pixels = new ImageData(cols, rows);
  let empty = false;
  for (let n = 0; n < rows * cols; n++) {
    if (!Number.isFinite(values[n])) {
      empty = true;
      continue;
    }
    const [r, g, b] = colourAt(high > low ? (values[n] - low) / (high - low) : 0.5);
    pixels.data.set([r, g, b, 255], 4 * n);
  }
  if (empty) hatch(ctx, theme, x, y, width, height);
  const small = new OffscreenCanvas(cols, rows);
  small.getContext("2d").putImageData(pixels, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(small, x, y, width, height);
  frame(ctx, theme, x, y, width, height);
}

function frame(ctx, theme, x, y, width, height, alpha = 0.4) {
  ctx.save();
  ctx.globalAlpha = alpha;
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 1;
  ctx.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  ctx.restore();
}

// The colour map as a horizontal bar with its two ends in figures.
function drawScale(ctx, theme, [low, high], x, y, width, digits = 2) {
  for (let n = 0; n < width; n++) {
    ctx.fillStyle = `rgb(${colourAt(n / (width - 1)).join(",")})`;
    ctx.fillRect(x + n, y, 1, 8);
  }
  write(ctx, theme, number(low, digits), x, y + 17, { size: 11 });
  write(ctx, theme, number(high, digits), x + width, y + 17, { size: 11, align: "right" });
}

// Smallest and largest finite value.
function rangeOf(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high] : [0, 0];
}

function number(value, digits = 2) {
  if (value === -Infinity) return "−∞";
  const text = value.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

const FIGURES = new Intl.NumberFormat("en-US"); // to make one takes longer than a picture may
const bytes = (count) => FIGURES.format(count);

const plural = (n, one, many = `${one}s`) => `${bytes(n)} ${n === 1 ? one : many}`;

function shorten(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

// Call draw now, whenever another view or Python moves the model's step, and when the theme or the width changes.
// Returns the function that undoes this, for anywidget to call when the output is cleared.
function keepDrawn(model, root, draw) {
  draw();
  model.on("change:step", draw);
  const themes = new MutationObserver(draw);
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class", "style"] });
  const sizes = new ResizeObserver(draw);
  sizes.observe(root);
  return () => {
    model.off("change:step", draw);
    themes.disconnect();
    sizes.disconnect();
  };
}

function setStep(model, step) {
  model.set("step", step);
  model.save_changes();
}

// A float32 buffer from Python (anywidget gives it as a DataView).
function floats(view) {
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}
