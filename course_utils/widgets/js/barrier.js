// barrier.js — find the missing barrier: a recorded kernel has lost one; the learner steps, and marks the place. The
// player's parts show the recording.
// with address.js
// with score.js
// with player/numbers.js
// with player/recording.js
// with player/view.js
// with player/words.js
// with player/source.js
// with player/timeline.js
// with player/cells.js
// with player/memory.js
// with playing/view.js
// with playing/touches.js

// What races, by its kind; a and b are the two lines, x and y their steps.
const RACES = {
  "read after write": ({ a, b, array, x, y }) => `${a} writes ${array} at step ${x}, and ${b} reads it in another thread at step ${y}`,
  "write after read": ({ a, b, array, x, y }) => `${a} reads ${array} at step ${x}, and ${b} writes over it in another thread at step ${y}`,
  "write after write": ({ a, b, array, x, y }) => `${a} and ${b} write the same bytes of ${array} in different threads, at steps ${x} and ${y}`,
  "read before copy": ({ a, b, array, x, y }) => `${b} reads ${array} at step ${y}, and the copy that ${a} began at step ${x} has not come`,
};
const HANDS = {
  "read after write": ({ line, array, then_line }) => `line ${line} writes ${array}, and line ${then_line} reads it`,
  "write after read": ({ line, array, then_line }) => `line ${line} reads ${array}, and line ${then_line} writes over it`,
  "write after write": ({ line, array, then_line }) => `line ${line} writes ${array}, and line ${then_line} writes it again`,
};
const NOTHING = { solved: [], tries: 0, steps: 0 }; // the score

function raced(race) {
  const words = RACES[race.kind]({ a: race.at, b: race.then_at, array: race.array, x: bytes(race.first), y: bytes(race.then) });
  return words[0].toUpperCase() + words.slice(1);
}

// The verdict on a mark: the barrier is missing after line `place` of the kernel. kind: "right", "close" (the race passes
// this place, too), "ordered", "nothing" or "outside"; text, in words; steps: those that the text names.
export function judge(level, place) {
  const { race, lines: [first, last] } = level;
  if (level.places.includes(place)) {
    const own = place === level.place ? "" : ` In the course ${level.barrier} stands after line ${level.place}.`;
    return { kind: "right", text: `Right. ${raced(race)}, with nothing between.${own} ${level.lesson}`, steps: [race.first, race.then] };
  }
  if (place < first - 1 || place > last) {
    return { kind: "outside", text: `Not here: the lines in which this block does something are ${first} to ${last}.`, steps: [] };
  }
  if (race.above <= place && place < race.below) {
    return { kind: "close", text: "Close: what races passes this place, too. But here not all threads would wait, or not each time.", steps: [] };
  }
  const passing = level.handed.filter(({ above, below }) => above <= place && place < below);
  const [nearest] = passing.sort((a, b) => a.below - a.above - (b.below - b.above) || a.first - b.first);
  if (!nearest) {
    const text = "Not here: no line above this place hands shared memory to a line below it. See which line writes what " +
      "another thread reads, and the other way round.";
    return { kind: "nothing", text, steps: [] };
  }
  const text = `Not here: ${HANDS[nearest.kind](nearest)}, but in this order: the barrier in line ${nearest.by_line} comes ` +
    `between (step ${bytes(nearest.by)}).`;
  return { kind: "ordered", text, steps: [nearest.first, nearest.by, nearest.then] };
}

async function render({ model, el }) {
  const { levels } = model.get("meta");
  const data = model.get("data");
  const score = keptHere("barrier", NOTHING);
  let [number, game, opening] = [0, null, 0]; // of the level; the level on the page; how often one was opened

  const choices = levels.map((_, n) => control("button", { type: "button", onclick: () => open(n) }));
  const title = element("div", { class: "ak-title" });
  const task = element("div", {});
  const box = element("div", { class: "ak-barrier-level" }, element("div", { class: "ak-status", "aria-live": "polite" }, "The recording is being unpacked."));
  const kept = element("span", { class: "ak-barrier-score" });
  const reset = control("button", { type: "button", class: "ak-barrier-reset", onclick: () => {
    score.reset();
    redraw();
  } }, "Reset the score");
  const root = element("div", { class: "ak-widget", "data-widget": "barrier" },
    element("div", { class: "ak-barrier-levels", role: "group", "aria-label": "level" }, element("span", {}, "Level"), ...choices),
    element("div", {}, title, task), box, element("div", { class: "ak-row" }, kept, reset));
  el.append(root);

  const count = {
    step() { score.set({ ...score.get(), steps: score.get().steps + 1 }); },
    mark(kind) {
      const { solved, tries } = score.get();
      const { name } = levels[number];
      if (!solved.includes(name)) score.set({ ...score.get(), tries: tries + 1, solved: kind === "right" ? [...solved, name] : solved });
    },
  };

  async function open(n, step = 0, line = null) {
    const mine = ++opening;
    number = n;
    const from = levels.slice(0, n).reduce((sum, level) => sum + level.bytes, 0);
    game = null;
    const hadFocus = box.matches(":focus-within"); // “Next level” goes with its level
    box.inert = true; // what is left of the former level: else the keys could be on what goes away
    if (hadFocus) choices[n].focus();
    redraw();
    const rec = await unpacked(levels[n].recording, data, from, levels[n].bytes);
    if (mine !== opening) return; // another level has been opened since
    setStep(model, Math.min(step, rec.count - 1));
    game = playLevel(rec, levels[n], model, count, redraw, line, n + 1 < levels.length ? () => open(n + 1) : null);
    box.replaceChildren(...game.nodes);
    box.inert = false;
    redraw();
  }

  function redraw() {
    const { solved, tries, steps: taken } = score.get();
    const level = levels[number];
    enable(reset, !score.isNothing());
    choices.forEach((choice, n) => {
      const isSolved = solved.includes(levels[n].name);
      choice.textContent = `${n + 1}${isSolved ? " ✓" : ""}`;
      choice.setAttribute("aria-label", `level ${n + 1}, ${levels[n].title}${isSolved ? ", solved" : ""}`);
      choice.setAttribute("aria-pressed", n === number);
    });
    title.textContent = `${number + 1}. ${level.title}`;
    task.textContent = `${level.task} One ${level.sort} is missing: where?`;
    kept.textContent = `Solved: ${solved.length} of ${levels.length}. Tries: ${tries}. Steps: ${bytes(taken)}.`;
    if (game) {
      game.draw(root);
      address.note();
    }
  }

  const read = () => ({ level: number, step: game ? model.get("step") : 0, line: game?.line() ?? 0 });
  const address = keepInAddress(model, root, read, (texts) => {
    const [level, line] = [wholeNumber(texts.level, [0, levels.length - 1], number), wholeNumber(texts.line, [1, 100000], null)];
    open(level, wholeNumber(texts.step, [0, 10000000], 0), line);
  });
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("select, input")) return;
    if (game?.key(event)) event.preventDefault();
  });
  await open(0);
  const stop = keepDrawn(model, root, redraw);
  return () => {
    address.forget();
    stop();
  };
}

// One level on the page: { nodes, draw(root), key(event), line() }. line: the one that is chosen at first, or null; next()
// opens the next level, null after the last.
function playLevel(rec, level, model, count, redraw, line, next) {
  const view = newView(rec);
  view.step = model.get("step");
  const { file } = rec.meta;
  let chosen = line; // the line of the kernel that is chosen
  let marked = null; // the last mark: its place and what was said
  const go = (step) => {
    if (step < 0 || step >= rec.count || step === model.get("step")) return;
    count.step();
    setStep(model, step);
  };
  const act = {
    go,
    toLine() {}, // a click on a line chooses it
    set({ step, ...change }) {
      Object.assign(view, change);
      if (step === undefined) redraw();
      else go(step);
    },
  };
  const controls = stepper("step", rec.count - 1, go);
  const timeline = timelinePanel(rec, act);
  const source = sourcePanel(rec, act);
  const memory = memoryPanel(rec, act);
  const touches = touchesPanel(rec, act);
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const text = source.node.querySelector(".ak-source");

  // ---- the marks
  const words = element("div", { class: "ak-barrier-line" });
  // Two buttons with a name between them; to(backwards) is the step that they go to, -1 where there is none.
  const jumpPair = (name, to) => jumpButtons({ name, to: (backwards) => to(backwards) >= 0 }, (backwards) => go(to(backwards)));

  const button = (name, press) => control("button", { type: "button", onclick: press }, name);
  const [before, after] = [button("Missing before it", () => mark(chosen - 1)), button("Missing after it", () => mark(chosen))];
  const steps = jumpPair("steps of the line", (backwards) => (chosen ? otherOfLine(rec, file, chosen, view.step, { backwards }) : -1));
  const hint = button("Hint", () => {
    const array = rec.arrays.find(({ name }) => name === level.race.array).number;
    say(`Hint: what races is in ${level.race.array}. A cell of it is chosen now: read who touches it, in order.`);
    act.set({ array, cell: { array, offset: level.race.offset }, looksAtCell: true });
  });
  const answer = element("div", { class: "ak-barrier-answer", "aria-live": "polite" });
  [before, after].forEach((one) => one.classList.add("ak-barrier-mark"));
  text.setAttribute("aria-label", `${text.getAttribute("aria-label") ?? "Source"}. Up and down choose a line.`);

  function choose(number) {
    const last = linesOf().length;
    if (!last) return;
    chosen = Math.min(Math.max(number, 1), last);
    if (view.file !== file && shownFile() !== file) Object.assign(view, { file, followsFile: false });
    redraw();
    const [at, height] = [linesOf()[chosen - 1].offsetTop, linesOf()[chosen - 1].offsetHeight];
    if (at < text.scrollTop || at + 2 * height > text.scrollTop + text.clientHeight) text.scrollTop = at - text.clientHeight / 3;
  }
  const linesOf = () => text.querySelectorAll(".ak-line");
  const shownFile = () => source.node.querySelector("select")?.value ?? file;

  function mark(place) {
    marked = { place, ...judge(level, place) };
    count.mark(marked.kind);
    say(marked.text, marked.steps, marked.kind === "right");
    if (marked.kind === "right" && next) answer.append(element("div", {}, button("Next level", next)));
    redraw();
  }

  function say(sentence, steps = [], right = false) {
    answer.classList.toggle("ak-barrier-right", right);
    const go = (step) => control("button", { type: "button", class: "ak-jump", onclick: () => act.go(step) }, `step ${bytes(step)}: ${deedOf(rec, step)}`);
    refill(answer, element("div", {}, sentence), ...(steps.length ? [element("div", { class: "ak-row" }, ...steps.map(go))] : []));
  }

  // In the capture phase, ahead of the panel's own listener on the line.
  text.addEventListener("click", (event) => {
    const hit = [...linesOf()].indexOf(event.target.closest(".ak-line"));
    if (hit < 0 || shownFile() !== file) return;
    event.stopPropagation();
    choose(hit + 1);
  }, true);
  text.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: -1, ArrowDown: 1 };
    if (!(event.key in moves) || shownFile() !== file) return;
    event.preventDefault();
    event.stopPropagation();
    choose((chosen ?? placeOf(rec, view.step)?.line ?? level.lines[0]) + (chosen ? moves[event.key] : 0));
  });

  function drawMarks() {
    const here = shownFile() === file;
    linesOf().forEach((one, n) => {
      const is = (condition) => here && condition;
      one.toggleAttribute("data-chosen", is(n + 1 === chosen));
      one.classList.toggle("ak-marked", is(marked !== null && n + 1 === marked.place));
      one.classList.toggle("ak-marked-right", is(marked?.kind === "right" && n + 1 === marked.place));
    });
    const found = chosen ? linesOf()[chosen - 1]?.querySelector(".ak-line-text")?.textContent.trim() : "";
    words.replaceChildren(...(chosen ? [element("b", {}, `Line ${chosen}`), " ", element("code", {}, here ? found : "")]
      : ["Choose a line of the source: the barrier is missing before it or after it."]));
    for (const one of [before, after]) one.disabled = !chosen;
    steps.draw();
  }

  const jumps = {
    "this warp": (backwards) => otherOfWarp(rec, rec.steps.warp[view.step], view.step, backwards),
    barrier: (backwards) => otherBarrier(rec, view.step, backwards),
    "write of the cell": (backwards) => (view.cell ? otherWrite(rec, view.cell.array, view.cell.offset, 1, view.step, backwards) : -1),
  };
  const pairs = Object.entries(jumps).map(([name, to]) => jumpPair(name, to));

  function draw(root) {
    const moved = view.step !== model.get("step");
    source.measure();
    view.step = Math.min(Math.max(model.get("step"), 0), rec.count - 1);
    if (moved) Object.assign(view, { looksAtCell: false, followsFile: true });
    if (view.followsArray && !view.looksAtCell) view.array = arrayAt(rec, view.step) ?? view.array;
    const colours = coloursOf(root);
    timeline.draw(view, colours, Math.max(root.clientWidth - 8, 200));
    source.draw(view);
    memory.draw(view, colours, Math.max(memory.node.clientWidth, 200), 220);
    touches.draw(view);
    drawMarks();
    controls.input.value = view.step;
    controls.text.textContent = `${bytes(view.step)} of ${bytes(rec.count - 1)}`;
    enable(controls.prev, view.step > 0);
    enable(controls.next, view.step < rec.count - 1);
    pairs.forEach((pair) => pair.draw());
    status.textContent = describeStep(rec, view);
    status.classList.toggle("ak-alarmed", status.textContent.includes("Hazard"));
  }

  // Whether a key was one of the game's.
  function key({ key: name, shiftKey }) {
    const to = {
      ArrowRight: () => (shiftKey ? jumps["this warp"](false) : view.step + 1),
      ArrowLeft: () => (shiftKey ? jumps["this warp"](true) : view.step - 1),
      b: () => jumps.barrier(false), B: () => jumps.barrier(true),
      w: () => jumps["write of the cell"](false), W: () => jumps["write of the cell"](true),
    }[name];
    if (to) go(to());
    return Boolean(to);
  }

  const nodes = [
    timeline.node,
    element("div", { class: "ak-row ak-transport" }, controls.prev, controls.next, controls.row),
    element("div", { class: "ak-row ak-jumps" }, ...pairs.map(({ node }) => node)),
    element("div", { class: "ak-barrier-now" }, status,
      element("div", { class: "ak-barrier-choice" }, words, element("div", { class: "ak-row" }, before, after, steps.node, hint))),
    answer,
    element("div", { class: "ak-player-panels" }, source.node, element("div", { class: "ak-barrier-column" }, memory.node, touches.node)),
  ];
  return { nodes, draw, key, line: () => chosen };
}

export default { render };
