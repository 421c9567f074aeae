// guesses.js — a guess first, then the figure: a box that holds back what a cell shows. The site uses it, too.

const CLOSE = 0.005; // a guess this near is right: figures are shown to three digits
const LOG_FROM = 3; // beyond this factor a linear scale would push one of both to its end

const plain = (number) =>
  number.toLocaleString("en-US", Math.abs(number) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 6 });
const withUnit = (value, unit) => (typeof value === "number" ? `${plain(value)} ${unit}`.trim() : value);

// The number that was typed: { value }, or { why } it cannot be read. The figure's own unit may follow.
export function readGuess(text, unit = "") {
  const typed = text.trim().replace(/^[~≈+]\s*/, "").replace("−", "-");
  const bad = (why) => ({ why: `${why} Type a number such as 40, 1.5e6 or 2^20.` });
  if (!typed) return bad("There is no guess yet.");
  const parts = /^(-?)(\d{1,3}(?:[, _]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d{1,3}))?(?:\s*(?:\^|\*\*)\s*(\d{1,3}))?\s*(.*)$/i.exec(typed);
  if (!parts) return bad(`“${typed}” cannot be read as a number.`);
  const [, minus, digits, exponent, power, rest] = parts;
  if (/^[,.]/.test(rest)) return bad(`“${typed}” can be read in two ways: the decimal sign is a point.`);
  const known = unit.toLowerCase();
  const said = rest.toLowerCase();
  if (said && !known.startsWith(said) && !(/times/.test(known) && /^[x×]$/.test(said)))
    return bad(unit ? `“${rest}” is not the unit here, which is “${unit}”.` : `What does “${rest}” mean?`);
  const base = Number(`${digits.replace(/[, _]/g, "")}e${exponent ?? 0}`);
  const value = (minus ? -1 : 1) * (power === undefined ? base : base ** Number(power));
  return Number.isFinite(value) ? { value } : bad(`“${typed}” is too large.`);
}

// By how much a guess is off, in words.
export function howFar(guess, value, unit = "") {
  if (typeof guess !== "number" || typeof value !== "number") return guess === value ? "right" : "another one";
  if (Math.abs(guess - value) <= CLOSE * Math.abs(value)) return "right";
  const side = guess > value ? "too high" : "too low";
  if (unit.startsWith("%")) return `${plain(Math.abs(guess - value))} points ${side}`;
  if (guess * value <= 0) return `${withUnit(Math.abs(guess - value), unit)} ${side}`;
  const factor = guess / value > 1 ? guess / value : value / guess;
  const off = Math.abs(guess - value) / Math.abs(value);
  if (factor < 1.5) return `${Math.round(100 * off)} % ${side}`;
  const digits = factor < 9.95 ? factor.toFixed(1) : plain(Math.round(factor));
  return `${digits.replace(/\.0$/, "")} times ${side}`;
}

// What is said once the figure is shown. guess: undefined if it was skipped. words: the value with its unit.
export function verdict({ value, unit, words }, guess) {
  if (guess === undefined || guess === null) return words ? `It is ${words}.` : "No such figure was found here.";
  const guessed = `You guessed ${withUnit(guess, unit)}.`;
  if (!words) return `${guessed} No such figure was found here.`;
  const far = howFar(guess, value, unit);
  if (far === "another one") return `${guessed} It is ${words}.`;
  return `${guessed} It is ${words}: your guess is ${far}.`;
}

// Guess and value on one scale: its ends, its ticks, and where both stand, as shares of its length. Logarithmic where
// both are positive and far apart. null where there are no two numbers.
export function scaleOf(guess, value, unit = "") {
  if (typeof guess !== "number" || typeof value !== "number") return null;
  const [least, most] = [Math.min(guess, value), Math.max(guess, value)];
  const log = least > 0 && most / least > LOG_FROM;
  let low, high, ticks;
  if (log) {
    const [from, to] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
    const between = to - from <= 2 ? [1, 2, 5] : [1];
    const decades = Array.from({ length: to - from + 1 }, (_, n) => between.map((digit) => Number(`${digit}e${from + n}`)));
    const marks = decades.flat();
    low = marks.findLast((mark) => mark <= least);
    high = marks.find((mark) => mark >= most);
    const inside = marks.filter((mark) => low <= mark && mark <= high);
    const each = Math.ceil((inside.length - 1) / 6); // of so many one tick, the ends among them
    ticks = inside.filter((mark, n) => n % each === 0 || mark === high);
    if (each > 1 && (inside.length - 1) % each) ticks.splice(-2, 1); // it would stand too near the end
  } else {
    const [from, to] = [Math.min(0, least), unit.startsWith("%") && most <= 100 ? 100 : Math.max(0, most)];
    const rough = (to - from || 1) / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    [low, high] = [step * Math.floor(from / step), step * Math.ceil((to || step) / step)];
    ticks = Array.from({ length: Math.round((high - low) / step) + 1 }, (_, n) => Number((low + n * step).toPrecision(6)));
  }
  const place = (x) => (log ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low));
  return { log, ticks: ticks.map((x) => ({ at: place(x), text: plain(x) })), guess: place(guess), value: place(value) };
}

// ---- the box

let boxes = 0; // ids must differ between the boxes of a page

// What the guess is given with: its elements, how it is read ({ value } or { why }) and how an earlier one is put in.
function formOf({ form, unit }, id) {
  if (form.kind === "choice") {
    const inputs = form.options.map(() => control("input", { type: "radio", name: id }));
    const labels = inputs.map((input, n) => element("label", {}, input, withUnit(form.options[n], unit)));
    return {
      inputs,
      nodes: [element("div", { class: "ak-row", role: "radiogroup", "aria-labelledby": `${id}-question` }, ...labels)],
      read: () => {
        const chosen = inputs.findIndex((input) => input.checked);
        return chosen < 0 ? { why: "There is no guess yet: choose one." } : { value: form.options[chosen] };
      },
      fill: (value) => inputs.forEach((input, n) => (input.checked = form.options[n] === value)),
    };
  }
  const named = { "aria-labelledby": `${id}-question`, "aria-describedby": `${id}-unit ${id}-status` };
  const behind = element("span", { class: "ak-number", id: `${id}-unit` }, unit);
  if (form.kind === "slider") {
    const step = 10 ** Math.floor(Math.log10((form.high - form.low) / 100) + 1e-9);
    const input = control("input", { type: "range", min: form.low, max: form.high, step, ...named });
    const show = () => {
      behind.textContent = withUnit(Number(input.value), unit);
      input.setAttribute("aria-valuetext", behind.textContent);
    };
    input.addEventListener("input", show);
    show();
    return {
      inputs: [input],
      nodes: [element("span", { class: "ak-guess-slider" }, input, behind)],
      read: () => ({ value: Number(input.value) }),
      fill: (value) => ((input.value = value), show()),
    };
  }
  const input = control("input", { type: "text", inputmode: "decimal", autocomplete: "off", ...named });
  input.addEventListener("focus", () => input.select()); // who guesses again types over the guess before
  return {
    inputs: [input],
    nodes: [element("span", { class: "ak-guess-typed" }, input, behind)],
    read: () => readGuess(input.value, unit),
    fill: (value) => (input.value = plain(value)),
  };
}

// A mark above the line of the scale, or below it, with its words kept inside the box.
function markOf(kind, share, words) {
  const at = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  const name = element("span", { class: "ak-guess-name", style: `left: ${at}; transform: translateX(-${at})` }, words);
  return element("div", { class: `ak-guess-${kind}` }, name, element("i", { style: `left: ${at}` }));
}

function showScale(root, asked, guess) {
  const scale = scaleOf(guess, asked.value, asked.unit);
  root.hidden = !scale;
  if (!scale) return;
  const ticks = scale.ticks.map(({ at, text }) =>
    element("span", { style: `left: ${100 * at}%; transform: translateX(-${100 * at}%)` }, text),
  );
  root.replaceChildren(
    markOf("yours", scale.guess, `your guess: ${withUnit(guess, asked.unit)}`),
    element("div", { class: "ak-guess-ticks" }, ...ticks),
    markOf("found", scale.value, `found: ${asked.words}`),
  );
}

// The box of a question. asked: what Python sent; held: the element with what is held back; changed(stage, guess) is
// called when the reader compares, skips or hides. Returns { root, show }: show(stage, guess, note) draws a state.
export function guessBox(asked, held, changed) {
  const id = `ak-guess-${(boxes += 1)}`;
  const form = formOf(asked, id);
  const compare = control("button", { class: "ak-compare", type: "button" }, "Compare");
  const skip = control("button", { class: "ak-skip", type: "button" }, "Skip");
  const status = element("div", { class: "ak-status", id: `${id}-status`, role: "status", "aria-live": "polite" });
  const scale = element("div", { class: "ak-guess-scale", "aria-hidden": "true" }); // the status says the same
  const root = element(
    "section",
    { class: "ak-widget", "data-widget": "guess", "aria-labelledby": `${id}-question` },
    element("div", { class: "ak-title", id: `${id}-question` }, asked.question),
    element("div", { class: "ak-row" }, ...form.nodes, compare, skip),
    status,
    scale,
    held,
  );
  let stage = "open";
  const complain = (why) => {
    status.textContent = why;
    form.inputs[0].setAttribute("aria-invalid", "true");
    form.inputs[0].focus();
  };
  const guessed = () => {
    const { value, why } = form.read();
    if (why) complain(why);
    else changed("compared", value);
  };
  compare.addEventListener("click", guessed);
  skip.addEventListener("click", () => changed(stage === "open" ? "skipped" : "open"));
  for (const input of form.inputs) {
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      guessed();
    });
  }
  const show = (now, guess, note = "") => {
    stage = now;
    const known = guess !== undefined && guess !== null;
    const open = stage === "open";
    if (known) form.fill(guess);
    for (const input of form.inputs) input.removeAttribute("aria-invalid");
    const earlier = known ? `You guessed ${withUnit(guess, asked.unit)} before. ` : "";
    const waiting = `${earlier}The result is hidden until you compare or skip.`;
    const said = open ? waiting : verdict(asked, stage === "compared" ? guess : undefined);
    status.textContent = [said, note].filter(Boolean).join(" ");
    skip.textContent = open ? "Skip" : "Hide again";
    root.dataset.stage = stage;
    held.hidden = open;
    if (stage === "compared") showScale(scale, asked, guess);
    else scale.hidden = true;
  };
  return { root, show };
}

export default {
  render({ model, el }) {
    // JupyterLab's own class: the held output looks as it would without the box.
    const held = element("div", { class: "ak-held jp-RenderedHTMLCommon" });
    held.innerHTML = model.get("held"); // what the cell has shown
    const box = guessBox(model.get("asked"), held, (stage, guess) => {
      if (stage === "compared") {
        model.set("guess", guess);
        model.send({ guessed: guess });
      }
      model.set("stage", stage);
      model.save_changes();
      draw();
    });
    const draw = () => box.show(model.get("stage"), model.get("guess"), model.get("note"));
    el.append(box.root);
    const names = ["guess", "stage", "note"].map((name) => `change:${name}`);
    for (const name of names) model.on(name, draw);
    draw();
    return () => names.forEach((name) => model.off(name, draw));
  },
};
