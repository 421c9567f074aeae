// A box that scrolls sideways takes the focus, so that the keyboard scrolls it, too.
"use strict";

function scrolls(box) {
  if (!(box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) || box.clientWidth === 0) return false;
  const style = getComputedStyle(box);
  return (
    (/auto|scroll/.test(style.overflowX) && box.scrollWidth > box.clientWidth) ||
    (/auto|scroll/.test(style.overflowY) && box.scrollHeight > box.clientHeight)
  );
}

// Four of five elements are the words of code and the letters of formulas, which never scroll on their own.
const MAY_SCROLL = "article *:not([tabindex], span, pre *, mjx-container *)";

// All are measured before the first is changed, as in tables.js.
function makeScrollableFocusable() {
  const found = [...document.querySelectorAll(MAY_SCROLL)].filter(scrolls);
  for (const box of found) box.tabIndex = 0;
}

fitted(makeScrollableFocusable);
