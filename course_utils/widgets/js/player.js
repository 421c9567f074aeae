// player.js — a recorded launch, step by step: source, memory, the lanes of a warp, and where a number came from.
// with address.js
// with player/cells.js
// with player/flights.js
// with player/inputs.js
// with player/lane.js
// with player/memory.js
// with player/numbers.js
// with player/recording.js
// with player/source.js
// with player/timeline.js
// with player/trace.js
// with player/view.js
// with player/words.js

const START = {
  warp: 0, lane: 0, cell: null, array: 0, colour: "value", figures: false, byBank: false, file: null,
  quantity: null, element: 0, finding: -1, other: -1, writes: null, looksAtCell: false, holdsWindow: false,
  followsArray: true, followsWarp: true, followsFile: true, short: false, intoView: false, reported: false,
};
const MANY_CHANGES = 200000; // of local variables: unpacking as many takes longer than a picture
const LESS_MOTION = matchMedia("(prefers-reduced-motion: reduce)");
const TALL = { wide: 340, phone: 260, short: 225, shortPhone: 132 }; // pixels of the picture of memory, at most

// What the address of a page says of a player, texts of which any may be missing or wrong: step, warp, chosen cell
// ("array+offset"), lane, colouring, "32" banks a row, and the array that does not follow the step. view: as the player
// opens, which stays where the address says nothing. Returns what they change.
export function fromAddress(rec, { step, warp, cell, lane, colour, banks, array }, view) {
  const found = {
    step: wholeNumber(step, [0, rec.count - 1], view.step), cell: null, followsArray: view.followsArray,
    lane: wholeNumber(lane, [0, 31], view.lane), colour: oneOf(colour, Object.keys(COLOURINGS), view.colour),
    byBank: banks === undefined ? view.byBank : banks === "32",
    ...(view.followsArray ? {} : { array: view.array }),
  };
  const seen = wholeNumber(warp, [0, rec.meta.warps - 1], null);
  if (seen !== null) Object.assign(found, { warp: seen, followsWarp: seen === rec.steps.warp[found.step] });
  const shown = rec.arrays.find(({ name }) => name === array);
  if (shown) Object.assign(found, { array: shown.number, followsArray: false });
  const [, name, offset] = cell?.match(/^(.+)[+ ](\d+)$/) ?? []; // an address may have a space for a plus
  const within = (one) => Number(offset) - (one.name === name ? 0 : one.begin);
  const holder = rec.arrays.find((one) => [one.name, one.part_of].includes(name) && within(one) >= 0 && within(one) < wholeBytes(one));
  if (holder) {
    const { size } = NUMBERS[typeIn(holder, view)]; // a number has one address: that of its first byte
    const at = within(holder);
    Object.assign(found, { cell: { array: holder.number, offset: at - (at % size) }, array: holder.number, looksAtCell: true });
  }
  return found;
}

// usual: the view as the player opens; how it looks is said only where it is another.
export function toAddress(rec, view, usual = view) {
  const looks = ({ lane, colour, byBank, followsArray, array }) => ({ lane, colour, banks: byBank ? 32 : "", array: followsArray ? "" : rec.arrays[array].name });
  const { step, warp, cell } = view;
  const before = looks(usual);
  return {
    step, warp, cell: cell ? `${rec.arrays[cell.array].name}+${cell.offset}` : "",
    ...Object.fromEntries(Object.entries(looks(view)).filter(([name, value]) => value !== before[name])),
  };
}

async function render({ model, el }) {
  const root = element("div", { class: "ak-widget", "data-widget": "player" },
    element("div", { class: "ak-status", "aria-live": "polite" }, "The recording is being unpacked."));
  el.append(root);
  const rec = await loadRecording(model.get("meta"), model.get("data"));
  if (rec.meta.columns.at(-1).count < MANY_CHANGES) await rec.whole; // else the page would be drawn twice
  return showPlayer(rec, model, root);
}

function showPlayer(rec, model, root) {
  const stops = findingStops(rec);
  const view = { ...START, type: typeOfFloats(rec), ...rec.meta.start, step: model.get("step") };
  const opening = rec.findings[view.finding];
  if (opening) Object.assign(view, { step: opening.step, other: opening.other_step });
  if (opening) setStep(model, view.step);
  const act = {
    go(step) { if (step >= 0 && step < rec.count && step !== model.get("step")) setStep(model, step); },
    set({ step, ...change }) {
      Object.assign(view, change);
      if ("cell" in change) view.writes = writesOfCell(rec, view);
      if (step !== undefined && step !== model.get("step")) act.go(step);
      else redraw();
    },
    toLine(file, line) {
      const warp = rec.steps.warp[view.step];
      const of = (way) => otherOfLine(rec, file, line, view.step, way);
      const next = [{ warp }, { warp, backwards: true }, {}, { backwards: true }].map(of).find((step) => step >= 0);
      if (next !== undefined) act.go(next);
      else status.textContent = `No step of this block lies in line ${line} of ${file.split("/").at(-1)}.`;
    },
    finding(finding, step) {
      const stop = stops.find((one) => one.finding === finding && one.step === step);
      act.set({ finding, other: stop.other, step });
    },
  };
  const size = () => (view.cell ? NUMBERS[typeIn(rec.arrays[view.cell.array], view)].size : 0);
  const jumps = jumpsOf(rec, view, stops, size);
  const controls = stepper("step", rec.count - 1, act.go);
  const play = playButton((on) => status.setAttribute("aria-live", on ? "off" : "polite"), () => view.step < rec.count - 1 && (act.go(view.step + 1), true));
  const buttons = jumps.map((jump) => jumpButtons(jump, (backwards) => act.set(jump.to(backwards) ?? {})));
  const line = control("input", { type: "number", min: 1, class: "ak-line-input", onkeydown: (event) => {
    if (event.key === "Enter") act.toLine(source.file(), Number(line.value));
  } });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const timeline = timelinePanel(rec, act, view.short);
  const source = sourcePanel(rec, act, view.short);
  const memory = memoryPanel(rec, act, view.short);
  const lane = lanePanel(rec, act);
  const trace = tracePanel(rec, act, memory.valueWords);
  const findings = findingsPanel(rec, act);
  const flights = flightsPanel(rec, act, view.short);
  const { kernel, block, grid, index, threads, warps } = rec.meta;
  const keys = element("div", { class: "ak-note ak-keys" }, ...keysInWords(jumps));
  // Between the paragraphs of a chapter what a reader may want stands folded below what the paragraphs are about.
  root.classList.toggle("ak-short", Boolean(view.short));
  root.classList.toggle("ak-reported", Boolean(view.reported)); // what the findings say stands above the player
  const which = `(${index.join(", ")})`;
  const sizeOfLaunch = `of a grid of ${grid.join(" × ")}, ${block.join(" × ")} threads`;
  const folds = () => element("div", { class: "ak-folds" },
    fold("The lanes of a warp", lane.node),
    fold("Keys", keys),
    fold("Launch and colours", element("div", { class: "ak-launch" }, element("div", { class: "ak-note" }, `Block ${which} ${sizeOfLaunch}.`), timeline.legend())));
  root.replaceChildren(
    element("div", { class: "ak-player-title" }, element("span", { class: "ak-title" }, kernel),
      element("span", { class: "ak-note" }, `${plural(warps, "warp")}, ${plural(rec.count, "step")}`,
        element("span", { class: index.some(Boolean) ? "" : "ak-of-launch" }, `, block ${which}`), element("span", { class: "ak-of-launch" }, ` ${sizeOfLaunch}`))),
    ...(rec.meta.failure ? [element("div", { class: "ak-player-failure" }, `The launch stopped ${whyItStopped(rec)}`)] : []),
    timeline.node,
    element("div", { class: "ak-row ak-transport" }, controls.prev, controls.next, play.node, controls.row),
    element("div", { class: "ak-row ak-jumps" }, ...buttons.map(({ node }) => node), element("label", {}, "to line", line)),
    status, findings.node,
    element("div", { class: "ak-player-panels" }, source.node, memory.node,
      element("div", { class: "ak-player-side" }, ...(view.short ? [trace.node, flights.node, folds()] : [lane.node, trace.node, flights.node]))),
    ...(view.short ? [] : [keys]));

  let address = null; // keeps step, warp and cell, once all is drawn
  let page = null; // sizes and colours, which a step does not change
  function measure() {
    source.measure();
    page = {
      width: Math.max(root.clientWidth - 8, 200),
      room: Math.max(memory.node.clientWidth, 200),
      tall: TALL[root.clientWidth < 700 ? (view.short ? "shortPhone" : "phone") : view.short ? "short" : "wide"],
      theme: coloursOf(root),
    };
  }

  function redraw() {
    const step = Math.min(Math.max(model.get("step"), 0), rec.count - 1); // Python may set any number
    const moved = step !== view.step;
    view.step = step;
    if (moved) {
      Object.assign(view, { looksAtCell: false, holdsWindow: false });
      if (!stops.some((one) => one.step === step && one.finding === view.finding)) view.finding = -1;
    }
    if (view.finding < 0) view.other = hazardsOf(rec, step)[0]?.other ?? -1;
    if (view.followsWarp && rec.steps.warp[step] >= 0) view.warp = rec.steps.warp[step];
    if (view.followsArray && !view.looksAtCell) view.array = arrayAt(rec, step) ?? view.array;
    if (!moved || !page) measure();
    const { theme } = page;
    timeline.draw(view, theme, page.width);
    source.draw(view);
    memory.draw(view, theme, page.room, page.tall);
    lane.draw(view);
    trace.draw(view);
    findings.draw(view);
    flights.draw(view);
    controls.input.value = step;
    controls.text.textContent = `${bytes(step)} of ${bytes(rec.count - 1)}`;
    enable(controls.prev, step > 0);
    enable(controls.next, step < rec.count - 1);
    buttons.forEach(({ draw }) => draw());
    status.textContent = describeStep(rec, view);
    status.classList.toggle("ak-alarmed", status.textContent.includes("Hazard"));
    address?.note();
  }

  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("select, input:not(.ak-step)")) return;
    const change = keyed(event, { rec, view, jumps, play });
    if (!change) return;
    event.preventDefault();
    event.stopPropagation();
    act.set(change);
  });
  view.writes = writesOfCell(rec, view);
  const end = keepDrawn(model, root, redraw);
  const usual = { ...view };
  address = keepInAddress(model, root, () => toAddress(rec, view, usual), (texts) => {
    const change = fromAddress(rec, texts, usual);
    view.step = change.step; // no step is taken: that would turn to what it touches, away from the chosen cell
    act.set(change);
  });
  if (rec.meta.start?.intoView) {
    root.scrollIntoView({ block: "start" }); // a button has opened it, perhaps far above
    rec.meta.start.intoView = false; // and no other view of it moves the page
  }
  if (!rec.isWhole) rec.whole.then(redraw);
  setTimeout(async () => {
    if (!await findHazards(rec)) return;
    keys.replaceChildren(...keysInWords(jumps));
    redraw();
  });
  return () => {
    play.stop();
    address.forget();
    end();
  };
}

// What memcheck found at the last step stopped the launch, and names the first element that is not there; the failure
// names the first page that is not, which another thread may touch.
function whyItStopped(rec) {
  const isFound = rec.findings.some(({ tool, step }) => tool === "memcheck" && step === rec.count - 1);
  return isFound ? "at its last step: the finding of memcheck says why." : `here: ${rec.meta.failure}`;
}

// All steps that write the chosen cell, for the timeline.
function writesOfCell(rec, view) {
  if (!view.cell) return null;
  const found = [];
  const size = NUMBERS[typeIn(rec.arrays[view.cell.array], view)].size;
  for (let at = -1; found.length < 2000;) {
    at = otherWrite(rec, view.cell.array, view.cell.offset, size, at);
    if (at < 0) break;
    found.push(at);
  }
  return found;
}

// The ways to jump: name, key, and to(backwards), which gives what changes, or null where there is nothing to jump to.
// isThere(): whether the recording has what it leads to, if it may have none. isIdle(): whether it leads nowhere until the
// reader has chosen something.
function jumpsOf(rec, view, stops, size) {
  const to = (step) => (step >= 0 ? { step } : null);
  return [
    { name: "this warp", key: "⇧ ← →", to: (backwards) => to(otherOfWarp(rec, rec.steps.warp[view.step], view.step, backwards)) },
    { name: "barrier", key: "b", to: (backwards) => to(otherBarrier(rec, view.step, backwards)) },
    {
      name: "this line", key: "l",
      to(backwards) {
        const place = placeOf(rec, view.step);
        return place && to(otherOfLine(rec, place.file, place.line, view.step, { backwards, warp: rec.steps.warp[view.step] }));
      },
    },
    {
      name: "write of the cell", key: "w", isIdle: () => !view.cell,
      to: (backwards) => view.cell && to(otherWrite(rec, view.cell.array, view.cell.offset, size(), view.step, backwards)),
    },
    ...(stops.length ? [{
      name: "finding", key: "f",
      to(backwards) {
        const stop = backwards ? stops.findLast((one) => one.step < view.step) : stops.find((one) => one.step > view.step);
        return stop ?? null;
      },
    }] : []),
    { name: "hazard", key: "h", isThere: () => rec.hazards?.step.length > 0, to: (backwards) => to(otherHazard(rec, view.step, backwards)) },
  ];
}

// What a key changes; null if it is none of ours.
function keyed(event, { rec, view, jumps, play }) {
  const by = (name, backwards) => jumps.find((jump) => jump.name === name).to(backwards) ?? {};
  const back = event.shiftKey;
  switch (event.key) {
    case "ArrowRight": return back ? by("this warp", false) : { step: Math.min(view.step + 1, rec.count - 1) };
    case "ArrowLeft": return back ? by("this warp", true) : { step: Math.max(view.step - 1, 0) };
    case "Home": return { step: 0 };
    case "End": return { step: rec.count - 1 };
    case "p": return play.toggle(), {};
    default: {
      const jump = jumps.find(({ key, isThere }) => key === event.key.toLowerCase() && (isThere?.() ?? true));
      return jump ? jump.to(back) ?? {} : null;
    }
  }
}

function keysInWords(jumps) {
  const there = jumps.filter(({ isThere }) => isThere?.() ?? true);
  const keys = [["← →", "a step"], ...there.map(({ name, key }) => [key, name]), ...(LESS_MOTION.matches ? [] : [["p", "play"]])];
  return [...keys.map(([key, name]) => element("span", {}, element("kbd", {}, key), ` ${name}`)), element("span", {}, "with ", element("kbd", {}, "⇧"), " backwards")];
}

const STEPS_A_SECOND = 8;

// Steps by itself until it is stopped, or advance() says that there is no more. change(on) is called when it starts and
// when it stops: nobody can listen to eight sentences a second.
function playButton(change, advance) {
  let timer = null;
  const node = control("button", { type: "button", class: "ak-play", "aria-pressed": "false", onclick: () => toggle() }, "Play");
  function show() {
    node.textContent = timer ? "Pause" : "Play";
    node.setAttribute("aria-pressed", timer !== null);
    change(timer !== null);
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    show();
  }
  // Who asks for less motion steps: nothing plays by itself.
  const heed = () => {
    node.hidden = LESS_MOTION.matches;
    if (timer && LESS_MOTION.matches) stop();
  };
  LESS_MOTION.addEventListener("change", heed);
  heed();
  function toggle() {
    if (timer) return stop();
    if (LESS_MOTION.matches) return;
    timer = setInterval(() => advance() || stop(), 1000 / STEPS_A_SECOND);
    show();
  }
  return { node, toggle, stop };
}

export default { render };
