// front.js — a small recorded kernel that steps by itself: its source, and the memory that the step touches. It waits
// where nobody sees it, and where the reader asks for less motion.
// with player/numbers.js
// with player/recording.js
// with player/view.js
// with player/words.js
// with player/source.js
// with player/timeline.js
// with player/cells.js
// with player/memory.js
// with playing/view.js

const A_STEP = 240; // milliseconds
const AT_THE_END = 12; // so many of them does the last step stay

async function render({ model, el }) {
  const { recording, words, first } = model.get("meta");
  const data = model.get("data");
  const rec = await unpacked(recording, data, 0, data.byteLength);
  const view = newView(rec);
  let [timer, waited, isSeen] = [null, 0, true];

  const act = { go: take, toLine() {}, set() {} }; // nothing is chosen here: the whole player is for that
  const source = sourcePanel(rec, act, true);
  const memory = memoryPanel(rec, act);
  const play = control("button", { type: "button", class: "ak-play", onclick: () => (timer ? rest() : run()) });
  const controls = stepper("step", rec.count - 1, take);
  const status = element("div", { class: "ak-status" });
  const root = element("div", { class: "ak-widget", "data-widget": "front" },
    element("div", { class: "ak-front-words" }, words),
    element("div", { class: "ak-front-panels" }, source.node, memory.node),
    status,
    element("div", { class: "ak-row" }, play, controls.prev, controls.next, controls.row));
  memory.node.querySelector("canvas").tabIndex = -1; // it takes no keys here
  el.append(root);
  source.node.querySelector(".ak-source").scrollTop = 0;

  // The reader moves it: it rests, and says its steps.
  function take(step) {
    rest();
    setStep(model, step);
  }
  function tick() {
    if (!isSeen || document.hidden) return;
    let next = model.get("step") + 1;
    while (next < rec.count && rec.steps.op[next] === rec.op.barrier) next++; // nothing to see until it opens
    if (next < rec.count) setStep(model, next);
    else if (++waited > AT_THE_END) {
      waited = 0;
      setStep(model, first);
    }
  }
  function run() {
    timer = setInterval(tick, A_STEP);
    status.removeAttribute("aria-live"); // else a screen reader would read out each step
    show();
  }
  function rest() {
    clearInterval(timer);
    timer = null;
    status.setAttribute("aria-live", "polite");
    show();
  }
  function show() {
    play.textContent = timer ? "❚❚ Pause" : "▶ Play";
  }

  function redraw() {
    source.measure();
    view.step = Math.min(Math.max(model.get("step"), 0), rec.count - 1);
    view.array = arrayAt(rec, view.step) ?? view.array;
    source.draw(view);
    memory.draw(view, coloursOf(root), Math.max(memory.node.clientWidth, 200), root.clientWidth < 700 ? 200 : 292);
    controls.input.value = view.step;
    controls.text.textContent = `${bytes(view.step)} of ${bytes(rec.count - 1)}`;
    status.textContent = describeStep(rec, view);
  }

  const sight = new IntersectionObserver(([entry]) => { isSeen = entry.isIntersecting; });
  sight.observe(root);
  const end = keepDrawn(model, root, redraw);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) rest();
  else run();
  return () => {
    rest();
    sight.disconnect();
    end();
  };
}

export default { render };
