// The questions of a page can be answered: the form that JupyterLab shows, judged here since no Python runs.
// judging.js judges as Python does.
import { judge } from "./judging.js";
import { modelOf } from "./model.js";
import form from "./widgets/questions.js";

const SHOWN = "The answer is shown.";
const NOTE = "Your answers are judged on this page and kept nowhere. In JupyterLab they count.";

// What Python would reply to a message of the form.
function reply(key, { action, answer, turn }) {
  const said = action === "show" ? { status: "open", summary: SHOWN, items: key.answer } : judge(key, answer);
  return { ...said, turn, answer, shown: action === "show" };
}

for (const data of document.querySelectorAll("script.ak-questions-data")) {
  const { keys, ...sheet } = JSON.parse(data.textContent);
  const page = data.parentElement;
  page.replaceChildren();
  sheet.notes.push(NOTE);
  const model = modelOf({ sheet, answers: {}, replies: {} }, (message) =>
    model.set("replies", { ...model.get("replies"), [message.id]: reply(keys[message.id], message) }));
  form.render({ model, el: page });
}
