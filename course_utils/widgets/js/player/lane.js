// lane.js — one lane's local variables, and one quantity in all 32 lanes of its warp: a fragment of registers.

const NOW = "now"; // the quantity that is not a variable: what the step reads or writes
const ofNumber = (number) => `variable ${number}`; // a name that is a number would come before NOW among the options

function lanePanel(rec, act) {
  const variables = rec.variables.list;
  const warp = select("warp", Object.fromEntries(Array.from({ length: rec.meta.warps }, (_, n) => [n, `${n}`])),
    (value) => act.set({ warp: Number(value), followsWarp: false }));
  const follows = check("follow the step", (followsWarp) => act.set({ followsWarp }));
  const quantity = select("in each lane", {
    [NOW]: "what it reads or writes now",
    ...Object.fromEntries(variables.map(({ name, number, function: of }) => [ofNumber(number), `${name}  (${shorten(of, 28)})`])),
  }, (value) => act.set({ quantity: value === NOW ? null : Number(value.split(" ")[1]), element: 0 }));
  const part = control("input", { type: "number", min: 0, value: 0, oninput: () => act.set({ element: Math.max(0, Number(part.value) || 0) }) });
  const partRow = element("label", {}, "element", part);
  const title = element("div", { class: "ak-note" });
  const lanes = Array.from({ length: 32 }, (_, lane) => {
    const value = element("b", {});
    const button = control("button", { type: "button", onclick: () => act.set({ lane }) }, element("span", {}, `${lane}`), value);
    return { button, value };
  });
  const grid = element("div", { class: "ak-lanes", role: "group", "aria-label": "lanes" }, ...lanes.map(({ button }) => button));
  const isAlone = (name) => variables.filter((one) => one.name === name).length === 1;
  const rowOf = ({ name, type, function: of, shape }) => {
    const [value, note] = [element("td", {}), element("td", {})];
    const size = shape.length ? `[${shape.join("][")}]` : "";
    return { row: element("tr", {}, element("th", { scope: "row", title: `${type} ${name}${size} in ${of}` }, `${name}${size}`, isAlone(name) ? "" : element("span", { class: "ak-note" }, ` ${shorten(of, 16)}`)), value, note), value, note };
  };
  const rows = variables.map(rowOf);
  const named = variables.map(rowOf); // the same once more, of those that the step's line names
  const here = element("tbody", {});
  const body = element("tbody", {}, ...rows.map(({ row }) => row));
  const heading = (words) => element("tr", { class: "ak-heading" }, element("th", { scope: "rowgroup", colspan: 3 }, words));
  let listed = ""; // which are in `here`
  const none = element("div", { class: "ak-note" });
  const table = element("div", { class: "ak-variables", tabindex: 0, role: "region", "aria-label": "local variables" },
    element("table", { class: "ak-table" },
      element("thead", {}, element("tr", {}, ...["variable", "value", "new at"].map((words) => element("th", { scope: "col" }, words)))),
      here, body));

  const SHOWN = 4; // elements of an array that its row shows
  const FEW = 8; // variables, of which a list of its own is not worth the room

  function draw(view) {
    const thread = 32 * view.warp + view.lane;
    const now = rec.steps.warp[view.step] === view.warp;
    const deeds = now ? new Map(lanesOf(rec, view.step).map((one) => [one.lane, one])) : new Map();
    title.textContent = `Lane ${view.lane} of warp ${view.warp} is thread ${threadIndex(rec, view.warp, view.lane)}.`;
    warp.input.value = view.warp;
    follows.input.checked = view.followsWarp;
    quantity.hide(!variables.length);
    quantity.input.value = view.quantity === null ? NOW : ofNumber(view.quantity);
    const chosen = view.quantity === null ? null : variables[view.quantity];
    partRow.hidden = !chosen || chosen.count === 1;
    if (chosen) part.max = chosen.count - 1;
    lanes.forEach(({ button, value }, lane) => {
      const there = 32 * view.warp + lane < rec.meta.threads;
      const changed = chosen ? changedNow(view, 32 * view.warp + lane) : deeds.has(lane);
      const words = there ? (chosen ? ofVariable(view, chosen, 32 * view.warp + lane) : ofAccess(view, deeds.get(lane))) || "·" : "";
      if (value.textContent !== words) value.textContent = words;
      button.disabled = !there;
      if (button.ariaPressed !== `${lane === view.lane}`) button.setAttribute("aria-pressed", lane === view.lane);
      button.classList.toggle("ak-changed", there && changed);
    });
    const inLine = now && variables.length > FEW ? namedAt(view.step) : [];
    if (listed !== inLine.join()) {
      listed = inLine.join();
      here.replaceChildren(...(listed ? [heading("in this line"), ...inLine.map((n) => named[n].row), heading("all")] : []));
    }
    for (const n of inLine) fill(view, thread, n, named[n]);
    const any = variables.map((_, n) => fill(view, thread, n, rows[n])).some(Boolean);
    none.textContent = !variables.length ? "The local variables were left out of this recording, or it has none."
      : rec.isWhole ? "No local variable of this lane has a value yet." : "The local variables are being unpacked.";
    none.hidden = any;
    table.hidden = !any;
  }

  // The variables whose names stand in the line of a step, a struct's members with it.
  function namedAt(step) {
    const place = placeOf(rec, step);
    const text = place ? rec.meta.sources[place.file].split("\n")[place.line - 1] : "";
    const words = new Set(text.match(/[A-Za-z_]\w*/g));
    return variables.filter(({ name }) => words.has(name.split(".")[0])).map(({ number }) => number);
  }

  // Writes what a variable holds into its row; returns whether it holds anything.
  function fill(view, thread, n, { row, value, note }) {
    const variable = variables[n];
    const held = Array.from({ length: Math.min(variable.count, SHOWN) }, (_, k) => variableAt(rec, thread, n, k, view.step));
    row.hidden = held.every((one) => one === null);
    if (row.hidden) return false;
    const words = held.map((one) => (one ? brief(numberOfWords(one.words, variable.type), variable.count > 1 ? 5 : 8) : "·"));
    const last = Math.max(...held.map((one) => one?.step ?? -1));
    for (const [cell, text] of [[value, words.join(" ") + (variable.count > SHOWN ? " …" : "")], [note, last === view.step ? "now" : last > 0 ? `step ${bytes(last)}` : ""]]) {
      if (cell.textContent !== text) cell.textContent = text;
    }
    row.classList.toggle("ak-changed", last === view.step);
    return true;
  }

  const changedNow = (view, thread) => variableAt(rec, thread, view.quantity, view.element, view.step)?.step === view.step;

  function ofVariable(view, variable, thread) {
    const held = variableAt(rec, thread, view.quantity, Math.min(view.element, variable.count - 1), view.step);
    return held ? brief(numberOfWords(held.words, variable.type), 5) : "";
  }

  // The first number that a lane reads, or the one that it writes.
  function ofAccess(view, deed) {
    if (!deed) return "";
    const array = rec.arrays[rec.steps.array[view.step]];
    const type = typeIn(array, view);
    const writes = rec.writes.has(rec.steps.op[view.step]);
    return brief(elementAt(rec, array.number, deed.offset, type, view.step + (writes ? 1 : 0)), 5);
  }

  return {
    node: element("section", { class: "ak-player-lane" },
      element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "Lane"), warp.row, follows.row),
      title, grid, element("div", { class: "ak-row" }, quantity.row, partRow), table, none),
    draw,
  };
}
