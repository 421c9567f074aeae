// view.js — what all that show a recording need to know of it and of the page before they draw.

// The type in which shared memory without one is read at first: that of the launch's own arrays.
const typeOfFloats = (rec) => rec.arrays.find(({ dtype }) => /float(16|32)/.test(dtype))?.dtype ?? "float32";

// The array of a step, or the one that its warp touched last before it; undefined if there is none. A step of nobody that
// touches none, such as a barrier that opens, shows what the step before it shows.
export function arrayAt(rec, step) {
  for (let at = step; at >= 0;) {
    if (rec.steps.array[at] >= 0) return rec.steps.array[at];
    at = rec.steps.warp[at] < 0 ? at - 1 : otherOfWarp(rec, rec.steps.warp[at], at, true);
  }
}

// Ink and ground. The theme does not name the ground: a property that shows nothing has it, as a canvas can take it
// (player.css, playing.css).
function coloursOf(root) {
  return { ...themeOf(root), ground: getComputedStyle(root).caretColor };
}

// What a reader may want below a line of words, closed at first.
const fold = (words, ...nodes) => element("details", {}, element("summary", {}, words), ...nodes);

// Two buttons with the name of a jump between them.
function jumpButtons({ name, to, isThere, isIdle }, jump) {
  const one = (backwards) => control("button", {
    type: "button", "aria-label": `${backwards ? "previous" : "next"}: ${name}`, onclick: () => jump(backwards),
  }, backwards ? "◀" : "▶");
  const [previous, next] = [one(true), one(false)];
  const node = element("span", { class: "ak-jump-pair", role: "group", "aria-label": name }, previous, element("span", {}, name), next);
  const draw = () => {
    node.hidden = !(isThere?.() ?? true);
    node.classList.toggle("ak-idle", isIdle?.() ?? false);
    enable(previous, to(true));
    enable(next, to(false));
  };
  return { node, draw };
}
