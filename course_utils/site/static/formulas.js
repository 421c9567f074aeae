// A formula that is wider than the text gets smaller.
"use strict";

const SMALLEST = 0.5; // half of a formula's own size is still as large as a note; a wider formula scrolls in its box

// All are measured before the first is changed, as in scrolling.js.
function fitFormulas() {
  const formulas = [...document.querySelectorAll("article mjx-container:has(mjx-math)")];
  for (const formula of formulas) formula.style.removeProperty("zoom");
  const shares = formulas.map((formula) => formula.clientWidth / formula.querySelector("mjx-math").scrollWidth);
  formulas.forEach((formula, n) => {
    if (shares[n] < 0.97) formula.style.zoom = Math.max(shares[n] * 0.98, SMALLEST);
  });
}

fitted(fitFormulas);
