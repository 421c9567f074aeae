// findings.js — a report of the sanitizer whose findings have a button each: the player, opened at that moment. In
// JupyterLab Python records and shows it; on a page without Python it is made here of the recordings that the page has.

export default {
  render({ model, el }) {
    const { head, cards, tail, names, stops } = model.get("meta");
    const alone = model.get("alone");
    let chosen = -1;
    let busy = false;
    const part = (page) => {
      const node = element("div");
      node.innerHTML = page; // escaped by Python
      return node;
    };
    const buttons = names.map((name, n) => control("button", {
      class: "ak-show", type: "button", "aria-label": `Show finding ${name}`, onclick: () => show(n),
    }, "Show"));
    const shown = cards.map((page, n) => {
      const card = part(page);
      card.firstElementChild.append(buttons[n]);
      return card;
    });
    const status = element("div", { class: "ak-status", role: "status", "aria-live": "polite" });
    const below = element("div");
    const root = element("section", { class: "ak-widget", "data-widget": "findings", "aria-label": "Findings of the sanitizer" },
      element("div", { class: "ak-found" }, part(head), ...shown, part(tail)), status, below);
    el.append(root);

    // The buttons stay focusable while one is at work: `disabled` would throw the keyboard's user out of the report.
    const draw = () => {
      buttons.forEach((button, n) => {
        button.textContent = busy && n === chosen ? "Opening …" : "Show";
        button.setAttribute("aria-disabled", String(busy));
        button.setAttribute("aria-pressed", String(n === chosen));
      });
      root.setAttribute("aria-busy", String(busy));
      status.hidden = !status.textContent;
    };
    const say = (words) => {
      status.textContent = words;
      draw();
    };
    async function show(n) {
      if (busy) return;
      [chosen, busy] = [n, true];
      draw();
      if (!alone) return model.send({ show: n });
      await play(stops[n]);
      busy = false;
      say(stops[n].words);
    }

    let end = () => {};
    async function play(stop) {
      end();
      end = () => {};
      below.replaceChildren(...(stop.still ? [element("img", { src: `data:image/png;base64,${stop.still}`, alt: stop.words })] : []));
      if (stop.recording === undefined) return;
      // files of the site: beside this one, and in the folder above
      const [{ default: player }, { modelOf }] = await Promise.all([import("./player.js"), import("../model.js")]);
      const { from, to, ...meta } = model.get("meta").recordings[stop.recording];
      const { buffer, byteOffset } = model.get("data");
      const data = new DataView(buffer, byteOffset + from, to - from);
      const box = element("div");
      below.replaceChildren(box);
      end = await player.render({ model: modelOf({ meta: { ...meta, start: stop.start }, data, step: stop.step }), el: box });
    }

    const told = () => {
      busy = model.get("busy");
      say(model.get("status"));
    };
    const traits = ["change:busy", "change:status"];
    for (const name of traits) model.on(name, told);
    say(model.get("status") ?? "");
    return () => {
      for (const name of traits) model.off(name, told);
      end();
    };
  },
};
