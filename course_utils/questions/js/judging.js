// judging.js — questions/judging.py and the remarks of questions/sheet.py for the browser, where no Python runs. A key
// (questions/key.py) holds what an answer is judged by.

import { UnreadableNumber, agrees, howFarOff, readNumber } from "./numbers.js";

const NEAR_A_MISTAKE = 0.01;
const SILENT = { status: "open", said: "" };
const SIGNS = { right: "✓", wrong: "✗", open: "?" };
const WORDS = { right: "right", wrong: "not right", open: "" };

// The reply to an answer: { status, summary, items }, an item { status, sign, words, said } for each part.
export function judge(key, answer) {
  const { status, summary, items } = verdictOn(key, answer);
  const words = wordsOf(key, status, items);
  const remark = ({ status, said }, n) => ({ status, sign: words[n] ? SIGNS[status] : "", words: words[n], said });
  return { status, summary, items: items.map(remark) };
}

function verdictOn(key, answer) {
  if (key.options && key.kind === "votes") return votes(key, answer);
  if (key.options) return oneOf(key, answer);
  if ("holds" in key) return trueOrFalse(key, answer);
  const texts = [answer].flat(2);
  const items = key.figures.map((figure, n) => judgeFigure(figure, texts[n]));
  if (key.kind === "aggregate") forgiveTheTotal(key, texts, items);
  return summedUp(key, items);
}

// ---- options and statements

function oneOf(key, answer) {
  const items = key.options.map(() => SILENT);
  if (answer === null) return { status: "open", summary: "Nothing is chosen yet.", items };
  const { right, why } = key.options[answer];
  items[answer] = { status: right ? "right" : "wrong", said: why };
  return verdict(key, items[answer].status, "", items);
}

function trueOrFalse(key, answer) {
  if (answer === null) return { status: "open", summary: "Nothing is chosen yet.", items: [SILENT, SILENT] };
  const item = { status: answer === key.holds ? "right" : "wrong", said: key.why };
  const said = `The statement ${key.holds ? "holds" : "does not hold"}.`;
  return verdict(key, item.status, said, answer ? [item, SILENT] : [SILENT, item]);
}

function votes(key, answer) {
  const statements = key.options;
  if (!answer.length) {
    const summary = "Nothing is marked yet; at least one statement holds.";
    return { status: "open", summary, items: statements.map(() => SILENT) };
  }
  const holding = statements.filter((one) => one.right).length;
  const found = answer.filter((index) => statements[index].right).length;
  const wrong = answer.length - found, missing = holding - found;
  if (!wrong && !missing) {
    const said = `You marked exactly the ${count(holding, "statement")} that ${verb(holding, "hold")}.`;
    return verdict(key, "right", said, statements.map((one) => ({ status: "right", said: one.why })));
  }
  let said = `${found} of the ${count(holding, "statement")} that ${verb(holding, "hold")} ${be(found)} marked`;
  said += missing ? `, ${missing} ${be(missing)} still missing.` : ".";
  if (wrong) said += ` ${wrong} that you marked ${verb(wrong, "do")} not hold.`;
  const items = statements.map((one, index) =>
    !answer.includes(index) ? SILENT : one.right ? { status: "right", said: "" } : { status: "wrong", said: one.why },
  );
  return verdict(key, "wrong", said, items);
}

// ---- typed figures

function judgeFigure(figure, text) {
  if (!text.trim()) return SILENT;
  const number = readOrSay(text, figure.unit);
  if (typeof number === "string") return { status: "open", said: number };
  if (agrees(number, figure.value, figure.tolerance)) return { status: "right", said: figure.right };
  const named = figure.mistakes.filter((mistake) => isNear(number, mistake, figure));
  if (!named.length) return { status: "wrong", said: howFarOff(number, figure.value, figure.unit) };
  const distance = (mistake) => Math.abs(mistake.value - number);
  return { status: "wrong", said: named.reduce((best, one) => (distance(one) < distance(best) ? one : best)).why };
}

// The typed number; where it cannot be read, what to type.
function readOrSay(text, unit) {
  try {
    return readNumber(text, unit);
  } catch (error) {
    if (error instanceof UnreadableNumber) return error.message;
    throw error;
  }
}

function isNear(number, mistake, figure) {
  const most = Math.max(figure.tolerance, NEAR_A_MISTAKE) * Math.abs(mistake.value);
  return Math.abs(number - mistake.value) <= Math.min(most, Math.abs(mistake.value - figure.value) / 2);
}

// A total that is the sum of wrong parts is said to be so.
function forgiveTheTotal(key, texts, items) {
  if (items.at(-1).status !== "wrong" || items.slice(0, -1).every((one) => one.status !== "wrong")) return;
  const unit = key.figures[0].unit;
  const parts = texts.slice(0, -1).map((text) => readOrSay(text, unit));
  if (parts.some((part) => typeof part === "string")) return;
  const sum = parts.reduce((a, b) => a + b, 0);
  if (!agrees(readNumber(texts.at(-1), unit), sum, NEAR_A_MISTAKE / 2)) return;
  const said = "It is the sum of the parts that you typed: it will be right when they are.";
  items[items.length - 1] = { status: "wrong", said };
}

function summedUp(key, items) {
  const number = (status) => items.filter((one) => one.status === status).length;
  const right = number("right"), wrong = number("wrong"), open = number("open");
  const unreadable = items.filter((one) => one.status === "open" && one.said).length;
  if (!open) {
    const several = items.length > 1 ? `${right} of ${items.length} figures ${be(right)} right.` : "";
    return verdict(key, wrong ? "wrong" : "right", wrong ? several : "", items);
  }
  let summary = unreadable ? "The figure cannot be read." : "Nothing is typed yet.";
  if (items.length > 1) {
    const parts = [
      open > unreadable && `${open - unreadable} of ${items.length} figures missing`,
      unreadable && `${unreadable} that cannot be read`,
      right && `${right} right`,
      wrong && `${wrong} not right`,
    ];
    summary = `Not complete: ${parts.filter(Boolean).join(", ")}.`;
  }
  return { status: "open", summary, items };
}

// ---- words

function wordsOf(key, status, items) {
  if (key.figures) return items.map((item) => WORDS[item.status] || (item.said ? "not readable" : ""));
  if (key.kind !== "votes") return items.map((item) => WORDS[item.status]);
  const holds = key.options.map((one) => (one.right ? "holds" : "does not hold"));
  if (status === "right") return holds.map((word) => (word === "holds" ? word : "rightly left out"));
  return items.map((item, n) => (item.status === "open" ? "" : holds[n]));
}

function verdict(key, status, said, items) {
  const words = [status === "right" ? "Right." : "Not right.", said];
  if (status === "wrong") words.push(`Read again: “${key.read_again}”.`);
  return { status, summary: words.filter(Boolean).join(" "), items };
}

const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const verb = (number, word) => (number !== 1 ? word : word.endsWith("o") ? `${word}es` : `${word}s`);
const be = (number) => (number === 1 ? "is" : "are");
