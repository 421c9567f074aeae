// questions.js — the questions of a chapter as forms. Python judges: this file knows no answer until Python replies.

const PATIENCE_MS = 10000; // how long Python may take before we say that it does not reply

// Text with `code` between backticks, as nodes: nothing in it is read as HTML.
function marked(text) {
  return text.split("`").map((part, n) => (n % 2 ? element("code", {}, part) : part));
}

// What an answer of each kind is made of, and how it is read from and put back into the inputs (questions/judging.py).
const CHOICE = {
  type: "radio",
  read: (inputs) => {
    const chosen = inputs.findIndex((input) => input.checked);
    return chosen < 0 ? null : chosen;
  },
  fill: (inputs, answer) => inputs.forEach((input, n) => (input.checked = n === answer)),
};
const TRUE_FALSE = {
  type: "radio",
  read: (inputs) => (inputs[0].checked ? true : inputs[1].checked ? false : null),
  fill: (inputs, answer) => inputs.forEach((input, n) => (input.checked = answer === (n === 0))),
};
const VOTES = {
  type: "checkbox",
  read: (inputs) => inputs.flatMap((input, n) => (input.checked ? [n] : [])),
  fill: (inputs, answer) => inputs.forEach((input, n) => (input.checked = answer.includes(n))),
};
const texts = (inputs) => inputs.map((input) => input.value);
const figuresIn = (shape) => ({
  type: "text",
  read: (inputs) => shape(texts(inputs)),
  fill: (inputs, answer) => [answer].flat(2).forEach((text, n) => (inputs[n].value = text)),
});
const rowsOf = (columns) => (values) =>
  Array.from({ length: values.length / columns }, (_, row) => values.slice(row * columns, (row + 1) * columns));

function formOf(asked) {
  switch (asked.kind) {
    case "true-false":
      return TRUE_FALSE;
    case "votes":
      return VOTES;
    case "number":
      return figuresIn((values) => values[0]);
    case "aggregate":
      return figuresIn((values) => values);
    case "grid":
      return figuresIn(rowsOf(asked.columns.length));
    default:
      return CHOICE;
  }
}

// One question. `send` gives a message to Python; the returned `show` draws Python's reply.
function questionView(asked, prefix, model, send) {
  const form = formOf(asked);
  const id = (name) => `${prefix}-${asked.number}-${name}`;
  const hasOneAnswer = form.type === "radio" || asked.labels.length === 1; // a verdict is about one part
  const inputs = asked.labels.map((_, n) =>
    control("input", {
      type: form.type,
      id: id(`input${n}`),
      "aria-describedby": asked.units ? `${id(`unit${n}`)} ${id(`why${n}`)}` : id(`why${n}`),
      ...(form.type === "text" ? { inputmode: "decimal", autocomplete: "off" } : { name: id("parts") }),
    }),
  );
  // Beside a part: a sign with a word, and the explanation. Both are empty until the part was judged.
  const marks = inputs.map(() => element("span", { class: "ak-mark" }));
  const whys = inputs.map((_, n) => element("div", { class: "ak-why", id: id(`why${n}`) }));
  const units = (asked.units ?? []).map((unit, n) => element("span", { class: "ak-unit", id: id(`unit${n}`) }, unit));
  const label = (n) => element("label", { for: inputs[n].id }, ...marked(asked.labels[n]));

  const check = control("button", { class: "ak-check", type: "button" }, "Check");
  const reveal = control("button", { class: "ak-reveal", type: "button" }, "Show the answer");
  const status = element("div", { class: "ak-status", role: "status", "aria-live": "polite" });
  const earlier = asked.earlier.right_at
    ? [element("p", { class: "ak-earlier" }, `✓ answered right on ${asked.earlier.right_at}`)]
    : [];
  const root = element(
    "fieldset",
    { class: "ak-question", "data-kind": asked.kind, "data-id": asked.id, "aria-describedby": id("prompt") },
    element(
      "legend",
      {},
      `${asked.number}. `,
      ...marked(asked.title),
      element("span", { class: "ak-kind" }, ` (${asked.kind_in_words})`),
    ),
    ...earlier,
    element("p", { class: "ak-prompt", id: id("prompt") }, ...marked(asked.prompt)),
    parts(asked, { inputs, marks, whys, units, label }),
    element("div", { class: "ak-row" }, check, reveal),
    status,
  );

  let waiting = 0; // the turn of the message that Python has not replied to yet
  let drawn = 0; // the turn of the reply that stands in the status: writing it again would have it read aloud again
  let patience;
  const reply = () => model.get("replies")[asked.id];

  const ask = (action) => {
    if (waiting) return;
    waiting = (reply()?.turn ?? 0) + 1;
    keep();
    model.save_changes();
    send({ id: asked.id, action, answer: form.read(inputs), turn: waiting });
    status.textContent = "Checking …";
    busy(true);
    patience = setTimeout(() => {
      waiting = 0;
      busy(false);
      status.textContent = "Python has not replied: it is busy, or was restarted. Then run this cell again.";
    }, PATIENCE_MS);
  };
  const busy = (is) => {
    root.setAttribute("aria-busy", String(is));
    check.setAttribute("aria-disabled", String(is));
  };
  const keep = () => model.set("answers", { ...model.get("answers"), [asked.id]: form.read(inputs) });

  // What was said about a figure goes when another one is typed in its place.
  const remark = () => {
    const { items = [], answer, shown } = reply() ?? {};
    const judged = [answer].flat(2);
    inputs.forEach((input, n) => {
      const said = form.type !== "text" || shown || judged[n] === input.value ? items[n] : undefined;
      marks[n].textContent = said?.words ? `${said.sign} ${said.words}` : "";
      marks[n].dataset.status = said?.status ?? "open";
      whys[n].replaceChildren(...marked(said?.said ?? ""));
      if (form.type === "text") input.setAttribute("aria-invalid", String(!shown && said?.status === "wrong"));
    });
  };
  const show = () => {
    const got = reply();
    remark();
    reveal.hidden = got ? got.status === "right" : !asked.earlier.tried;
    if (!got || waiting > got.turn || drawn === got.turn) return;
    clearTimeout(patience);
    waiting = 0;
    drawn = got.turn;
    busy(false);
    root.dataset.status = got.status;
    const sign = { right: "✓ ", wrong: "✗ ", open: "" }[got.status];
    status.replaceChildren(sign, got.summary);
    // A screen reader gets with the verdict what stands beside the one part that it is about.
    const said = got.items.filter((one) => one.said && (!got.shown || one.status === "right")).map((one) => one.said);
    if (hasOneAnswer && said.length) status.append(element("span", { class: "ak-aloud" }, ` ${said.join(" ")}`));
  };

  check.addEventListener("click", () => ask("check"));
  reveal.addEventListener("click", () => ask("show"));
  inputs.forEach((input) => {
    input.addEventListener("input", () => (keep(), remark()));
    input.addEventListener("change", () => model.save_changes());
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      ask("check");
    });
  });
  const typed = model.get("answers")[asked.id];
  if (typed !== undefined) form.fill(inputs, typed);
  return { root, show, close: () => clearTimeout(patience) };
}

// The parts of a question: a list, or a table where figures stand side by side.
function parts(asked, { inputs, marks, whys, units, label }) {
  const heading = (text) => (text ? element("th", { scope: "col" }, ...marked(text)) : element("td"));
  const chosen = (n) => element("span", { class: "ak-option" }, inputs[n], element("span", {}, label(n), " ", marks[n]));
  const table = (headings, lines) => {
    const head = element("thead", {}, element("tr", {}, ...headings.map(heading)));
    const body = element("tbody", {}, ...lines);
    return element("div", { class: "ak-scroll" }, element("table", { class: "ak-options" }, head, body));
  };
  if (asked.kind === "trade-off") {
    const lines = inputs.map((_, n) => [
      element(
        "tr",
        {},
        element("th", { scope: "row" }, chosen(n)),
        ...asked.figures[n].map((text) => element("td", {}, ...marked(text))),
      ),
      element("tr", { class: "ak-why-row" }, element("td", { colspan: asked.columns.length + 1 }, whys[n])),
    ]);
    return table(["option", ...asked.columns], lines.flat());
  }
  if (asked.kind === "grid") {
    const columns = asked.columns.length;
    const lines = asked.rows.map((name, row) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, ...marked(name)),
        ...asked.columns.map((_, column) => {
          const n = row * columns + column;
          inputs[n].setAttribute("aria-label", asked.labels[n].replaceAll("`", ""));
          return element("td", {}, element("span", { class: "ak-cell" }, inputs[n], units[n]), marks[n]);
        }),
      ),
    );
    const name = (n) => element("span", { class: "ak-cell-name" }, ...marked(asked.labels[n]), ": ");
    const said = whys.map((why, n) => element("li", {}, name(n), why));
    return element("div", {}, table(["", ...asked.columns], lines), element("ul", { class: "ak-cells-said" }, ...said));
  }
  const typed = (n) => element("span", { class: "ak-option" }, label(n), inputs[n], units[n], marks[n]);
  const [kind, line] = units.length ? ["ak-figure", typed] : ["ak-choice", chosen];
  const lines = inputs.map((_, n) => element("div", { class: kind }, line(n), whys[n]));
  return element("div", { class: "ak-parts" }, ...lines);
}

export default {
  render({ model, el }) {
    const { notes, questions } = model.get("sheet");
    const prefix = `ak-${Math.random().toString(36).slice(2)}`; // two views in a page must not share ids
    const views = questions.map((asked) => questionView(asked, prefix, model, (message) => model.send(message)));
    const head = element("div", { class: "ak-note" }, ...notes.map((note) => element("p", {}, note)));
    el.append(
      element(
        "section",
        { class: "ak-widget", "data-widget": "questions", "aria-label": "Questions" },
        head,
        ...views.map((view) => view.root),
      ),
    );
    const draw = () => views.forEach((view) => view.show());
    model.on("change:replies", draw);
    draw();
    return () => {
      model.off("change:replies", draw);
      views.forEach((view) => view.close());
    };
  },
};
