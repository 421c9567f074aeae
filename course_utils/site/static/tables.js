// A table that is wider than the window shows each row as a card: below its first cell the others, each under the
// heading of its column. Where rows or columns are merged there is no such heading: the table scrolls in its box.
"use strict";

const SENTENCE = 30; // letters: a longer cell takes the width of the card

// Gives each cell the text of the heading above it. Returns whether all cells below the headings have one.
function label(table) {
  let headings = [];
  for (const row of table.rows) {
    const cells = [...row.cells];
    if (cells.length === 1 && cells[0].colSpan === headings.length) continue; // said of the row above
    if (cells.some((cell) => cell.colSpan > 1 || cell.rowSpan > 1)) return false;
    if (row.closest("thead") || cells.filter((cell) => cell.tagName === "TH").length > 1) {
      headings = cells.map((cell) => cell.textContent.trim());
      row.classList.add("course-headings");
    } else {
      if (cells.length !== headings.length) return false;
      cells.forEach((cell, n) => (cell.dataset.label = headings[n]));
      for (const cell of cells) cell.classList.toggle("course-sentence", cell.textContent.length > SENTENCE);
    }
  }
  return true;
}

// The box that scrolls the table: the table itself, or one around it.
function tooWide(table) {
  for (let box = table; box.tagName !== "ARTICLE"; box = box.parentElement) {
    const scrolls = getComputedStyle(box).overflowX !== "visible" && box.scrollWidth > box.clientWidth + 1;
    if (scrolls && (box === table || table.scrollWidth >= box.clientWidth)) return true;
  }
  return false;
}

// All are measured before the first is changed: a change makes the browser lay the page out anew before it measures.
// Formulas count at their own size, which formulas.js changes afterwards.
function fitTables() {
  const tables = [...document.querySelectorAll("article table")].filter(label);
  for (const table of tables) table.classList.remove("course-cards");
  for (const formula of document.querySelectorAll("article table mjx-container")) formula.style.removeProperty("zoom");
  for (const table of tables.filter(tooWide)) table.classList.add("course-cards");
}

fitted(fitTables);
