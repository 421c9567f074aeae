// What scrolls sideways inside its box can be scrolled by keyboard, too: it takes the focus.
"use strict";

function makeScrollableFocusable() {
  for (const box of document.querySelectorAll("article *")) {
    const style = getComputedStyle(box);
    const scrolls =
      (/auto|scroll/.test(style.overflowX) && box.scrollWidth > box.clientWidth) ||
      (/auto|scroll/.test(style.overflowY) && box.scrollHeight > box.clientHeight);
    if (scrolls && box.clientWidth > 0 && !box.hasAttribute("tabindex")) box.tabIndex = 0;
  }
}

window.addEventListener("load", makeScrollableFocusable);
window.addEventListener("resize", makeScrollableFocusable);
// Formulas are set after the page has loaded; what is folded away gets its size when it is opened.
document.addEventListener("toggle", makeScrollableFocusable, true);
