// The questions of a page can be answered: the form that JupyterLab shows, judged here since no Python runs.
// questions.js is that form (conf.py puts it there), judging.js judges as Python does.
import form from "./questions.js";
import { judge } from "./judging.js";

const SHOWN = "The answer is shown.";
const NOTE = "Your answers are judged on this page and kept nowhere. In JupyterLab they count.";

// What Python would reply to a message of the form.
function reply(key, { action, answer, turn }) {
  const said = action === "show" ? { status: "open", summary: SHOWN, items: key.answer } : judge(key, answer);
  return { ...said, turn, answer, shown: action === "show" };
}

// What the form keeps its state in; in JupyterLab it is shared with Python.
function modelOf(sheet, keys) {
  const state = { sheet, answers: {}, replies: {} };
  const listeners = new Set();
  return {
    get: (name) => state[name],
    set: (name, value) => (state[name] = value),
    save_changes: () => {},
    on: (_, listener) => listeners.add(listener),
    off: (_, listener) => listeners.delete(listener),
    send(message) {
      // The form waits for the reply: it comes after the message was sent.
      setTimeout(() => {
        state.replies = { ...state.replies, [message.id]: reply(keys[message.id], message) };
        listeners.forEach((listener) => listener());
      });
    },
  };
}

for (const data of document.querySelectorAll("script.ak-questions-data")) {
  const { keys, ...sheet } = JSON.parse(data.textContent);
  const page = data.parentElement;
  page.replaceChildren();
  sheet.notes.push(NOTE);
  form.render({ model: modelOf(sheet, keys), el: page });
}
