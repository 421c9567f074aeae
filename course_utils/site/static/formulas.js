// A formula that stands alone and is wider than the window gets smaller, as long as it stays legible; else it scrolls.
"use strict";

const SMALLEST = 0.6;

function fitFormulas() {
  const formulas = [...document.querySelectorAll('article mjx-container[display="true"]')];
  for (const formula of formulas) formula.style.removeProperty("zoom");
  const wide = formulas.map((formula) => [formula, formula.clientWidth / formula.querySelector("mjx-math").scrollWidth]);
  for (const [formula, share] of wide) if (share < 1) formula.style.zoom = Math.max(share * 0.98, SMALLEST);
}

window.addEventListener("load", () => window.MathJax?.startup?.promise.then(fitFormulas));
window.addEventListener("resize", fitFormulas);
document.addEventListener("toggle", fitFormulas, true);
