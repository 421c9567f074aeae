// recording.js — a recorded launch, without a page: what happened at each step, and what memory and variables held before
// it. The columns are described at `Recording.packed` in course_utils/emulator/recording.py.
//
// Nothing is replayed. For each cell of memory the steps that wrote it are kept in order, so that its value before any step
// is found by halving: forwards, backwards and a jump of 100,000 steps cost the same, and only what is shown is looked up.

const WRITING = ["write", "atomic", "copy write"];
const READING = ["read", "atomic", "copy read"];
const WITH_ADDRESSES = ["read", "write", "atomic", "copy read", "copy write"]; // their lanes have rows
const [AT_LAUNCH, UNKNOWN] = [-1, -2]; // in the place of the step that wrote a byte
const SLICE = 12; // milliseconds of unpacking, after which the page may draw
const TYPES = { int32: Int32Array, uint32: Uint32Array, uint8: Uint8Array };

// The recording that Python packed: `meta` as an object, `packed` a DataView of the deflated columns. Local variables are
// most of a long one, and its last columns: they are there when the promise rec.whole is kept, and rec.isWhole then.
export async function loadRecording(meta, packed) {
  const take = columnsIn(packed);
  const isLate = ({ name }) => name.startsWith("changes.");
  const taken = async (wanted) => {
    const columns = {};
    for (const described of wanted) columns[described.name.replace(/^(steps|changes)\./, "")] = await take(described);
    return columns;
  };
  const { "lanes.offset": offsets, "lanes.into": into, "words.value": words, "arrays.initial": initial, ...steps } =
    await taken(meta.columns.filter((one) => !isLate(one)));
  const rec = {
    meta, steps, offsets, into, words, initial,
    changes: null,
    isWhole: false,
    count: steps.op.length,
    op: Object.fromEntries(meta.ops.map((name, code) => [name, code])),
  };
  rec.wordBytes = new Uint8Array(rec.words.buffer, rec.words.byteOffset, rec.words.byteLength);
  rec.writes = codes(meta, WRITING);
  rec.reads = codes(meta, READING);
  rec.addressed = codes(meta, WITH_ADDRESSES);
  rec.firstWord = firstWords(rec);
  rec.arrays = arraysOf(rec);
  rec.written = writtenOf(rec);
  rec.ofWarp = historyOf(meta.warps + 1, (see) => forEachStep(rec, (step) => see(rec.steps.warp[step] + 1, step, step)));
  rec.ofPlace = historyOf(meta.places.length, (see) => forEachStep(rec, (step) => {
    if (rec.steps.place[step] >= 0) see(rec.steps.place[step], step, step);
  }));
  rec.waits = historyOf(meta.warps + 1, (see) => forEachStep(rec, (step) => {
    const own = rec.steps.array[step] < 0 && rec.steps.extra[step] > 16; // for what the warp itself began: it orders nobody else's
    if (rec.steps.op[step] === rec.op.wait && !own) see(rec.steps.warp[step] + 1, step, step);
  }));
  rec.warpBarriers = historyOf(meta.warps + 1, (see) => forEachStep(rec, (step) => {
    if (rec.steps.op[step] === rec.op["warp barrier"]) see(rec.steps.warp[step] + 1, step, step);
  }));
  rec.openings = openingsOf(rec);
  rec.flights = flightsOf(rec);
  rec.mbarriers = mbarriersOf(rec);
  rec.variables = variablesOf(meta);
  rec.ofWords = []; // of each warp what was new in its variables, once somebody has asked for it
  rec.findings = meta.findings;
  rec.whole = taken(meta.columns.filter(isLate)).then((changes) => {
    rec.changes = changes;
    rec.isWhole = true;
  });
  return rec;
}

// A function that gives the next column of the deflated ones behind a DataView, in the order in which they lie there. What
// comes after it is inflated when it is asked for.
function columnsIn(packed) {
  const bytes = new Uint8Array(packed.buffer, packed.byteOffset, packed.byteLength);
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  let rest = new Uint8Array(0); // what has been inflated and belongs to the next column
  let until = performance.now() + SLICE;
  return async ({ name, type, count, delta }) => {
    const values = new TYPES[type](count);
    const into = new Uint8Array(values.buffer);
    for (let at = 0; at < into.length;) {
      if (!rest.length) rest = (await reader.read()).value;
      if (!rest) throw new Error(`the recording ends in its column ${name}`);
      const part = rest.subarray(0, into.length - at);
      into.set(part, at);
      at += part.length;
      rest = rest.subarray(part.length);
      if (performance.now() < until) continue;
      await new Promise((resume) => { setTimeout(resume); });
      until = performance.now() + SLICE;
    }
    if (delta) for (let n = 1; n < count; n++) values[n] += values[n - 1];
    return values;
  };
}

const codes = (meta, names) => new Set(names.map((name) => meta.ops.indexOf(name)));

function forEachStep(rec, visit) {
  for (let step = 0; step < rec.count; step++) visit(step);
}

// How many lanes took part.
export function lanesIn(mask) {
  let [count, rest] = [0, mask >>> 0];
  for (; rest; rest &= rest - 1) count++;
  return count;
}

// The lanes of a step, and of each the byte offset in the array; none for a step without addresses.
export function lanesOf(rec, step) {
  const { op, mask, first, array } = rec.steps;
  const found = [];
  if (array[step] < 0 || !rec.addressed.has(op[step])) return found;
  let row = first[step];
  for (let lane = 0; lane < 32; lane++) {
    if ((mask[step] >>> lane) & 1) found.push({ lane, row, offset: rec.offsets[row++] });
  }
  return found;
}

// Where the words of a writing step begin in words.value; of others, where the next begin.
function firstWords(rec) {
  const { op, mask, width } = rec.steps;
  const first = new Int32Array(rec.count + 1);
  for (let step = 0; step < rec.count; step++) {
    first[step + 1] = first[step] + (rec.writes.has(op[step]) ? lanesIn(mask[step]) * Math.ceil(width[step] / 4) : 0);
  }
  return first;
}

// ---- memory: who wrote a cell, and when

// Each array with the size of its cells: the largest power of two up to 4 bytes at which no write begins or ends inside a
// cell. `base` is the number of its first cell, `kept` the place of its bytes in arrays.initial.
function arraysOf(rec) {
  const sizes = rec.meta.arrays.map(({ itemsize, low }) => Math.min(4, powerOfTwo(itemsize | low | 4)));
  forEachStep(rec, (step) => {
    if (!rec.writes.has(rec.steps.op[step])) return;
    const array = rec.steps.array[step];
    if (array < 0) return;
    let bits = rec.steps.width[step];
    for (let row = rec.steps.first[step], end = row + lanesIn(rec.steps.mask[step]); row < end; row++) bits |= rec.offsets[row];
    sizes[array] = Math.min(sizes[array], powerOfTwo(bits | 4));
  });
  let [base, kept] = [0, 0];
  return rec.meta.arrays.map((array, n) => {
    const one = { ...array, ...formOf(rec.meta, array), number: n, cell: sizes[n], base, kept, end: array.low + array.bytes };
    base += Math.ceil(array.bytes / sizes[n]);
    kept += array.bytes;
    return one;
  });
}

// Type and shape of an array in shared memory, where the recording has none: as the source declares it, if that makes as
// many bytes. One size that is not a number, such as a constant's name, follows from the others.
function formOf(meta, { name, dtype, shape }) {
  if (dtype !== "bytes") return {};
  const declared = new RegExp(`__shared__[^;]*?\\b(${Object.keys(OF_CUDA).join("|")})\\s[^;]*?\\b${name.replace(/\W/g, "\\$&")}((?:\\[[^\\]]+\\])+)`);
  const [, type, sizes] = Object.values(meta.sources).map((text) => text.match(declared)).find(Boolean) ?? [];
  if (!type) return {};
  const numbers = [...sizes.matchAll(/\[([^\]]+)\]/g)].map(([, size]) => (/^[\d\s+*]+$/.test(size) ? sumOf(size) : null));
  const itemsize = NUMBERS[OF_CUDA[type]].size;
  const known = numbers.reduce((product, n) => product * (n ?? 1), itemsize);
  const rest = shape[0] / known;
  const unknown = numbers.filter((n) => n === null).length;
  if (unknown > 1 || !Number.isInteger(rest) || (!unknown && rest !== 1)) return {};
  return { dtype: OF_CUDA[type], itemsize, shape: numbers.map((n) => n ?? rest) };
}

// Of a text such as "32 + 1" or "2 * 16".
const sumOf = (text) => text.split("+").reduce((sum, part) => sum + part.split("*").reduce((product, n) => product * Number(n), 1), 0);

const powerOfTwo = (bits) => bits & -bits; // the largest that divides

// For each cell of memory, its writes in order: of each the step, and the byte in words.value where its new value lies.
function writtenOf(rec) {
  const last = rec.arrays.at(-1);
  const cells = last ? last.base + Math.ceil(last.bytes / last.cell) : 0;
  return historyOf(cells, (see) => forEachStep(rec, (step) => {
    if (!rec.writes.has(rec.steps.op[step]) || rec.steps.array[step] < 0) return;
    const array = rec.arrays[rec.steps.array[step]];
    const width = rec.steps.width[step];
    let from = 4 * rec.firstWord[step];
    for (let row = rec.steps.first[step], end = row + lanesIn(rec.steps.mask[step]); row < end; row++) {
      for (let part = 0; part < width; part += array.cell) {
        const cell = cellAt(array, rec.offsets[row] + part);
        if (cell >= 0) see(cell, step, from + part);
      }
      from += 4 * Math.ceil(width / 4);
    }
  }));
}

// The number of the cell that holds a byte of an array, or -1 where the recording kept no bytes.
function cellAt(array, offset) {
  return offset < array.low || offset >= array.end ? -1 : array.base + Math.floor((offset - array.low) / array.cell);
}

// What happened to each key, in order. `visit(see)` calls see(key, step, at) for each event, the earliest first, and the
// same each time; the events of key k are those from start[k] up to start[k + 1].
export function historyOf(keys, visit) {
  const start = new Int32Array(keys + 1);
  visit((key) => { start[key + 1]++; });
  for (let key = 0; key < keys; key++) start[key + 1] += start[key];
  const next = start.slice(0, keys);
  const step = new Int32Array(start[keys]);
  const at = new Int32Array(start[keys]);
  visit((key, when, where) => {
    step[next[key]] = when;
    at[next[key]++] = where;
  });
  return { start, step, at };
}

// The place of the first event of a key at or after `step`; the end of its events if there is none.
function placeFrom({ start, step: steps }, key, step) {
  let [low, high] = [start[key], start[key + 1]];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The step of the last event of a key before `step`, or -1.
function lastBefore(history, key, step) {
  const place = placeFrom(history, key, step) - 1;
  return place < history.start[key] ? -1 : history.step[place];
}

// The step of the first event of a key after `step`, or -1.
function firstAfter(history, key, step) {
  const place = placeFrom(history, key, step + 1);
  return place < history.start[key + 1] ? history.step[place] : -1;
}

// Who last wrote a byte of an array before `step`, or in it, of its lanes before `lane`: its step, warp and lane, and which
// byte of the lane's it is; or null.
export function writerOf(rec, number, offset, step, lane = 0) {
  const cell = cellAt(rec.arrays[number], offset);
  if (cell < 0) return null;
  const { start, step: steps } = rec.written;
  let place = placeFrom(rec.written, cell, step);
  while (lane && place < start[cell + 1] && steps[place] === step && writeAt(rec, place).lane < lane) place++;
  return place === start[cell] ? null : writeAt(rec, place - 1);
}

// A write of a cell, by its place among all of them.
function writeAt(rec, place) {
  const step = rec.written.step[place];
  const perLane = 4 * Math.ceil(rec.steps.width[step] / 4);
  const byte = rec.written.at[place] - 4 * rec.firstWord[step];
  return { step, warp: rec.steps.warp[step], lane: nthLane(rec.steps.mask[step], Math.floor(byte / perLane)), delta: byte % perLane };
}

function nthLane(mask, n) {
  for (let lane = 0, seen = 0; lane < 32; lane++) {
    if ((mask >>> lane) & 1 && seen++ === n) return lane;
  }
  return -1;
}

// The step that last wrote any byte of an element before `step`, or -1.
export function lastWrite(rec, number, offset, size, step) {
  const array = rec.arrays[number];
  let last = -1;
  for (let part = 0; part < size; part += array.cell) {
    const cell = cellAt(array, offset + part);
    if (cell >= 0) last = Math.max(last, lastBefore(rec.written, cell, step));
  }
  return last;
}

// The next write of an element after `step` (backwards: the last one before it), or -1.
export function otherWrite(rec, number, offset, size, step, backwards = false) {
  if (backwards) return lastWrite(rec, number, offset, size, step);
  const array = rec.arrays[number];
  let next = -1;
  for (let part = 0; part < size; part += array.cell) {
    const cell = cellAt(array, offset + part);
    const found = cell < 0 ? -1 : firstAfter(rec.written, cell, step);
    if (found >= 0 && (next < 0 || found < next)) next = found;
  }
  return next;
}

// Copies the bytes of an element, as they were before `step`, into `into`. Returns the step that last wrote one of them:
// AT_LAUNCH where none did, UNKNOWN where the recording kept no bytes.
export function bytesAt(rec, number, offset, size, step, into) {
  const array = rec.arrays[number];
  if (offset < array.low || offset + size > array.end) return UNKNOWN;
  let last = AT_LAUNCH;
  for (let part = 0; part < size; part += array.cell) {
    const cell = cellAt(array, offset + part);
    const place = placeFrom(rec.written, cell, step) - 1;
    const isWritten = place >= rec.written.start[cell];
    const bytes = isWritten ? rec.wordBytes : rec.initial;
    const from = isWritten ? rec.written.at[place] : array.kept + offset + part - array.low;
    if (isWritten) last = Math.max(last, rec.written.step[place]);
    for (let k = 0; k < array.cell && part + k < size; k++) into[part + k] = bytes[from + k];
  }
  return last;
}

// ---- barriers: how old a value is, and whether a read is ordered after the write

// The openings of the block's barriers in order: of each the step at which it opened, and of each warp that was there the
// step at which it arrived (the first, where its lanes arrived apart).
function openingsOf(rec) {
  const { op, warp, extra } = rec.steps;
  const found = [];
  forEachStep(rec, (end) => {
    if (op[end] !== rec.op.end || op[extra[end]] !== rec.op.barrier) return;
    const arrivals = new Map();
    for (let step = extra[end]; step < end; step++) {
      const here = op[step] === rec.op.barrier && extra[step] === extra[extra[end]];
      if (here && !arrivals.has(warp[step])) arrivals.set(warp[step], step);
    }
    found.push({ end, arrivals });
  });
  return found;
}

const listOf = (map, key) => map.get(key) ?? map.set(key, []).get(key);

// How many barriers of the block opened before `step`.
export function barriersBefore(rec, step) {
  let [low, high] = [0, rec.openings.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rec.openings[middle].end < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The next step after `step` at which a barrier opens (backwards: the last one before it), or -1.
export function otherBarrier(rec, step, backwards = false) {
  const place = backwards ? barriersBefore(rec, step) - 1 : barriersBefore(rec, step + 1);
  return rec.openings[place]?.end ?? -1;
}

// The step that began what a step is a part of, if that goes on by itself: a copy that lands, and what a copy or a product
// reads; else the step itself.
function begunOf(rec, step) {
  const { op, warp, extra } = rec.steps;
  return op[step] === rec.op["copy write"] || (op[step] === rec.op["copy read"] && warp[step] < 0) ? extra[step] : step;
}

// Whether something stands between what the warp `by` did at step `first` and what another does at `then`: a barrier at
// which both arrived, the one after its deed and the other before; or a wait of the other at an mbarrier or of its cluster.
export function isOrdered(rec, first, then, by = rec.steps.warp[first]) {
  const { warp } = rec.steps;
  if (by === warp[then]) return true;
  for (let place = barriersBefore(rec, then) - 1; place >= 0 && rec.openings[place].end > first; place--) {
    const { arrivals } = rec.openings[place];
    if (arrivals.get(by) > first && arrivals.has(warp[then])) return true;
  }
  const wait = lastBefore(rec.waits, warp[then] + 1, then); // it lasts until the warp's next step
  return wait >= 0 && firstAfter(rec.ofWarp, warp[then] + 1, wait) > first;
}

// Of a step in shared memory, the lanes that read what another lane has written, or that write over what another has read, or
// written another number, where nothing orders the two, and those that touch a place where a copy under way will land:
// [{ lane, offset, other }], `other` being that step, or the step itself where its lanes write two numbers to one place.
export function hazardsOf(rec, step) {
  const { op, array, width } = rec.steps;
  if (array[step] < 0 || rec.arrays[array[step]].space !== "shared") return [];
  const party = rec.reads.has(op[step]) ? unorderedWrite : rec.writes.has(op[step]) ? unorderedBefore : () => -1;
  const known = new Map(); // a step -> whether it is ordered
  const clashing = op[step] === rec.op.write ? clashesOf(rec, step) : new Set();
  return lanesOf(rec, step).map(({ lane, offset }) => {
    const other = party(rec, step, offset, width[step], known, lane);
    return { lane, offset, other: other < 0 && clashing.has(offset) ? step : other };
  }).filter(({ other }) => other >= 0);
}

// The offsets at which lanes of a step write different numbers.
function clashesOf(rec, step) {
  const words = Math.ceil(rec.steps.width[step] / 4);
  const [first, found] = [new Map(), new Set()];
  lanesOf(rec, step).forEach(({ offset }, n) => {
    const at = rec.firstWord[step] + n * words;
    const before = first.get(offset);
    if (before === undefined) first.set(offset, at);
    else if (rec.words.subarray(before, before + words).some((word, k) => word !== rec.words[at + k])) found.add(offset);
  });
  return found;
}

// Looks for the steps with a hazard, which are in rec.hazards then, a history of one key; the page may draw meanwhile.
// Returns whether there are any.
export async function findHazards(rec) {
  const found = [];
  rec.racing = new Set(); // the places of two steps of different warps that race
  let until = performance.now() + SLICE / 2; // a step that somebody takes now is drawn in the same 16 ms
  for (let step = 0; step < rec.count; step++) {
    const hazards = hazardsOf(rec, step);
    if (hazards.length) found.push(step);
    for (const { other } of hazards) if (rec.steps.warp[other] !== rec.steps.warp[step]) rec.racing.add(placesOf(rec, step, other));
    if (performance.now() < until) continue;
    await new Promise((resume) => { setTimeout(resume); });
    until = performance.now() + SLICE / 2;
  }
  rec.hazards = { start: [0, found.length], step: found };
  return found.length > 0;
}

const placesOf = (rec, step, other) => `${rec.steps.place[step]} ${rec.steps.place[other]}`;

// Whether the lines of two steps also race between two warps. Hazards must have been found first.
export function racesBetweenWarps(rec, step, other) {
  return rec.racing?.has(placesOf(rec, step, other)) ?? false;
}

// The next step with a hazard after `step` (backwards: the last one before it), or -1; also before they have been found.
export function otherHazard(rec, step, backwards = false) {
  if (!rec.hazards) return -1;
  return backwards ? lastBefore(rec.hazards, 0, step) : firstAfter(rec.hazards, 0, step);
}

// The write of what is read at `step`, if nothing orders the two, or -1.
function unorderedWrite(rec, step, offset, size, known, lane) {
  const { op, array, warp } = rec.steps;
  const landing = landingOn(rec, step, offset, size);
  if (landing >= 0) return landing;
  const reader = begunOf(rec, step);
  const writer = lastWrite(rec, array[step], offset, size, step);
  if (writer < 0 || (op[writer] === rec.op.atomic && op[step] === rec.op.atomic)) return -1;
  if (warp[writer] === warp[reader]) return reader === step ? unorderedInWarp(rec, step, offset, size, lane) : -1;
  if (warp[writer] < 0 && op[writer] === rec.op.write) return -1; // nobody knows whose it is
  if (!known.has(writer)) known.set(writer, isOrdered(rec, writer, reader));
  return known.get(writer) ? -1 : writer;
}

// Where a copy that was under way at `step` wrote what is touched there, or -1.
function landingOn(rec, step, offset, size) {
  const next = otherWrite(rec, rec.steps.array[step], offset, size, step);
  return next >= 0 && rec.steps.op[next] === rec.op["copy write"] && begunOf(rec, next) < step ? next : -1;
}

// The write, or the end of a copy, of what a lane reads at `step` by another lane of its warp, if no barrier of both stands
// between, or -1.
function unorderedInWarp(rec, step, offset, size, lane) {
  const { op, array, warp } = rec.steps;
  for (let part = 0; part < size; part += rec.arrays[array[step]].cell) {
    const writer = writerOf(rec, array[step], offset + part, step);
    if (writer?.warp !== warp[step] || writer.lane === lane || op[writer.step] === rec.op.atomic) continue;
    if (!isOrderedInWarp(rec, writer, { step, lane })) return writer.step;
  }
  return -1;
}

// Whether a __syncwarp() of both lanes of a warp, or an opening of the block's barrier, stands between what one did and what
// the other does.
function isOrderedInWarp(rec, writer, reader) {
  const both = 2 ** writer.lane + 2 ** reader.lane;
  for (let at = reader.step; (at = lastBefore(rec.warpBarriers, writer.warp + 1, at)) > writer.step;) {
    if (((rec.steps.mask[at] & both) >>> 0) === both) return true;
  }
  const place = barriersBefore(rec, reader.step) - 1;
  return place >= 0 && rec.openings[place].end > writer.step;
}

// Whether a step that writes an element changes it.
function changes(rec, number, offset, size, step) {
  const [before, after] = [step, step + 1].map((at) => {
    const into = new Uint8Array(size);
    bytesAt(rec, number, offset, size, at, into);
    return into;
  });
  return before.some((byte, n) => byte !== after[n]);
}

// What is written over at `step`: another warp's last write or another lane's last read of it, if nothing orders the two, or
// a copy that lands there later; or -1.
function unorderedBefore(rec, step, offset, size, known, lane) {
  const { op, warp, width } = rec.steps;
  const begun = begunOf(rec, step);
  if (warp[begun] < 0) return -1;
  const landing = op[step] === rec.op.write ? landingOn(rec, step, offset, size) : -1;
  if (landing >= 0) return landing;
  const array = rec.arrays[rec.steps.array[step]];
  const writer = lastWrite(rec, array.number, offset, size, step);
  if (writer >= 0 && warp[writer] >= 0) {
    if (!known.has(writer)) known.set(writer, isOrdered(rec, writer, begun));
    if (!known.get(writer) && changes(rec, array.number, offset, size, step)) return writer;
  }
  rec.readings ??= readingsOf(rec);
  for (let cell = cellAt(array, offset), last = cellAt(array, offset + size - 1); cell >= 0 && cell <= last; cell++) {
    const since = lastBefore(rec.written, cell, step);
    const seen = new Set(); // warps: of each the last read decides
    for (let place = placeFrom(rec.readings, cell, step) - 1; place >= rec.readings.start[cell]; place--) {
      const read = rec.readings.step[place];
      if (read < since || seen.size === rec.meta.warps) break;
      const by = warp[begunOf(rec, read)];
      if (by < 0 || seen.has(by)) continue;
      if (by === warp[step]) {
        if (op[read] !== rec.op.read || op[step] !== rec.op.write) continue;
        const readers = lanesOf(rec, read).filter((one) => one.lane !== lane && one.offset < offset + size && offset < one.offset + width[read]);
        if (readers.some((one) => !isOrderedInWarp(rec, { step: read, warp: by, lane: one.lane }, { step, lane }))) return read;
        if (readers.length) seen.add(by);
        continue;
      }
      seen.add(by);
      if (!known.has(read)) known.set(read, read < begun && isOrdered(rec, read, begun, by));
      if (!known.get(read)) return read;
    }
  }
  return -1;
}

// For each cell of shared memory the steps that read it.
function readingsOf(rec) {
  const { op, array, width, first, mask } = rec.steps;
  return historyOf(rec.written.start.length - 1, (see) => forEachStep(rec, (step) => {
    const of = rec.arrays[array[step]];
    if (!rec.reads.has(op[step]) || of?.space !== "shared") return;
    let before = -1; // lanes that read the same one after the other count once
    for (let row = first[step], end = row + lanesIn(mask[step]); row < end; row++) {
      const offset = rec.offsets[row];
      if (offset === before) continue;
      before = offset;
      for (let cell = cellAt(of, offset), last = cellAt(of, offset + width[step] - 1); cell >= 0 && cell <= last; cell++) see(cell, step, row);
    }
  }));
}

// ---- what goes on by itself

// Copies and products that a warp began and that ended later: [{ begin, end, kind, lands }], the earliest first. `end` is
// the step at which a copy has landed or a product is known to be over; `lands` are the steps that write what is copied.
function flightsOf(rec) {
  const { op, extra } = rec.steps;
  const found = new Map();
  const flight = (begin) => found.get(begin) ?? found.set(begin, { begin, end: begin, kind: rec.meta.ops[op[begin]], lands: [] }).get(begin);
  forEachStep(rec, (step) => {
    const begin = extra[step];
    if (op[step] === rec.op["copy write"] && begin >= 0 && begin < step) {
      flight(begin).lands.push(step);
      flight(begin).end = step;
    }
    if (op[step] === rec.op.end && op[begin] !== rec.op.barrier) flight(begin).end = step;
  });
  return [...found.values()].sort((a, b) => a.begin - b.begin);
}

// Those that are under way at `step`.
export function inFlight(rec, step) {
  return rec.flights.filter(({ begin, end }) => begin < step && step <= end);
}

// The mbarriers of the block, by the array and the offset at which they lie: of each its steps in order.
function mbarriersOf(rec) {
  const { op, array, extra } = rec.steps;
  const found = new Map();
  forEachStep(rec, (step) => {
    if (array[step] < 0 || ![rec.op.arrive, rec.op.wait, rec.op.phase].includes(op[step])) return;
    listOf(found, `${array[step]} ${extra[step]}`).push(step);
  });
  return [...found.values()].map((steps) => ({ array: array[steps[0]], offset: extra[steps[0]], steps }))
    .sort((a, b) => a.array - b.array || a.offset - b.offset);
}

// An mbarrier at `step`: how many of its phases are over, and how often somebody has arrived since.
export function mbarrierAt(rec, { steps }, step) {
  let [phases, arrivals] = [0, 0];
  for (const at of steps) {
    if (at >= step) break;
    if (rec.steps.op[at] === rec.op.phase) [phases, arrivals] = [phases + 1, 0];
    else if (rec.steps.op[at] === rec.op.arrive) arrivals += lanesIn(rec.steps.mask[at]);
  }
  return { phases, arrivals };
}

// The warps that are held up at `step`: [{ warp, since, over }], `since` being the step at which they began to wait.
export function waiting(rec, step) {
  return between(rec, step).filter(({ since, over }) => {
    const waits = [rec.op.barrier, rec.op.wait].includes(rec.steps.op[since]) && step <= over;
    return waits && rec.steps.turn[step] > rec.steps.turn[since] + 1;
  });
}

// The warps that do nothing more from `step` on and do not wait: [{ warp, since, over }], `since` being their last step.
export function ended(rec, step) {
  return between(rec, step).filter(({ warp, over }) => over < step && firstAfter(rec.ofWarp, warp + 1, step) < 0);
}

// The warps that do not do `step`, each with its last step before and the one until which that may last.
function between(rec, step) {
  const found = [];
  for (let warp = 0; warp < rec.meta.warps; warp++) {
    const since = lastBefore(rec.ofWarp, warp + 1, step);
    if (since >= 0 && rec.steps.warp[step] !== warp) found.push({ warp, since, over: overAt(rec, warp, since) });
  }
  return found;
}

// Until when a warp's step may last: up to its next one; the last, if it is a wait, until the barrier opens or the phase of
// the mbarrier is over, and for ever if the launch failed.
function overAt(rec, warp, since) {
  const next = firstAfter(rec.ofWarp, warp + 1, since);
  if (next >= 0) return next;
  const { op, array, extra } = rec.steps;
  if (op[since] === rec.op.barrier) return rec.openings.find(({ end, arrivals }) => end > since && arrivals.has(warp))?.end ?? rec.count;
  if (op[since] !== rec.op.wait) return since;
  if (rec.meta.failure) return rec.count;
  const barrier = rec.mbarriers.find((one) => one.array === array[since] && one.offset === extra[since]);
  return barrier?.steps.find((at) => at > since && op[at] === rec.op.phase) ?? since;
}

// ---- warps and lines

// The last step of a warp at or before `step` that lies in a line, or -1.
export function stepOfWarp(rec, warp, step) {
  for (let at = lastBefore(rec.ofWarp, warp + 1, step + 1); at >= 0; at = lastBefore(rec.ofWarp, warp + 1, at)) {
    if (rec.steps.place[at] >= 0) return at;
  }
  return -1;
}

// The next step of a warp after `step` (backwards: the last one before it), or -1.
export function otherOfWarp(rec, warp, step, backwards = false) {
  return backwards ? lastBefore(rec.ofWarp, warp + 1, step) : firstAfter(rec.ofWarp, warp + 1, step);
}

// The next step after `step` in a line (backwards: the last one before it) of one warp, or of any if `warp` is null; -1
// if there is none.
export function otherOfLine(rec, file, line, step, { backwards = false, warp = null } = {}) {
  let best = -1;
  rec.meta.places.forEach((_, place) => {
    if (!isInLine(rec, place, file, line)) return;
    const next = (at) => (backwards ? lastBefore(rec.ofPlace, place, at) : firstAfter(rec.ofPlace, place, at));
    let found = next(step);
    while (found >= 0 && warp !== null && rec.steps.warp[found] !== warp) found = next(found);
    if (found >= 0 && (best < 0 || (backwards ? found > best : found < best))) best = found;
  });
  return best;
}

// Whether a place lies in a line, or in what is called there.
function isInLine(rec, place, file, line) {
  for (; place >= 0; place = rec.meta.places[place][2]) {
    const [its, number] = rec.meta.places[place];
    if (its === file) return number === line;
  }
  return false;
}

// File and line of a step, or null.
export function placeOf(rec, step) {
  const [file, line] = rec.meta.places[rec.steps.place[step]] ?? [];
  return file === undefined ? null : { file, line };
}

// Where a step lies in a file: its own line or, if it lies in another file, the line from which that was called. -1: not
// in this file.
export function lineIn(rec, step, file) {
  for (let place = step < 0 ? -1 : rec.steps.place[step]; place >= 0; place = rec.meta.places[place][2]) {
    if (rec.meta.places[place][0] === file) return rec.meta.places[place][1];
  }
  return -1;
}

// ---- costs of an access

// In how many passes through the 32 banks shared memory serves a step: lanes of one pass need at most one word of each
// bank. Accesses of 8 and 16 bytes are served by halves and quarters of the warp.
export function wavefrontsOf(rec, step) {
  const width = rec.steps.width[step];
  const { begin } = rec.arrays[rec.steps.array[step]];
  const perPass = width > 8 ? 8 : width > 4 ? 16 : 32;
  const passes = new Map(); // group of lanes -> bank -> its words
  for (const { lane, offset } of lanesOf(rec, step)) {
    const group = Math.floor(lane / perPass);
    if (!passes.has(group)) passes.set(group, new Map());
    const banks = passes.get(group);
    for (let word = (begin + offset) >> 2; word <= (begin + offset + width - 1) >> 2; word++) {
      const words = listOf(banks, word % 32);
      if (!words.includes(word)) words.push(word);
    }
  }
  let count = 0;
  for (const banks of passes.values()) count += Math.max(...[...banks.values()].map((words) => words.length));
  return count;
}

// How many sectors of 32 bytes of global memory a step touches.
export function sectorsOf(rec, step) {
  const sectors = new Set();
  const width = rec.steps.width[step];
  for (const { offset } of lanesOf(rec, step)) {
    for (let one = offset >> 5; one <= (offset + width - 1) >> 5; one++) sectors.add(one);
  }
  return sectors.size;
}

// ---- local variables

// The variables, each with the number of its first word among a thread's, and how many words a thread has.
function variablesOf(meta) {
  let words = 0;
  const list = meta.variables.map((variable, number) => {
    const one = { ...variable, number, base: words };
    words += one.count * one.words;
    return one;
  });
  return { list, words };
}

// What was new in the variables of one warp's lanes, by key(lane, n), n being a row of rec.changes: a history with `keys`
// keys. There may be millions of rows, so that each warp's are looked for when somebody wants to see them.
function changesOfWarp(rec, warp, keys, key) {
  const { step, thread } = rec.changes;
  return historyOf(keys, (see) => {
    for (let n = 0; n < step.length; n++) if (thread[n] >> 5 === warp) see(key(thread[n] & 31, n), step[n], n);
  });
}

// The history of each word of each lane of a warp.
function wordsOfWarp(rec, warp) {
  const { variable, element } = rec.changes;
  const { list, words } = rec.variables;
  return changesOfWarp(rec, warp, 32 * words, (lane, n) => lane * words + list[variable[n]].base + element[n]);
}

// What an element of a local variable of a thread holds at `step`: its 32-bit words, the low one first, and the step of its
// last change; null before its first, and before the recording is whole.
export function variableAt(rec, thread, variable, element, step) {
  if (!rec.isWhole) return null;
  const warp = thread >> 5;
  const history = rec.ofWords[warp] ??= wordsOfWarp(rec, warp);
  const { base, words: count } = rec.variables.list[variable];
  const [words, steps] = [[], []];
  for (let n = 0; n < count; n++) {
    const key = (thread & 31) * rec.variables.words + base + count * element + n;
    const place = placeFrom(history, key, step + 1) - 1;
    if (place < history.start[key]) return null;
    words.push(rec.changes.word[history.at[place]]);
    steps.push(history.step[place]);
  }
  return { words, step: Math.max(...steps) };
}
