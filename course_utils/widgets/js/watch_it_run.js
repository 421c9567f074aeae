// watch_it_run.js — below a puzzle's verdict: a button that plays the learner's kernel, and what is going on in words.

export default {
  render({ model, el }) {
    const play = control("button", { class: "ak-play-mine", type: "button" });
    const status = element("div", { class: "ak-status", role: "status", "aria-live": "polite" });
    const root = element(
      "section",
      { class: "ak-widget", "data-widget": "watch-it-run", "aria-label": "Your kernel's run" },
      element("div", { class: "ak-row" }, play),
      status,
    );
    el.append(root);

    const draw = () => {
      const busy = model.get("busy");
      play.textContent = busy ? "Recording …" : "Watch it run";
      play.setAttribute("aria-disabled", String(busy));
      root.setAttribute("aria-busy", String(busy));
      status.textContent = model.get("status");
    };
    play.addEventListener("click", () => {
      if (model.get("busy")) return;
      model.set("busy", true);
      model.set("played", model.get("played") + 1);
      model.save_changes();
    });
    const names = ["busy", "status"].map((name) => `change:${name}`);
    for (const name of names) model.on(name, draw);
    draw();
    return () => names.forEach((name) => model.off(name, draw));
  },
};
