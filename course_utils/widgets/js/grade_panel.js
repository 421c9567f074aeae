// grade_panel.js — the self-check of an exercise: a button, what is going on in words, the grade as Python wrote it, and
// a button that plays the kernel's run.

export default {
  render({ model, el }) {
    const button = control("button", { class: "ak-check", type: "button" });
    const play = control("button", { class: "ak-play-mine", type: "button" });
    const status = element("div", { class: "ak-status", role: "status", "aria-live": "polite" });
    const page = element("div", { class: "ak-grade-page" });
    const title = element("div", { class: "ak-title" });
    const root = element(
      "section",
      { class: "ak-widget", "data-widget": "grade-panel", "aria-label": "Self-check" },
      element("div", { class: "ak-row" }, button, play, title),
      status,
      page,
    );
    el.append(root);

    let asked = "asked"; // which button was pressed last

    // The button stays focusable while a check runs: `disabled` would throw the keyboard's user out of the panel.
    const draw = () => {
      const busy = model.get("busy");
      const plays = busy && asked === "played";
      button.textContent = busy && !plays ? "Checking …" : `Check ${model.get("subject")}`;
      play.textContent = plays ? "Recording …" : "Watch it run";
      play.hidden = !model.get("can_play");
      for (const one of [button, play]) one.setAttribute("aria-disabled", String(busy));
      root.setAttribute("aria-busy", String(busy));
      title.textContent = model.get("title");
      status.textContent = model.get("status");
      page.innerHTML = model.get("page"); // escaped by Python
      page.classList.toggle("ak-old", busy && !plays);
    };
    page.addEventListener("click", ({ target }) => {
      if (!target.classList.contains("ak-copy")) return;
      navigator.clipboard?.writeText(page.querySelector(".ak-share").textContent);
      target.textContent = "Copied";
    });
    const asks = (name) => () => {
      if (model.get("busy")) return;
      asked = name;
      model.set("busy", true);
      model.set(name, model.get(name) + 1);
      model.save_changes();
    };
    button.addEventListener("click", asks("asked"));
    play.addEventListener("click", asks("played"));
    const names = ["busy", "status", "page", "title", "can_play"].map((name) => `change:${name}`);
    for (const name of names) model.on(name, draw);
    draw();
    return () => names.forEach((name) => model.off(name, draw));
  },
};
