// A recording (GIF) stands still where the reader asks for less motion, until a button plays it.
"use strict";

async function standStill(recording) {
  const moving = recording.src;
  await recording.decode();
  const still = document.createElement("canvas");
  [still.width, still.height] = [recording.naturalWidth, recording.naturalHeight];
  still.getContext("2d").drawImage(recording, 0, 0); // of a GIF its first picture
  const stopped = still.toDataURL();
  const button = document.createElement("button");
  button.type = "button";
  button.className = "course-enlarge";
  const turn = (plays) => {
    recording.src = plays ? moving : stopped;
    button.textContent = plays ? "Stop the recording" : "Play the recording";
  };
  button.addEventListener("click", () => turn(recording.src !== moving));
  turn(false);
  recording.after(button);
}

if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
  document.querySelectorAll('img[src$=".gif"]').forEach(standStill);
}
