// Each line of a block of code becomes an element that knows how far in it begins, so that site.css can wrap it under
// its own beginning. What is copied from the block stays the same.
"use strict";

// The lines of a node, each a copy that holds only what stands in that line.
function linesOf(node) {
  if (node.nodeType === Node.TEXT_NODE) {
    const texts = node.data.split("\n");
    return texts.map((text, n) => document.createTextNode(n + 1 < texts.length ? `${text}\n` : text));
  }
  const lines = [[]];
  for (const child of node.childNodes) {
    const [first, ...others] = linesOf(child);
    lines.at(-1).push(first);
    for (const other of others) lines.push(other.textContent ? [other] : []); // an element may end with its line
  }
  return lines.map((parts) => {
    const copy = node.cloneNode(false);
    copy.append(...parts);
    return copy;
  });
}

// A number that a listing has before each line counts as part of how far in the line begins.
function lineElement(line) {
  const text = line.textContent;
  const counted = line.querySelector('.linenos, [style*="user-select: none"]')?.textContent ?? "";
  const number = text.startsWith(counted) ? counted.length : 0;
  const spaces = text.slice(number).match(/^ */)[0].length;
  if (spaces && text.length > number + spaces + 1) gather(line, number, number + spaces);
  const element = document.createElement("span");
  element.className = "course-line";
  element.style.setProperty("--number", number);
  element.style.setProperty("--spaces", spaces);
  element.append(...line.childNodes);
  return element;
}

// Puts these letters of a line into an element of their own, which a narrow window makes narrower.
function gather(line, from, to) {
  const range = document.createRange();
  const place = (at) => {
    const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
    let before = 0;
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      if (at <= before + text.length && text.length) return [text, at - before];
      before += text.length;
    }
  };
  range.setStart(...place(from));
  range.setEnd(...place(to));
  const spaces = document.createElement("span");
  spaces.className = "course-spaces";
  spaces.append(range.extractContents());
  range.insertNode(spaces);
}

for (const block of document.querySelectorAll("article pre")) {
  const lines = linesOf(block).map(lineElement);
  if (!lines.at(-1).textContent) lines.pop();
  block.replaceChildren(...lines);
}
