// source.js — the kernel's text: the line of each warp, and of the step the line in front.

const TOKENS = /(\/\/.*$|\/\*.*?\*\/)|("(?:[^"\\]|\\.)*")|(^\s*#\s*\w+)|\b(auto|bool|break|case|char|const|constexpr|continue|do|double|else|extern|float|float2|float4|for|half|if|int|int4|inline|long|return|short|sizeof|static|struct|switch|template|typename|uint4|unsigned|using|void|volatile|while|__\w+__|__half2?|__nv_bfloat162?|uint\d+_t|int\d+_t)\b|\b(0x[\da-fA-F]+|\d[\d.]*(?:e[+-]?\d+)?[fuUlL]*)\b/g;
const KINDS_OF_TOKEN = ["comment", "text", "directive", "keyword", "number"];

// A line of CUDA as spans, coloured by what they are.
function colouredLine(text) {
  const parts = [];
  let done = 0;
  for (const match of text.matchAll(TOKENS)) {
    const kind = KINDS_OF_TOKEN[match.slice(1).findIndex((part) => part !== undefined)];
    parts.push(text.slice(done, match.index), element("span", { class: `ak-token-${kind}` }, match[0]));
    done = match.index + match[0].length;
  }
  return [...parts, text.slice(done)];
}

// Warps in a few letters: "w0–3", or how many there are.
function shortRanges(warps) {
  const text = warps.length ? `w${ranges(warps)}` : "";
  return text.length > 7 ? `${warps.length} warps` : text;
}

function sourcePanel(rec, act, isShort = false) {
  const files = Object.keys(rec.meta.sources);
  const lastPart = (file) => file.split("/").at(-1);
  const visited = new Set(rec.meta.places.map(([file, line]) => `${file} ${line}`)); // calls, too
  const box = element("div", { class: "ak-source", tabindex: 0, role: "region", "data-lm-suppress-shortcuts": "true" });
  const choice = control("select", { onchange: () => act.set({ file: choice.value, followsFile: false }) },
    ...files.map((file) => element("option", { value: file }, lastPart(file))));
  const followsFile = check("follow the step", (on) => act.set({ followsFile: on }));
  const title = element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "Source"),
    ...(files.length > 1 ? [element("label", {}, "file", choice), followsFile.row] : []), files.length > 1 ? "" : element("span", { class: "ak-note", title: files[0] ?? "" }, isShort ? lastPart(files[0] ?? "") : files[0] ?? ""));
  let shown = null; // the file whose lines are in the box
  let lines = [];
  const made = new Map(); // file -> its lines
  let marked = new Map(); // line -> what is written beside it

  function show(file) {
    shown = file;
    for (const number of marked.keys()) unmark(lines[number - 1]);
    marked = new Map();
    if (!made.has(file)) made.set(file, linesOfFile(file));
    lines = made.get(file);
    box.replaceChildren(element("div", { class: "ak-lines" }, ...lines));
    box.setAttribute("aria-label", `Source of ${file}`);
    choice.value = file;
    [edges, scrolled] = [null, -Infinity]; // nobody knows: the next line is brought into view in any case
  }

  function linesOfFile(file) {
    return (rec.meta.sources[file] ?? "").replace(/\n$/, "").split("\n").map((text, n) => {
      const has = visited.has(`${file} ${n + 1}`);
      const line = element("div", { class: has ? "ak-line ak-visited" : "ak-line" },
        element("span", { class: "ak-line-number" }, `${n + 1}`),
        element("span", { class: "ak-line-warps" }),
        element("span", { class: "ak-line-text" }, ...colouredLine(text)));
      if (has) line.addEventListener("click", () => act.toLine(file, n + 1));
      return line;
    });
  }

  function unmark(line) {
    line.className = "ak-line ak-visited";
    line.children[1].replaceChildren();
    line.removeAttribute("aria-current");
  }

  // Beside each line the warps that are there; of them the one of this step, and the other party of a finding.
  function marksOf(view) {
    const marks = new Map();
    const at = (line) => marks.get(line) ?? marks.set(line, { warps: [], now: false, other: false }).get(line);
    for (let warp = 0; warp < rec.meta.warps; warp++) {
      const line = lineIn(rec, stepOfWarp(rec, warp, view.step), shown);
      if (line > 0) at(line).warps.push(warp);
    }
    const [now, other] = [view.step, view.other].map((step) => lineIn(rec, step, shown));
    if (now > 0) at(now).now = true;
    if (other > 0) at(other).other = true;
    return marks;
  }

  function draw(view) {
    const now = placeOf(rec, view.step);
    const file = view.followsFile && now ? now.file : view.file ?? shown ?? now?.file ?? files[0];
    if (file !== shown) show(file);
    const marks = marksOf(view);
    for (const number of marked.keys()) {
      if (!marks.has(number)) unmark(lines[number - 1]);
    }
    const next = new Map();
    for (const [number, { warps, now: isNow, other }] of marks) {
      const text = `${other ? "other " : ""}${shortRanges(warps)}`;
      const key = `${isNow} ${other} ${text}`;
      next.set(number, key);
      if (marked.get(number) === key) continue;
      const line = lines[number - 1];
      if (!line) continue;
      line.className = `ak-line ak-visited${isNow ? " ak-line-now" : ""}${other ? " ak-line-other" : ""}`;
      const chip = text ? element("span", { title: `${other ? "the other party; " : ""}warps ${ranges(warps)}` }, text) : "";
      line.children[1].replaceChildren(chip);
      if (isNow) line.setAttribute("aria-current", "step");
      else line.removeAttribute("aria-current");
    }
    marked = next;
    const line = lineIn(rec, view.step, shown);
    if (line > 0) keepInView(line - 1, lineIn(rec, view.other, shown) - 1);
    else if (scrolled < 0) keepInView(Math.max(lines.findIndex((one) => one.classList.contains("ak-visited")), 0), -1); // not the header
    followsFile.input.checked = view.followsFile;
    followsFile.hide(isShort && view.followsFile);
  }

  // Where lines and box are is measured once, and not at each step, after which the browser would lay out the page at once.
  let [edges, seen, scrolled] = [null, 0, 0];
  box.addEventListener("scroll", () => { scrolled = box.scrollTop; });
  function measure() {
    [edges, scrolled] = [null, box.scrollTop];
  }

  // The row of the step and, where there is room for both, that of the other party (below 0: none), and a little around.
  function keepInView(row, other) {
    if (!edges) {
      edges = [...lines.map((line) => line.offsetTop), lines.at(-1).offsetTop + lines.at(-1).offsetHeight];
      seen = box.clientHeight;
    }
    const [before, behind] = [(at) => edges[Math.max(at - 1, 0)], (at) => edges[Math.min(at + 2, lines.length)]];
    const both = other >= 0 && Math.abs(edges[other] - edges[row]) + 3 * (edges[row + 1] - edges[row]) <= seen;
    const [top, bottom] = both ? [Math.min(row, other), Math.max(row, other)] : [row, row];
    if (before(top) >= scrolled && behind(bottom) <= scrolled + seen) return;
    scrolled = Math.max(0, both ? (before(top) + behind(bottom) - seen) / 2 : edges[row] - seen / 3);
    requestAnimationFrame(() => { box.scrollTop = scrolled; }); // the browser lays out the page then anyway
  }

  return { node: element("section", { class: "ak-player-source" }, title, box), draw, measure, file: () => shown };
}
