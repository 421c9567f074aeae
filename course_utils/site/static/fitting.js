// Parts of the page are fitted to its width again when the width changes, when something is opened, and when formulas,
// pictures or forms have arrived. The other scripts say what there is to do: fitted(task).
"use strict";

const tasks = [];
let due = 0; // many boxes may be opened at once

function fitted(task) {
  tasks.push(task);
  fitSoon();
}

function fitSoon() {
  due ||= requestAnimationFrame(() => {
    due = 0;
    for (const task of tasks) task();
  });
}

const measuredBox = document.querySelector("article") ?? document.body;
let width = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width !== width) fitSoon();
  width = contentRect.width;
}).observe(measuredBox);
new MutationObserver(fitSoon).observe(measuredBox, { childList: true, subtree: true });
document.addEventListener("toggle", fitSoon, true);
window.addEventListener("load", () => (fitSoon(), window.MathJax?.startup?.promise.then(fitSoon)));
