// address.js — the state of a widget in the address of a page that it is alone on, without Python.

const REST = 300; // milliseconds without a change: then the state is written, as one step of the browser's history
const DRAWN = 5000; // milliseconds after which a page that has loaded does not grow any more

// The states in the address: #name=key:value,key:value&name=…, as { name: { key: value } }. An anchor has none.
export function statesIn(hash) {
  const parts = hash.replace(/^#/, "").split("&").filter((part) => /=.*:/.test(part));
  const read = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return ""; // somebody has cut the address in two
    }
  };
  return Object.fromEntries(parts.map((part) => {
    const [name, text] = [part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)];
    const pairs = text.split(",").filter((pair) => pair.includes(":"));
    return [name, Object.fromEntries(pairs.map((pair) => pair.split(":", 2).map(read)))];
  }));
}

export function addressOf(states) {
  const text = (state) => Object.entries(state).map(([key, value]) => `${key}:${encodeURIComponent(value)}`).join(",");
  return Object.entries(states).map(([name, state]) => `${name}=${text(state)}`).join("&");
}

// A number in an address: a whole one from low to high in steps, or `otherwise`.
function wholeNumber(text, [low, high, step = 1], otherwise) {
  const value = /^-?\d{1,9}$/.test(text ?? "") ? Number(text) : NaN;
  return value >= low && value <= high && (value - low) % step === 0 ? value : otherwise;
}

const oneOf = (text, options, otherwise) => options.find((option) => `${option}` === text) ?? otherwise;

// When the page is there, with its formulas.
async function whenLaidOut() {
  if (document.readyState !== "complete") await new Promise((done) => { window.addEventListener("load", done, { once: true }); });
  await window.MathJax?.startup?.promise;
}

// Brings a widget to the top of the window, again where others of the page are drawn later, until the reader does something.
async function leadTo(root) {
  await whenLaidOut();
  const growth = new ResizeObserver(() => root.scrollIntoView({ block: "start" }));
  const stop = () => growth.disconnect();
  for (const deed of ["wheel", "touchstart", "pointerdown", "keydown"]) window.addEventListener(deed, stop, { once: true, capture: true });
  setTimeout(stop, DRAWN);
  growth.observe(document.body); // calls it once now
}

// Keeps what a widget shows in the address of the page where it stands alone, so that a link shows the same and the
// browser's buttons go back and forth. read() gives the state, values by their keys; write(texts) shows what an address
// says, texts by keys, of which any may be missing or wrong. The step is noted by itself; call `note` after each other
// change, `forget` at the end. Of several widgets with one script each has a name of its own: planner, planner-2, ….
function keepInAddress(model, root, read, write) {
  if (!model.get("alone")) return { note() {}, forget() {} };
  const box = root.closest("[data-widget-script]");
  const place = [...document.querySelectorAll(`[data-widget-script="${box?.dataset.widgetScript}"]`)].indexOf(box);
  const name = place > 0 ? `${root.dataset.widget}-${place + 1}` : root.dataset.widget;
  const textOf = (state) => addressOf({ [name]: state });
  // What the address says of all widgets, or said before an anchor was followed. Each script has its own copy of this file.
  const page = document.documentElement.dataset;
  const said = () => page.widgetStates ?? (location.hash.includes("=") ? location.hash : "");
  const stateIn = (hash) => statesIn(hash)[name];
  const start = read();
  let [shown, timer] = [textOf(start), null];

  function show(state) {
    write(Object.fromEntries(Object.entries({ ...start, ...state }).map(([key, value]) => [key, `${value}`])));
    shown = textOf(read());
    clearTimeout(timer); // the present state comes from the address
  }
  function keep() {
    if (history.state?.widgets === undefined) history.replaceState({ ...history.state, widgets: said() }, "");
    const states = statesIn(said());
    delete states[name];
    if (shown !== textOf(start)) states[name] = read();
    const hash = Object.keys(states).length ? `#${addressOf(states)}` : "";
    page.widgetStates = hash;
    history.pushState({ widgets: hash }, "", hash || location.pathname + location.search);
  }
  // An anchor that is followed says nothing of widgets; to go back to the page as it was opened does.
  function moved(event) {
    const hash = event.state?.widgets ?? (location.hash.includes("=") ? location.hash : null);
    if (hash === null) return;
    page.widgetStates = hash;
    show(stateIn(hash) ?? {});
  }
  const first = stateIn(location.hash);
  if (first) {
    queueMicrotask(() => show(first)); // when the widget has been drawn once
    const [leading = name] = Object.keys(statesIn(location.hash));
    if (leading === name) leadTo(root);
  }
  function note() {
    if (textOf(read()) === shown) return;
    shown = textOf(read());
    clearTimeout(timer);
    timer = setTimeout(keep, REST);
  }
  window.addEventListener("popstate", moved);
  model.on("change:step", note);
  return {
    note,
    forget() {
      clearTimeout(timer);
      window.removeEventListener("popstate", moved);
      model.off("change:step", note);
    },
  };
}
