// guesses.js — makes the box of a guess, as JupyterLab has it, of each stored question.
import { guessBox } from "./widgets/guesses.js";

for (const stored of document.querySelectorAll("[data-guess]")) {
  const asked = JSON.parse(stored.dataset.guess);
  const answer = stored.querySelector("details");
  answer.querySelector("summary").remove();
  answer.querySelector("p").remove(); // the figure, which the box says
  const held = document.createElement("div");
  held.className = "ak-held";
  held.append(...answer.childNodes);
  let guess;
  const box = guessBox(asked, held, (stage, guessed) => {
    guess = guessed ?? guess;
    box.show(stage, guess);
  });
  box.show("open");
  stored.replaceChildren(box.root);
}
