// progress_card.js — how far the learner is: two buttons, the state in words, and the card as Python wrote it.

// Make the links open like a notebook's links: in JupyterLab as a tab, elsewhere as the page resolves them.
function followLinks(page, manager) {
  const mime = manager?.rendermime;
  for (const link of page.querySelectorAll("a[href]")) {
    link.target = "_blank"; // never away from a notebook that is not saved
    if (!mime?.linkHandler || !mime.resolver) continue;
    link.removeAttribute("target");
    const [file, heading] = link.getAttribute("href").split("#");
    mime.resolver.resolveUrl(file).then((path) => {
      mime.linkHandler.handleLink(link, decodeURIComponent(path), heading ? `#${heading}` : "");
    });
  }
}

function download({ file, content }) {
  const url = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  element("a", { href: url, download: file }).click();
  URL.revokeObjectURL(url);
}

export default {
  render({ model, el }) {
    let exporting = false; // of several views of one card only the one that was asked downloads
    const ask = (what) => model.send({ asked: what });
    const refresh = control("button", { class: "ak-refresh", type: "button", onclick: () => ask("refresh") }, "Refresh");
    const save = control("button", { class: "ak-export", type: "button" }, "Export");
    save.addEventListener("click", () => {
      exporting = true;
      ask("export");
    });
    const title = element("div", { class: "ak-title" });
    const status = element("div", { class: "ak-status", role: "status", "aria-live": "polite" });
    const page = element("div", { class: "ak-progress-page" });
    const root = element(
      "section",
      { class: "ak-widget", "data-widget": "progress-card", "aria-label": "Progress" },
      element("div", { class: "ak-row" }, title, refresh, save),
      status,
      page,
    );
    el.append(root);

    const draw = () => {
      title.textContent = model.get("title");
      status.textContent = model.get("status");
      page.innerHTML = model.get("page"); // escaped by Python
      followLinks(page, model.widget_manager);
    };
    const onMessage = (message) => {
      if (!exporting || !message.file) return;
      exporting = false;
      download(message);
    };
    const names = ["title", "status", "page"].map((name) => `change:${name}`);
    for (const name of names) model.on(name, draw);
    model.on("msg:custom", onMessage);
    draw();
    return () => {
      names.forEach((name) => model.off(name, draw));
      model.off("msg:custom", onMessage);
    };
  },
};
