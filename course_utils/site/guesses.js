// guesses.js — on the site: makes the box of a guess of each stored question. It stands behind the widget's own file.

for (const stored of document.querySelectorAll("[data-guess]")) {
  const asked = JSON.parse(stored.dataset.guess);
  const answer = stored.querySelector("details");
  answer.querySelector("summary").remove();
  answer.querySelector("p").remove(); // the figure, which the box says
  const held = element("div", { class: "ak-held" });
  held.append(...answer.childNodes);
  let guess;
  const box = guessBox(asked, held, (stage, guessed) => {
    guess = guessed ?? guess;
    box.show(stage, guess);
  });
  box.show("open");
  stored.replaceChildren(box.root);
}
