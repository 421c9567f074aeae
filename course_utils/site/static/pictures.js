// A picture that is shrunk to fit the window gets a button: it shows the picture at its full size, in a box that scrolls.
"use strict";

const SHRUNK = 0.85; // of its own width: letters of 10 points are then smaller than the text

function offer(picture) {
  const button = picture.nextElementSibling?.matches(".course-enlarge") ? picture.nextElementSibling : enlarger(picture);
  const images = [...picture.querySelectorAll("img")];
  const own = (image) => Number(image.getAttribute("width")) || image.naturalWidth;
  const shrunk = images.some((image) => image.clientWidth && image.clientWidth < SHRUNK * own(image));
  button.hidden = !shrunk && !picture.classList.contains("enlarged");
}

function enlarger(picture) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "course-enlarge";
  button.textContent = "Enlarge the picture";
  button.setAttribute("aria-pressed", "false");
  const turn = () => {
    const enlarged = picture.classList.toggle("enlarged");
    button.textContent = enlarged ? "Fit the picture" : "Enlarge the picture";
    button.setAttribute("aria-pressed", String(enlarged));
    offer(picture);
  };
  button.addEventListener("click", turn);
  picture.addEventListener("click", () => button.hidden || turn());
  picture.after(button);
  return button;
}

fitted(() => document.querySelectorAll(".course-picture").forEach(offer));
document.addEventListener("load", fitSoon, true); // a picture has arrived, and has its own width
