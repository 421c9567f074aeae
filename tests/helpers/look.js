// What a reader cannot see on a page as it is laid out now, and formulas with a scrollbar: one text for each thing, by
// kind of fault.
// `lowest` is the contrast (WCAG 2) below which text counts as pale.
(lowest) => {
  const article = document.querySelector("article") ?? document.body;
  const shown = (node) => node.getClientRects().length > 0 && getComputedStyle(node).visibility === "visible";
  const called = (node) => {
    const text = (node.textContent.trim() || node.alt || node.getAttribute("src") || node.className || "").toString();
    return `<${node.tagName.toLowerCase()}> ${text.replace(/\s+/g, " ").slice(0, 70)}`;
  };

  // The part of the page that a box shows of what is in it; the page itself has no edge but the window's.
  const inside = (box) => {
    const { left } = box.getBoundingClientRect();
    return [left + box.clientLeft, left + box.clientLeft + box.clientWidth];
  };
  const clips = (box) => getComputedStyle(box).overflowX !== "visible";
  const aloud = (node) => node.closest(".ak-aloud, .visually-hidden, mjx-assistive-mml"); // for screen readers only

  // Whether a part of a thing lies beyond the edge of a box that cuts or scrolls it, or beyond the window's.
  const outside = (thing) => {
    const { left, right } = thing.getBoundingClientRect();
    for (let box = thing.parentElement; box && box !== document.body; box = box.parentElement) {
      if (!clips(box)) continue;
      const [from, to] = inside(box);
      if (left + box.scrollLeft < from - 1 || right + box.scrollLeft > to + 1) return true;
    }
    return right > document.documentElement.clientWidth + 1;
  };
  const cut = (thing) => (clips(thing) && thing.scrollWidth > thing.clientWidth + 1) || outside(thing);

  // sRGB channels and opacity of a colour as the browser writes it.
  const channels = (colour) => {
    const figures = (colour.match(/-?[\d.]+(e-?\d+)?/g) ?? []).map(Number);
    const scale = colour.startsWith("color(") ? 255 : 1;
    return [...figures.slice(0, 3).map((one) => one * scale), figures[3] ?? 1];
  };
  const over = (top, below) => below.map((one, n) => one + (top[n] - one) * top[3]);
  const light = (colour) =>
    colour
      .map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
      .reduce((sum, one, n) => sum + one * [0.2126, 0.7152, 0.0722][n], 0);
  // What is behind the text of an element, and how opaque the element is: each is looked up once.
  const grounds = new Map();
  const ground = (node) => {
    if (!node) return { colour: [255, 255, 255], opacity: 1 };
    if (!grounds.has(node)) {
      const style = getComputedStyle(node), below = ground(node.parentElement);
      const opacity = below.opacity * Number(style.opacity);
      const [r, g, b, alpha] = channels(style.backgroundColor);
      grounds.set(node, { colour: over([r, g, b, alpha * opacity], below.colour), opacity });
    }
    return grounds.get(node);
  };
  const contrast = (node) => {
    const { colour, opacity } = ground(node);
    const [r, g, b, alpha] = channels(getComputedStyle(node).color);
    const [one, other] = [light(over([r, g, b, alpha * opacity], colour)), light(colour)];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  };
  const wordsIn = (node) =>
    [...node.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim());
  const texts = [...document.body.querySelectorAll("*:not(script, style, noscript, option, title, svg *)")].filter(
    (node) => wordsIn(node).length,
  );
  const pale = texts
    .filter((node) => shown(node) && !aloud(node) && contrast(node) < lowest - 0.005)
    .map((node) => `${contrast(node).toFixed(2)} ${called(node)}`);

  const all = (selector) => [...article.querySelectorAll(selector)].filter((node) => shown(node) && !aloud(node));
  const named = (some) => some.filter(cut).map(called);
  // Words that are cut, and stand in none of the things above.
  const things = "pre, svg, .ak-widget, mjx-container";
  const words = (node) => {
    const range = document.createRange(), said = node.textContent;
    range.setStart(node, said.length - said.trimStart().length);   // spaces hang over the end of a line
    range.setEnd(node, said.trimEnd().length);
    return { parentElement: node.parentElement, getBoundingClientRect: () => range.getBoundingClientRect() };
  };
  const lost = texts.filter((node) => article.contains(node) && shown(node) && !aloud(node) && !node.closest(things));
  // A box of a formula whose scrollbar takes room. Without a border these boxes are as large inside as outside.
  const hasBar = (box) =>
    clips(box) && (box.offsetWidth - box.clientWidth > 1 || box.offsetHeight - box.clientHeight > 1);
  const { scrollWidth, clientWidth } = document.documentElement;
  return {
    page: scrollWidth > clientWidth ? [`${scrollWidth} pixels wide in a window of ${clientWidth}`] : [],
    code: named(all("pre")),
    tables: named(all("table")),
    pictures: named(all("img, svg, canvas, video, .ak-widget")),
    formulas: named(all("mjx-math")),
    bars: all(".math, mjx-container").filter(hasBar).map(called),
    text: lost.filter((node) => wordsIn(node).some((one) => outside(words(one)))).map(called),
    pale,
  };
}
