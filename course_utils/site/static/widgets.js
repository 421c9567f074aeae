// widgets.js — runs the chapters' widgets where all that they need is in the page: the still picture of each stands in a
// box with the name of its script, and its state as JSON (course_utils/site/widgets.py).
import { modelOf } from "./model.js";

async function run(box) {
  const { meta, data, step } = JSON.parse(box.querySelector("script").textContent);
  const { default: widget } = await import(`./widgets/${box.dataset.widgetScript}`);
  const buffer = new DataView(Uint8Array.from(atob(data), (one) => one.charCodeAt(0)).buffer);
  box.replaceChildren(); // the widget measures the room that it has
  widget.render({ model: modelOf({ meta, data: buffer, step, alone: true }), el: box });
}

document.querySelectorAll("[data-widget-script]").forEach(run);
