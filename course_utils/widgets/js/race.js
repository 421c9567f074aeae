// race.js — choose tile, stages, warps and order of a kernel, and race past cuDNN (chapter 07). What was measured answers
// with its figure, a model answers for the rest.
// with address.js
// with score.js

const SHARED_LIMIT = 227 * 1024; // bytes of shared memory that a block may have
const OTHERS = 24; // registers of a thread beside S, P and O: addresses, maxima, sums; recorded kernels have 15 to 32
const PLACES = { 2: [2, 2], 3: [3, 2], 4: [4, 4] }; // for tiles of K, and of V
const BARS = { x: 132, top: 22, high: 22, gap: 12, most: 1.35 };

// The choices, with those set back that have no effect here: an order if all rows are equally long, the next item if there
// is none, and so on.
export function settled(problem, choices) {
  const own = { ...choices };
  const queued = own.blocks === "stay" && own.order !== "lie";
  if (!problem.is_causal && own.order !== "lie") own.order = "l2";
  const hasMore = queued && own.copies === "producer" && problem.head_dim === 128 && own.consumers === "2";
  const needs = { hold: own.overlap !== "none", early: queued, registers: hasMore };
  if (!(needs[own.idea] ?? true)) own.idea = "none";
  return own;
}

// What a computing thread may have of the 65,536 registers, in eights and at most 255.
function registersOf(choices, consumers) {
  if (choices.copies !== "producer") return Math.min(Math.floor(65536 / (128 * consumers) / 8) * 8, 255);
  if (consumers === 3) return 160;
  return choices.blocks === "stay" && choices.order !== "lie" && choices.idea !== "registers" ? 240 : 232;
}

const kib = (count) => `${Math.floor(count / 1024 + 0.5)} KiB`;
const twoDecimals = (value) => (Math.floor(100 * value + 0.5) / 100).toFixed(2);

// What a block needs, and in words what does not fit.
export function resources(problem, choices) {
  const [d, keys, consumers] = [problem.head_dim, Number(choices.keys), Number(choices.consumers)];
  const places = PLACES[choices.places][0] + PLACES[choices.places][1];
  const tilesOfRows = choices.blocks === "stay" ? 2 : 1; // Q; and O, which leaves while the next Q comes
  const shared = 2 * d * (64 * consumers * tilesOfRows + places * keys) + 528 * consumers + 24 + 16 * places;
  // 64 rows of S (fp32), of P (16 bits) and of O (fp32), shared by 128 threads.
  const needed = Math.floor(keys / 2) + Math.floor(keys / 4) + Math.floor(d / 2) + OTHERS;
  const registers = registersOf(choices, consumers);
  const why = [];
  if (shared > SHARED_LIMIT) why.push(`${kib(shared)} of shared memory, and a block may have ${kib(SHARED_LIMIT)}`);
  if (needed > registers) why.push(`about ${needed} registers for a computing thread, which may have ${registers}`);
  return { shared, needed, registers, why: why.join("; and ") };
}

const nameOf = (figures, choices) => Object.keys(figures.choices).map((name) => choices[name]).join(".");

// By what factor each choice that is not the record's changed the record's ratio: [[names], factor], where there is one.
export function losses(problem, choices) {
  return Object.entries(problem.losses)
    .map(([joined, of]) => [joined.split(","), of])
    .map(([names, of]) => [names, of[names.map((name) => choices[name]).join(",")]])
    .filter(([, factor]) => factor !== undefined);
}

// The result of a kernel with these choices: measured, model, or does not fit.
export function answer(figures, place, choices) {
  const problem = figures.problems[place];
  const own = settled(problem, choices);
  const { why } = resources(problem, own);
  if (why) return { kind: "does not fit", ratio: 0, tflops: 0, text: `Does not fit: ${why}.` };
  const known = problem.measured[nameOf(figures, own)];
  if (known) {
    const speed = `${twoDecimals(known.ratio)} times as fast as cuDNN, ${Math.round(known.tflops)} TFLOP/s`;
    return { kind: "measured", ratio: known.ratio, tflops: known.tflops, text: `Measured: ${speed} (${figures.caption}). ${known.said}` };
  }
  const factors = losses(problem, own);
  const ratio = problem.measured[problem.record].ratio * factors.reduce((product, [, factor]) => product * factor, 1);
  const { titles } = figures;
  const parts = factors.map(([names, factor]) => `${names.map((name) => titles[name]).join(" and ")} × ${twoDecimals(factor)}`);
  const hasFigure = factors.flatMap(([names]) => names);
  const record = problem.record.split(".");
  const left = Object.keys(figures.choices).filter((name, n) => own[name] !== record[n] && !hasFigure.includes(name)).map((name) => titles[name]);
  const text = `Model: about ${twoDecimals(ratio)} times as fast as cuDNN. Nobody measured this kernel. The record, times what ` +
    `each choice alone changed: ${parts.join(", ")}.${left.length ? ` No figure is known of: ${left.join(", ")}.` : ""}`;
  return { kind: "model", ratio, tflops: ratio * problem.cudnn, text };
}

const titleOf = ({ head_dim, is_causal, length }) => `d = ${head_dim}, ${is_causal ? "causal" : "full"}, L = ${bytes(length)}`;

function draw(ctx, theme, width, rows) {
  const at = (ratio) => BARS.x + (ratio / BARS.most) * (width - BARS.x - 4);
  const bottom = BARS.top + rows.length * (BARS.high + BARS.gap);
  for (const ratio of [0, 0.5, 1]) write(ctx, theme, `${ratio}`, at(ratio), 9, { size: 11, align: ratio ? "center" : "left" });
  write(ctx, theme, "times cuDNN", 0, 9, { size: 11 });
  ctx.save();
  ctx.strokeStyle = theme.ink;
  ctx.setLineDash([5, 4]);
  ctx.beginPath();
  ctx.moveTo(at(1), 16);
  ctx.lineTo(at(1), bottom - BARS.gap / 2);
  ctx.stroke();
  ctx.restore();
  rows.forEach(({ name, ratio, words, colour, model }, n) => {
    const y = BARS.top + n * (BARS.high + BARS.gap);
    write(ctx, theme, name, 0, y + BARS.high / 2, { size: 12 });
    const wide = at(Math.min(ratio, BARS.most)) - BARS.x;
    if (model) {
      hatch(ctx, theme, BARS.x, y, wide, BARS.high, 5);
      frame(ctx, theme, BARS.x, y, wide, BARS.high, 0.8);
    } else {
      ctx.fillStyle = colour;
      ctx.fillRect(BARS.x, y, wide, BARS.high);
    }
    ctx.font = `12px ${theme.font}`;
    const long = ctx.measureText(words).width;
    const outside = long <= width - BARS.x - wide - 8;
    const left = outside ? BARS.x + wide + 6 : BARS.x + wide - long - 6;
    ctx.fillStyle = "#fff";
    ctx[outside ? "clearRect" : "fillRect"](left - 2, y + 2, long + 4, BARS.high - 4); // the line of cuDNN ends at words
    write(ctx, theme, words, left, y + BARS.high / 2, { colour: outside ? theme.ink : "#000" });
  });
}

// A bar for a block's share of a resource; too large a share fills it, and says so.
function meter(title) {
  const [text, fill] = [element("span", { class: "ak-number" }), element("span", {})];
  const root = element("div", {}, `${title}: `, text, element("div", { class: "ak-bar", "aria-hidden": "true" }, fill));
  const show = (need, most, words) => {
    text.textContent = need > most ? `${words}: too much` : words;
    fill.style.width = `${100 * Math.min(need / most, 1)}%`;
    fill.style.background = need > most ? COLOURS.K : COLOURS.Q;
  };
  return { root, show };
}

// The cost of single choices at a problem, the dearest first, folded.
function worthOf({ choices, titles }, problem) {
  const nameOne = (names, values) => names.map((name, n) => `${titles[name]}: ${choices[name][values[n]]}`).join(", ");
  return Object.entries(problem.losses)
    .flatMap(([names, of]) => Object.entries(of).map(([values, factor]) => [nameOne(names.split(","), values.split(",")), factor]))
    .filter(([, factor]) => Math.abs(factor - 1) >= 0.0005)
    .sort((one, other) => one[1] - other[1])
    .map(([words, factor]) => element("li", {}, `${words}: × ${number(factor, 3)}`));
}

function render({ model, el }) {
  const { figures, start } = model.get("meta");
  const { choices, titles, limits, problems } = figures;
  const score = keptHere("race", { tries: 0, best: {} });
  let own = { ...start };
  let raced = null; // the last answer: place, choices, result, and its words

  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const steps = stepper("problem", problems.length - 1, (step) => setStep(model, step));
  const boxes = Object.fromEntries(Object.entries(choices).map(([name, options]) => {
    const box = selectBox(`ak-race-${name}`, titles[name], { "": options }, (value) => change({ ...own, [name]: value }));
    const note = element("div", { class: "ak-note", id: `ak-${Math.random().toString(36).slice(2)}` }, `Moves: ${limits[name]}.`);
    box.select.setAttribute("aria-describedby", note.id);
    return [name, { ...box, root: element("div", {}, box.row, note) }];
  }));
  const [shared, registers] = [meter("Shared memory of a block"), meter("Registers of a computing thread")];
  const go = control("button", { class: "ak-race-go", type: "button", onclick: () => race(true) }, "Race it");
  const again = control("button", { class: "ak-race-again", type: "button", onclick: () => change({ ...start }) }, "Begin at step 1");
  const kept = element("span", { class: "ak-race-score" });
  const reset = control("button", { class: "ak-race-reset", type: "button", onclick: () => {
    score.reset();
    redraw();
  } }, "Reset the score");
  const worth = element("ul", {});
  const root = element("div", { class: "ak-widget", "data-widget": "race" },
    element("div", { class: "ak-row" }, steps.prev, steps.next, steps.row),
    element("div", { class: "ak-race-choices" }, ...Object.values(boxes).map((box) => box.root)),
    element("div", { class: "ak-meters" }, shared.root, registers.root),
    element("div", { class: "ak-row" }, go, again),
    status, canvas,
    element("div", { class: "ak-row" }, kept, reset),
    element("details", { class: "ak-parts" }, control("summary", {}, "What single choices cost here, in place of the record's (this tells the answer)"), worth));
  el.append(root);

  function change(changed) {
    own = changed;
    redraw();
  }

  // The choices that differ from the last try here, or from the start, in words.
  function choicesMade() {
    const before = raced?.place === model.get("step") ? raced.choices : start;
    const changed = Object.keys(choices).filter((name) => own[name] !== before[name]);
    return changed.length ? `Now ${changed.map((name) => `${titles[name]}: ${choices[name][own[name]]}`).join("; ")}. Race it.` : "Choose, then race it.";
  }

  const isRaced = () => raced?.place === model.get("step") && nameOf(figures, raced.choices) === nameOf(figures, own);

  // What has changed since the last try on the same problem, which limit that moves, and what came of it.
  function since(before, found) {
    if (before?.place !== model.get("step")) return "";
    const changed = Object.keys(choices).filter((name) => before.choices[name] !== own[name]);
    if (changed.length !== 1) return changed.length ? ` ${changed.length} choices have changed since the try before: change one to see what it is worth.` : "";
    const [name] = changed;
    const moved = before.found.ratio && found.ratio ? `, and the speed by ${number(100 * (found.ratio / before.found.ratio - 1), 1)} %` : "";
    return ` Since the try before you changed “${titles[name]}”. It moves ${limits[name]}${moved}.`;
  }

  function race(counts) {
    if (isRaced()) return;
    const place = model.get("step");
    const found = answer(figures, place, own);
    const title = titleOf(problems[place]);
    const record = problems[place].measured[problems[place].record].ratio;
    let said = found.text + since(raced, found);
    if (counts) {
      const { tries, best } = score.get();
      const better = found.kind === "measured" && found.ratio > (best[title] ?? 0);
      score.set({ tries: tries + 1, best: better ? { ...best, [title]: found.ratio } : best });
      if (better && best[title]) said += " Your best so far.";
    }
    if (found.kind === "measured" && found.ratio >= record * (1 - figures.noise)) said += " You have reached the record.";
    else if (found.kind === "measured" && found.ratio > 1) said += " You are past cuDNN.";
    else if (found.kind === "model") said += " A model sets no record.";
    raced = { place, choices: { ...own }, found, said };
    redraw();
  }

  function redraw() {
    const place = model.get("step");
    const problem = problems[place];
    const [need, title] = [resources(problem, settled(problem, own)), titleOf(problem)];
    const { tries, best } = score.get();
    const record = problem.measured[problem.record];
    const now = isRaced() ? raced : null;
    const rows = [
      { name: "FLASH", ratio: problem.flash / problem.cudnn, words: twoDecimals(problem.flash / problem.cudnn), colour: COLOURS.S },
      { name: "cuDNN", ratio: 1, words: `1.00: ${Math.round(problem.cudnn)} TFLOP/s`, colour: COLOURS.S },
      { name: "the record", ratio: record.ratio, words: `${twoDecimals(record.ratio)}: chapter 07`, colour: COLOURS.Q },
      { name: "your best here", ratio: best[title] ?? 0, words: best[title] ? twoDecimals(best[title]) : "none yet", colour: COLOURS.V },
      { name: "this kernel", ratio: now?.found.ratio ?? 0, colour: COLOURS.pick, model: now?.found.kind === "model",
        words: !now ? "not raced yet" : now.found.ratio ? `${twoDecimals(now.found.ratio)}: ${now.found.kind}` : "does not fit" },
    ];
    const width = widthOf(root);
    draw(prepare(canvas, width, BARS.top + rows.length * (BARS.high + BARS.gap)), themeOf(root), width, rows);
    for (const [name, { select }] of Object.entries(boxes)) select.value = own[name];
    shared.show(need.shared, SHARED_LIMIT, `${kib(need.shared)} of ${kib(SHARED_LIMIT)}`);
    registers.show(need.needed, need.registers, `about ${need.needed} of ${need.registers}`);
    enable(reset, !score.isNothing());
    worth.replaceChildren(...worthOf(figures, problem));
    steps.input.value = place;
    steps.text.textContent = title;
    status.textContent = now ? now.said
      : `${title}: cuDNN ${Math.round(problem.cudnn)} TFLOP/s, the record ${twoDecimals(record.ratio)} times as fast. ${choicesMade()}`;
    kept.textContent = `Tries: ${tries}. Best here: ${best[title] ? `${twoDecimals(best[title])} of ${twoDecimals(record.ratio)}` : "none yet"}.`;
    canvas.setAttribute("aria-label", `${title}, times as fast as cuDNN. ${rows.map((row) => `${row.name} ${row.words}`).join("; ")}.`);
    address.note();
  }

  const read = () => ({ problem: model.get("step"), kernel: nameOf(figures, own), raced: isRaced() ? "yes" : "no" });
  const address = keepInAddress(model, root, read, (texts) => {
    const values = (texts.kernel ?? "").split(".");
    Object.keys(choices).forEach((name, n) => { own[name] = oneOf(values[n], Object.keys(choices[name]), own[name]); });
    setStep(model, wholeNumber(texts.problem, [0, problems.length - 1], model.get("step")));
    raced = null;
    if (texts.raced === "yes") race(false); // somebody else's try
    redraw();
  });
  const stop = keepDrawn(model, root, redraw);
  return () => {
    address.forget();
    stop();
  };
}

export default { render };
