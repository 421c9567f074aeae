// grade_panel.js — the self-check of an exercise: a button, what is going on in words, and the grade as Python wrote it.

export default {
  render({ model, el }) {
    const button = control("button", { class: "ak-check", type: "button" });
    const status = element("div", { class: "ak-status", role: "status", "aria-live": "polite" });
    const page = element("div", { class: "ak-grade-page" });
    const title = element("div", { class: "ak-title" });
    const root = element(
      "section",
      { class: "ak-widget", "data-widget": "grade-panel", "aria-label": "Self-check" },
      element("div", { class: "ak-row" }, button, title),
      status,
      page,
    );
    el.append(root);

    // The button stays focusable while a check runs: `disabled` would throw the keyboard's user out of the panel.
    const draw = () => {
      const busy = model.get("busy");
      button.textContent = busy ? "Checking …" : `Check ${model.get("subject")}`;
      button.setAttribute("aria-disabled", String(busy));
      root.setAttribute("aria-busy", String(busy));
      title.textContent = model.get("title");
      status.textContent = model.get("status");
      page.innerHTML = model.get("page"); // escaped by Python
      page.classList.toggle("ak-old", busy);
    };
    page.addEventListener("click", ({ target }) => {
      if (!target.classList.contains("ak-copy")) return;
      navigator.clipboard?.writeText(page.querySelector(".ak-share").textContent);
      target.textContent = "Copied";
    });
    button.addEventListener("click", () => {
      if (model.get("busy")) return;
      model.set("busy", true);
      model.set("asked", model.get("asked") + 1);
      model.save_changes();
    });
    const names = ["busy", "status", "page", "title"].map((name) => `change:${name}`);
    for (const name of names) model.on(name, draw);
    draw();
    return () => names.forEach((name) => model.off(name, draw));
  },
};
