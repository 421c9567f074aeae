// flights.js — what goes on by itself at a step: copies that have not landed, products that are not over.

const FLYING = {
  "copy read": ["copy", "copies"], copy: ["copy of the copy engine", "copies of the copy engine"],
  product: ["product", "products"], wgmma: ["product of a warpgroup", "products of warpgroups"],
};

function flightsPanel(rec, act) {
  const list = element("ul", {});
  const node = element("section", { class: "ak-player-flights" },
    element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "In flight")), list);
  node.hidden = !rec.flights.length;
  let shown = "";

  function draw(view) {
    if (node.hidden) return;
    const groups = new Map();
    for (const flight of inFlight(rec, view.step)) {
      const array = rec.arrays[rec.steps.array[flight.end]];
      listOf(groups, `${flight.kind} ${array?.name ?? ""}`).push({ ...flight, array });
    }
    const key = JSON.stringify([...groups.values()]);
    if (key === shown) return;
    shown = key;
    const go = (step) => control("button", { type: "button", class: "ak-jump", onclick: () => act.go(step) }, `step ${bytes(step)}`);
    const items = [...groups.values()].map((flights) => {
      const [one, many] = FLYING[flights[0].kind] ?? [flights[0].kind, `${flights[0].kind}s`];
      const to = flights[0].array ? ` to ${flights[0].array.name}` : "";
      const end = Math.min(...flights.map((flight) => flight.end));
      return element("li", {}, `${plural(flights.length, one, many)}${to}, since `, go(flights[0].begin),
        flights.length > 1 ? "; the first is over at " : "; over at ", go(end));
    });
    list.replaceChildren(...(items.length ? items : [element("li", { class: "ak-note" }, "Nothing: all copies and products are over.")]));
  }

  return { node, draw };
}
