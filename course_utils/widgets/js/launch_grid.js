// launch_grid.js — how many blocks n elements take, and which threads of the last block are idle (chapter 00).

const WARP = 32;
const LINE = { x: 62, high: 20, gap: 4, top: 22 };

// The same as grid_state in launch_grid.py.
export function gridState(n, threads) {
  const blocks = Math.ceil(n / threads);
  const idle = blocks * threads - n;
  return { blocks, idle, idle_warps: Math.floor(idle / WARP) };
}

function describe(n, threads) {
  const { blocks, idle, idle_warps } = gridState(n, threads);
  const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const rest = idle === 0 ? "No thread is idle." : `${counted(idle, "thread")} of the last block idle, ` +
    `${idle_warps === 0 ? "but no whole warp" : `${counted(idle_warps, "whole warp")} among them`}.`;
  return `${counted(n, "element")}: ${counted(blocks, "block")} of ${threads}, ${blocks * threads} threads. ${rest}`;
}

function draw(ctx, theme, width, { n, threads, colours }) {
  const { blocks } = gridState(n, threads);
  const [room, step] = [width - LINE.x - 2, LINE.high + LINE.gap];
  const at = (thread) => LINE.x + (thread * room) / threads;
  const every = threads > 256 && room < 500 ? 128 : 64;
  for (let t = 0; t < threads; t += every) write(ctx, theme, `${t}`, at(t), 9, { size: 11 });
  write(ctx, theme, "thread", 0, 9, { size: 11 });
  for (let block = 0; block < blocks; block++) {
    const y = LINE.top + block * step;
    write(ctx, theme, `block ${block}`, 0, y + LINE.high / 2, { size: 11.5 });
    for (let first = 0; first < threads; first += WARP) {
      const busy = Math.max(0, Math.min(WARP, n - block * threads - first));
      ctx.fillStyle = colours[(first / WARP) % 2];
      ctx.fillRect(at(first), y, at(first + busy) - at(first), LINE.high);
      if (busy < WARP) {
        ctx.fillStyle = colours[2];
        ctx.fillRect(at(first + busy), y, at(first + WARP) - at(first + busy), LINE.high);
        hatch(ctx, { ink: "#000" }, at(first + busy), y, at(first + WARP) - at(first + busy), LINE.high);
      }
      frame(ctx, theme, at(first), y, at(first + WARP) - at(first), LINE.high, 0.25);
    }
  }
}

function render({ model, el }) {
  const { threads, sizes, most, colours } = model.get("meta");
  const settings = { threads };
  const canvas = element("canvas", { role: "img" });
  const status = element("div", { class: "ak-status", "aria-live": "polite" });
  const controls = stepper("elements n", most, (n) => setStep(model, n));
  const size = radios("Threads in a block", sizes, threads, (chosen) => {
    settings.threads = Number(chosen);
    redraw();
  });
  const root = element("div", { class: "ak-widget", "data-widget": "launch-grid" },
    element("div", { class: "ak-row" }, controls.prev, controls.next, controls.row),
    element("div", { class: "ak-row" }, size),
    status, canvas,
    element("div", { class: "ak-legend" }, legendItem(colours[0], "a warp, 32 threads"), legendItem(colours[1], "the next warp"), legendItem(colours[2], "idle")));
  el.append(root);

  function redraw() {
    const n = model.get("step");
    const width = widthOf(root);
    const high = LINE.top + Math.max(gridState(n, settings.threads).blocks, 1) * (LINE.high + LINE.gap);
    draw(prepare(canvas, width, high), themeOf(root), width, { n, threads: settings.threads, colours });
    controls.input.value = n;
    controls.text.textContent = `${n} (0 to ${most})`;
    status.textContent = describe(n, settings.threads);
    canvas.setAttribute("aria-label", `The blocks of a launch, a line each. ${status.textContent}`);
  }
  return keepDrawn(model, root, redraw);
}

export default { render };
