// memory.js — one array of the recording as a matrix of cells: what each holds, who wrote it, how old it is, or its bank.

const ALARM = "#b3261e"; // on a cell, whose colours and white rim are the same in both themes
const GRID = { gutter: 40, top: 16, strip: 12, gap: 6, readable: 34, least: 4, most: 46, tall: 400, low: 225 };

const MOST_COLUMNS = 256; // of shared memory: a tile that is declared as one long row has the width of the banks

// How an array lies as a matrix: its type, and the rows and columns of elements. The components of a vector stand side by
// side. lead: places before the first element, where each column is a bank and the array begins at another than the first.
function matrixOf(rec, view) {
  const array = rec.arrays[view.array];
  const type = typeIn(array, view);
  const size = NUMBERS[type].size;
  const total = Math.floor(wholeBytes(array) / size);
  const shape = array.dtype === "bytes" ? [] : shapeOfRows(array);
  const areBanks = array.dtype === "bytes" || (view.byBank && array.space === "shared");
  const isLong = array.space === "shared" && shape.at(-1) > MOST_COLUMNS;
  const columns = Math.max(1, areBanks || isLong ? (4 * BANKS) / size : shape.length > 1 ? shape.at(-1) : Math.min(total, BANKS));
  const lead = areBanks ? Math.floor((array.begin % (4 * BANKS)) / size) : 0;
  return { array, type, size, columns, rows: Math.ceil((lead + total) / columns), total, lead };
}

const shapeOfRows = ({ shape, is_vector: isVector }) => (isVector ? [...shape.slice(0, -2), shape.slice(-2).reduce((a, b) => a * b)] : shape);

const wholeBytes = (array) => Math.max(array.end, array.itemsize * array.shape.reduce((product, n) => product * n, 1));

// What stands beside a row, where only every so many have room for it: its index along the last dimension before the
// columns that has several, and where that begins anew, the one or two before, too: "2:0", "4:2:0". "" for nothing.
export function rowLabel({ array, columns }, row, every) {
  const { dtype } = array;
  const shape = shapeOfRows(array);
  const sizes = dtype !== "bytes" && columns === shape.at(-1) ? shape.slice(0, -1).filter((size) => size > 1) : [];
  const inner = sizes.length > 1 ? sizes.at(-1) : Infinity;
  const index = row % inner;
  if ((inner < every ? row : index) % every) return "";
  if (sizes.length < 2 || index > 0) return `${index}`;
  const outer = Math.floor(row / inner);
  const before = sizes.length > 2 ? `${Math.floor(outer / sizes.at(-2)) % sizes.at(-3)}:` : "";
  return `${before}${outer % sizes.at(-2)}:0`;
}

// Cells in pixels, how many are seen, and where the window on the matrix begins.
function windowOf(matrix, room, tall, readable, corner) {
  const space = room - GRID.gutter - GRID.strip - GRID.gap;
  let wide = Math.min(Math.max(Math.floor(space / matrix.columns), GRID.least), GRID.most);
  if (readable) wide = Math.max(wide, GRID.readable);
  const most = wide >= GRID.readable ? 20 : Math.max(tall <= GRID.low ? 6 : 8, Math.min(wide, 16));
  const fitting = Math.floor(tall / matrix.rows); // a little lower, if all rows can be seen then
  const high = fitting >= Math.max(8, most / 2) ? Math.min(most, fitting) : most;
  const columns = Math.min(matrix.columns, Math.floor(space / wide));
  const rows = Math.min(matrix.rows, Math.floor(tall / high));
  return {
    wide, high, columns, rows,
    top: Math.min(Math.max(corner.top, 0), matrix.rows - rows),
    left: Math.min(Math.max(corner.left, 0), matrix.columns - columns),
  };
}

// Where a window of `seen` places begins so that those from `first` to `last` are in it: as far as they fit, and without
// moving where they are in it already.
export function follow(begin, seen, first, last) {
  if (first >= begin && Math.min(last, first + seen - 1) < begin + seen) return begin;
  return Math.max(0, last - first < seen ? first - Math.floor((seen - (last - first + 1)) / 3) : first);
}

// isShort: with fewer words and controls, the others folded.
function memoryPanel(rec, act, isShort = false) {
  const canvas = control("canvas", { role: "application", tabindex: 0, class: "ak-grid" });
  const arrays = element("div", { class: "ak-arrays", role: "group", "aria-label": "array" },
    ...rec.arrays.map((array) => control("button", {
      type: "button", "data-array": array.number, onclick: () => act.set({ array: array.number, followsArray: false }),
    }, array.name)));
  const choice = select("", Object.fromEntries(rec.arrays.map(({ name, number }) => [number, name])), (array) => act.set({ array: Number(array), followsArray: false }));
  choice.input.setAttribute("aria-label", "array");
  const names = rec.arrays.reduce((sum, { name }) => sum + 7.3 * name.length + 24, 90); // pixels of a row with the title, a button for each and a mark
  const colouring = select("colour", COLOURINGS, (colour) => act.set({ colour }));
  const types = select("read as", Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, name])), (type) => act.set({ type }));
  const follows = check("follow the step", (followsArray) => act.set({ followsArray }));
  const readable = check("figures", (figures) => act.set({ figures }));
  const byBank = check("32 banks a row", (on) => act.set({ byBank: on }));
  const more = fold("More", element("div", { class: "ak-row" }, types.row, readable.row, byBank.row));
  const hideMore = hiding(more);
  const what = element("div", { class: "ak-note ak-array-words" });
  const legend = element("div", { class: "ak-legend ak-note" });
  const corners = rec.arrays.map(({ low, itemsize, shape }) => ({ top: Math.floor(low / itemsize / (shape.at(-1) || 1)), left: 0 }));
  const spreads = new Map();
  const small = new OffscreenCanvas(1, 1); // a pixel for each cell
  let said = ""; // what the legend is about
  let drawn = null; // what the last picture showed, for a click

  function draw(view, theme, room, tall = GRID.tall) {
    const matrix = matrixOf(rec, view);
    const touched = touchedOf(view, matrix);
    const corner = corners[view.array];
    let seen = windowOf(matrix, room, tall, view.figures, corner);
    const wanted = view.holdsWindow ? [] : view.cell?.array === view.array && view.looksAtCell ? [placeIn(matrix, view.cell.offset)] : touched.map(({ box }) => box);
    if (wanted.length) {
      const rows = wanted.flatMap(({ row, last }) => [row, last ?? row]);
      const columns = wanted.map(({ column }) => column);
      corner.top = follow(seen.top, seen.rows, Math.min(...rows), Math.max(...rows));
      corner.left = follow(seen.left, seen.columns, Math.min(...columns), Math.max(...columns));
      seen = windowOf(matrix, room, tall, view.figures, corner);
    }
    Object.assign(corner, { top: seen.top, left: seen.left });
    const key = `${view.array} ${matrix.type}`;
    if (!spreads.has(key)) spreads.set(key, spreadOf(rec, view.array, matrix.type));
    const spread = spreads.get(key);
    drawn = { matrix, seen, touched };
    const size = [GRID.gutter + seen.columns * seen.wide + GRID.gap + GRID.strip, GRID.top + seen.rows * seen.high + 2];
    const ctx = prepare(canvas, ...size);
    const hasNaN = drawFill(ctx, theme, view, matrix, seen, spread);
    drawAxes(ctx, theme, matrix, seen);
    const flying = drawFlights(ctx, theme, view, matrix, seen);
    drawTouched(ctx, theme, view, matrix, seen, touched);
    drawStrip(ctx, theme, matrix, seen, touched);
    arrays.hidden = names > (isShort ? room : 2 * room);
    choice.hide(!arrays.hidden);
    choice.input.value = view.array;
    for (const option of choice.input.options) {
      const words = `${rec.arrays[option.value].name}${Number(option.value) === rec.steps.array[view.step] ? " •" : ""}`;
      if (option.textContent !== words) option.textContent = words;
    }
    for (const button of arrays.children) {
      const here = Number(button.dataset.array);
      button.setAttribute("aria-pressed", here === view.array);
      button.classList.toggle("ak-touched", here === rec.steps.array[view.step]);
    }
    const hasRoom = windowOf(matrix, room, tall, false, corner).wide >= GRID.readable; // for figures, without being asked
    say(view, matrix, seen, spread, touched, { flying, hasNaN }, hasRoom);
  }

  // What the lanes of this step, and of the other party of a finding, touch in the array shown.
  function touchedOf(view, matrix) {
    const of = (step, other) => {
      if (step < 0 || rec.steps.array[step] !== view.array) return [];
      const hazards = other ? [] : hazardsOf(rec, step).map(({ lane }) => lane);
      return lanesOf(rec, step).map(({ lane, offset }) => ({
        lane, offset, other,
        writes: rec.writes.has(rec.steps.op[step]),
        hazard: hazards.includes(lane),
        box: { ...placeIn(matrix, offset), last: placeIn(matrix, offset + rec.steps.width[step] - 1).row },
        width: rec.steps.width[step],
      }));
    };
    return [...of(view.other, true), ...of(view.step, false)];
  }

  const placeIn = (matrix, offset) => {
    const index = matrix.lead + Math.floor(offset / matrix.size);
    return { row: Math.floor(index / matrix.columns), column: index % matrix.columns };
  };

  // Returns whether a NaN is seen.
  function drawFill(ctx, theme, view, matrix, seen, spread) {
    const image = new ImageData(seen.columns, seen.rows);
    const pixels = new Uint32Array(image.data.buffer);
    const look = lookOf(rec, view, matrix, spread);
    const least = view.colour === "value" ? GRID.readable - 4 : 14; // else a few short numbers would stand alone
    const texts = [];
    const beyond = []; // places before and behind the array
    for (let row = 0; row < seen.rows; row++) {
      for (let column = 0; column < seen.columns; column++) {
        const index = (seen.top + row) * matrix.columns + seen.left + column - matrix.lead;
        if (index < 0 || index >= matrix.total) {
          beyond.push([row, column]);
          continue;
        }
        const colour = look.colour(index * matrix.size);
        pixels[row * seen.columns + column] = colour;
        if (seen.wide >= least && seen.high >= 10) texts.push([row, column, colour, look.text(index * matrix.size)]);
      }
    }
    const [x, y, w, h] = [GRID.gutter, GRID.top, seen.columns * seen.wide, seen.rows * seen.high];
    if (pixels.includes(0)) {
      ctx.fillStyle = hatching(ctx, theme.ink);
      ctx.fillRect(x, y, w, h);
    }
    Object.assign(small, { width: seen.columns, height: seen.rows });
    small.getContext("2d").putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(small, x, y, w, h);
    if (seen.wide >= 10) {
      ctx.fillStyle = "rgba(0, 0, 0, 0.22)";
      for (let column = 1; column < seen.columns; column++) ctx.fillRect(x + column * seen.wide - 0.5, y, 1, h);
      for (let row = 1; row < seen.rows; row++) ctx.fillRect(x, y + row * seen.high - 0.5, w, 1);
    }
    for (const [row, column] of beyond) ctx.clearRect(x + column * seen.wide, y + row * seen.high, seen.wide, seen.high);
    ctx.font = `11px ${theme.font}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (const [row, column, colour, text] of texts) {
      ctx.fillStyle = colour ? (luminance(colour) > 0.36 ? "#000" : "#fff") : theme.ink;
      if (6.2 * text.length < seen.wide) ctx.fillText(text, x + (column + 0.5) * seen.wide, y + (row + 0.5) * seen.high + 0.5);
    }
    frame(ctx, theme, x, y, w, h);
    return pixels.includes(OF_NAN);
  }

  function drawAxes(ctx, theme, matrix, seen) {
    const muted = { size: 10, colour: theme.ink };
    ctx.globalAlpha = 0.75;
    const every = stepOf(seen.high, 14);
    for (let row = 0; row < seen.rows; row++) {
      const label = rowLabel(matrix, seen.top + row, every);
      if (label) write(ctx, theme, label, GRID.gutter - 6, GRID.top + (row + 0.5) * seen.high + 0.5, { ...muted, align: "right" });
    }
    const across = stepOf(seen.wide, 24);
    for (let column = 0; column < seen.columns; column++) {
      const index = seen.left + column;
      if (index % across) continue;
      write(ctx, theme, `${index}`, GRID.gutter + (column + 0.5) * seen.wide, 8, { ...muted, align: "center" });
    }
    ctx.globalAlpha = 1;
  }

  // A dot in each place of the window where a copy that is under way will land. Returns whether there is any.
  function drawFlights(ctx, theme, view, matrix, seen) {
    const landings = inFlight(rec, view.step).flatMap(({ lands }) => lands).filter((step) => step > view.step && rec.steps.array[step] === view.array);
    const dots = landings.flatMap((landing) => lanesOf(rec, landing).flatMap(({ offset }) => boxesOf(matrix, seen, offset, rec.steps.width[landing])));
    for (const [colour, size] of [[theme.ground, 6], [theme.ink, 4]]) {
      ctx.fillStyle = colour;
      for (const [x, y, w, h] of dots) ctx.fillRect(Math.round(x + w / 2 - size / 2), Math.round(y + h / 2 - size / 2), size, size);
    }
    return dots.length > 0;
  }

  // A read has an outline; a write an outline and a corner; a hazard is dashed, with a mark; the other party is dotted.
  function drawTouched(ctx, theme, view, matrix, seen, touched) {
    ctx.save();
    ctx.beginPath();
    ctx.rect(GRID.gutter - 2, GRID.top - 2, seen.columns * seen.wide + 4, seen.rows * seen.high + 4);
    ctx.clip();
    for (const one of touched) {
      for (const box of boxesOf(matrix, seen, one.offset, one.width)) drawLane(ctx, theme, view, one, box);
    }
    if (view.cell?.array === view.array) {
      for (const [x, y, w, h] of boxesOf(matrix, seen, view.cell.offset, matrix.size)) {
        ctx.setLineDash([]);
        ctx.strokeStyle = theme.ground;
        ctx.lineWidth = 5;
        ctx.strokeRect(x - 1, y - 1, w + 2, h + 2);
        ctx.strokeStyle = theme.ink;
        ctx.lineWidth = 2.5;
        ctx.strokeRect(x - 1, y - 1, w + 2, h + 2);
      }
    }
    ctx.restore();
  }

  function drawLane(ctx, theme, view, { lane, writes, hazard, other }, [x, y, w, h]) {
    const chosen = lane === view.lane && !other;
    const inset = chosen ? 1 : 0.75;
    ctx.setLineDash([]);
    ctx.strokeStyle = "#fff"; // in the dark theme, too: the colours of the cells are the same there
    ctx.lineWidth = chosen ? 4.5 : 3;
    ctx.strokeRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset);
    ctx.strokeStyle = hazard ? ALARM : writes ? COLOURS.pick : COLOURS.Q;
    ctx.setLineDash(hazard ? [4, 2] : other ? [1.5, 2] : []);
    ctx.lineWidth = chosen ? 3 : 1.75;
    ctx.strokeRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset);
    ctx.setLineDash([]);
    if (writes && w >= 6) {
      ctx.fillStyle = COLOURS.pick;
      ctx.beginPath();
      ctx.moveTo(x, y);
      ctx.lineTo(x + Math.min(8, w * 0.7), y);
      ctx.lineTo(x, y + Math.min(8, h * 0.7));
      ctx.fill();
    }
    if (!hazard || w < 10) return;
    ctx.fillStyle = "#fff";
    ctx.fillRect(x + w - 9, y + 1, 8, 10);
    write(ctx, theme, "!", x + w - 3, y + 6, { colour: ALARM, size: 10, bold: true, align: "right" });
  }

  // The parts of the window that some bytes cover: one rectangle for each row.
  function boxesOf(matrix, seen, offset, width) {
    const found = [];
    for (let at = offset; at < offset + width;) {
      const { row, column } = placeIn(matrix, at);
      const inRow = Math.min(Math.ceil((offset + width - at) / matrix.size), matrix.columns - column);
      at = (Math.floor(at / matrix.size) + inRow) * matrix.size;
      const [left, right] = [Math.max(column, seen.left), Math.min(column + inRow, seen.left + seen.columns)];
      if (row < seen.top || row >= seen.top + seen.rows || left >= right) continue;
      found.push([
        GRID.gutter + (left - seen.left) * seen.wide, GRID.top + (row - seen.top) * seen.high,
        (right - left) * seen.wide, seen.high,
      ]);
    }
    return found;
  }

  // The whole array beside the window: where the window is, and the rows that are touched.
  function drawStrip(ctx, theme, matrix, seen, touched) {
    const [x, high] = [GRID.gutter + seen.columns * seen.wide + GRID.gap, seen.rows * seen.high];
    frame(ctx, theme, x, GRID.top, GRID.strip, high, 0.35);
    const y = (row) => GRID.top + (row / matrix.rows) * high;
    ctx.save();
    ctx.fillStyle = theme.ink;
    ctx.globalAlpha = 0.18;
    ctx.fillRect(x + 1, y(seen.top), GRID.strip - 2, Math.max(3, y(seen.top + seen.rows) - y(seen.top)));
    ctx.globalAlpha = 1;
    for (const { box, writes, other } of touched) {
      ctx.fillStyle = other ? theme.ink : writes ? COLOURS.pick : COLOURS.Q;
      ctx.fillRect(x + 2, y(box.row), GRID.strip - 4, Math.max(2, high / matrix.rows));
    }
    ctx.restore();
  }

  function say(view, matrix, seen, spread, touched, { flying, hasNaN }, hasRoom) {
    const { array, type } = matrix;
    const shape = array.dtype === "bytes" ? plural(wholeBytes(array), "byte") : array.shape.length ? `[${array.shape.join(", ")}]` : "";
    const first = array.shape.length > 2 && array.dtype !== "bytes" ? elementName(array, seen.top * matrix.columns * matrix.size) : "";
    const form = `${array.dtype === "bytes" ? `read as ${type}` : type} ${shape}`.trimEnd();
    what.textContent = isShort ? `${array.space}, ${form}${first ? `, seen from ${first}` : ""}`
      : `${array.space} memory, ${form}.${first ? ` Seen: from ${first} on.` : ""}`;
    const marks = hasNaN ? [[swatch(NAN), "NaN"]] : [];
    if (touched.some(({ writes, other }) => !writes && !other)) marks.push([outlined(COLOURS.Q), "read now"]);
    if (touched.some(({ writes, other }) => writes && !other)) marks.push([outlined(COLOURS.pick, "ak-corner"), "written now"]);
    if (touched.some(({ hazard }) => hazard)) marks.push([outlined("var(--ak-alarm)", "ak-dashed"), "hazard: no barrier between"]);
    if (touched.some(({ other }) => other)) marks.push([outlined("currentColor", "ak-dotted"), "other party"]);
    if (flying) marks.push([element("b", {}, "▪"), "a copy in flight lands here"]);
    const key = [view.colour, view.array, spread, ...marks.map(([, words]) => words)].join();
    if (key !== said) legend.replaceChildren(...legendOf(rec, view, array, spread), ...marks.map(([mark, words]) => element("span", {}, mark, words)));
    said = key;
    for (const [part, value] of [[colouring, view.colour], [types, view.type]]) part.input.value = value;
    follows.input.checked = view.followsArray;
    follows.hide(isShort && view.followsArray);
    readable.input.checked = view.figures;
    byBank.input.checked = view.byBank;
    const folded = [
      [types, array.dtype !== "bytes"],
      [readable, hasRoom],
      [byBank, array.space !== "shared" || array.dtype === "bytes" || (!view.byBank && 4 * BANKS === matrix.columns * matrix.size)],
    ];
    for (const [part, isOfNoUse] of folded) part.hide(isOfNoUse);
    hideMore(folded.every(([, isOfNoUse]) => isOfNoUse));
    const chosen = view.cell?.array === view.array ? ` Chosen: ${elementName(array, view.cell.offset)} = ${valueWords(view, matrix)}.` : "";
    canvas.setAttribute("aria-label",
      `${array.name}, ${what.textContent.replace(/\.?$/, ".")} Rows ${seen.top} to ${seen.top + seen.rows - 1} of ${matrix.rows}, ` +
      `columns ${seen.left} to ${seen.left + seen.columns - 1} of ${matrix.columns}, coloured by ${COLOURINGS[view.colour]}.${chosen} ` +
      "Arrow keys choose a cell.");
  }

  function valueWords(view, { array, type, size }) {
    const value = elementAt(rec, array.number, view.cell.offset, type, view.step);
    const never = array.space === "shared" && lastWrite(rec, array.number, view.cell.offset, size, view.step) < 0;
    return never ? "never written" : value === undefined ? "beyond what this block touches" : brief(value, 8);
  }

  const cellOf = (row, column) => {
    const { matrix } = drawn;
    const index = Math.min(Math.max(row, 0), matrix.rows - 1) * matrix.columns + Math.min(Math.max(column, 0), matrix.columns - 1);
    return { array: matrix.array.number, offset: Math.min(Math.max(index - matrix.lead, 0), matrix.total - 1) * matrix.size };
  };
  const choose = (cell) => act.set({ cell, looksAtCell: true, holdsWindow: false });

  canvas.addEventListener("click", ({ offsetX, offsetY }) => {
    const scale = parseFloat(canvas.style.width) / canvas.clientWidth;
    const { matrix, seen } = drawn;
    const [x, y] = [offsetX * scale - GRID.gutter, offsetY * scale - GRID.top];
    if (x > seen.columns * seen.wide) {
      corners[matrix.array.number].top = Math.round((y / (seen.rows * seen.high)) * matrix.rows - seen.rows / 2);
      act.set({ looksAtCell: false, holdsWindow: true });
    } else if (x >= 0 && y >= 0) {
      choose(cellOf(seen.top + Math.floor(y / seen.high), seen.left + Math.floor(x / seen.wide)));
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const { matrix, seen } = drawn;
    const moves = {
      ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      PageUp: [-seen.rows, 0], PageDown: [seen.rows, 0], Home: [0, -matrix.columns], End: [0, matrix.columns],
    };
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation(); // outside of the grid the arrows move through time
    const at = drawn.chosen?.array === matrix.array.number ? placeIn(matrix, drawn.chosen.offset) : null;
    choose(at ? cellOf(at.row + move[0], at.column + move[1]) : cellOf(seen.top, seen.left));
  });

  return {
    node: element("section", { class: "ak-player-memory" },
      element("div", { class: "ak-player-head" }, element("span", { class: "ak-title" }, "Memory"), arrays, choice.row),
      what, element("div", { class: "ak-canvas-room" }, canvas),
      ...(isShort
        ? [element("div", { class: "ak-row ak-memory-foot" }, colouring.row, legend, follows.row, more)]
        : [element("div", { class: "ak-row" }, colouring.row, types.row, readable.row, byBank.row, follows.row), legend])),
    draw(view, theme, room, tall) {
      draw(view, theme, room, tall);
      drawn.chosen = view.cell;
    },
    valueWords: (view) => valueWords(view, matrixOf(rec, { ...view, array: view.cell.array })),
  };
}

// How many places apart labels stand: 1, 2, 4, 8, ... so that each has `room` pixels.
function stepOf(size, room) {
  let every = 1;
  while (every * size < room) every *= 2;
  return every;
}

// A select with its label in front.
function select(label, options, change) {
  const input = control("select", { onchange: () => change(input.value) },
    ...Object.entries(options).map(([value, words]) => element("option", { value }, words)));
  return rowOf(input, label, input);
}

function check(label, change) {
  const input = control("input", { type: "checkbox", onchange: () => change(input.checked) });
  return rowOf(input, input, label);
}

// An input in its label; hide(isOfNoUse) hides both.
function rowOf(input, ...parts) {
  const row = element("label", {}, ...parts);
  return { input, row, hide: hiding(row) };
}

// Hides a part while it is of no use, but not while it has the keys: else they would be nowhere.
function hiding(node) {
  let isOfNoUse = false;
  node.addEventListener("focusout", ({ relatedTarget }) => { node.hidden = isOfNoUse && !node.contains(relatedTarget); });
  return (now) => {
    isOfNoUse = now;
    node.hidden = now && !node.matches(":focus-within");
  };
}
