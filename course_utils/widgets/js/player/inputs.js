// inputs.js — from what a number was made: the reads behind a write, back through statements, local variables and copies.
// The rule is that of course_utils/emulator/origins.py. Statements are known by their lines and variables by their names
// there, so that this is rather too much than too little.

const MOST = 1000; // statements behind one write
const JOINING = ["exchange", "product"]; // what lanes do together: each may have the numbers of all

// The reads from which a lane wrote at `step`: { reads: [{ step, lane, row, array, offset, width }], isAll, isLost }, in their
// order. Of a copy it is what was copied: `delta` bytes after the beginning of the lane's. At most `most` statements are
// followed, the nearest: a sum on the tensor cores is made from all lanes of a warp, in each of its steps. isAll: whether all
// was followed to its end; isLost: whether a way leads through registers that the recording leaves out.
export function inputsOf(rec, step, lane, delta = 0, most = MOST) {
  return newInputs(rec, { step, lane, delta }, nothingYet(), most);
}

// What has been followed so far: what is behind it is found once.
const nothingYet = () => ({ rows: new Set(), statements: new Set(), joined: new Set(), changes: new Set(), again: new Map() });

// The same, but for what is behind what has been followed before.
function newInputs(rec, { step, lane, delta }, past, most) {
  if (rec.steps.op[step] === rec.op["copy write"]) return { ...copied(rec, step, lane, delta), isLost: false };
  const place = rec.steps.place[step];
  if (rec.steps.warp[step] < 0 || place < 0) return { reads: [], isAll: false, isLost: false };
  const thread = 32 * rec.steps.warp[step] + lane;
  const found = followed(rec, thread, statement(rec, thread, step, place, { writes: true }), place, past, most);
  return { ...found, reads: found.reads.sort((a, b) => a.row - b.row) };
}

// The reads from global memory of what the block had not written, from which an element was made before `step`. It takes
// `limit` milliseconds at most. { reads, isAll, isLost }
export function originsOf(rec, number, offset, size, step, limit = 400) {
  const end = performance.now() + limit;
  let [isAll, isLost] = [true, false];
  const found = new Map();
  const seen = new Set();
  const past = nothingYet();
  const pending = writersOf(rec, number, offset, size, step).writers;
  while (pending.length && performance.now() < end) {
    const write = pending.pop();
    const key = `${write.step} ${write.lane} ${write.delta}`;
    if (seen.has(key)) continue;
    seen.add(key);
    const inputs = newInputs(rec, write, past, MOST);
    isAll &&= inputs.isAll;
    isLost ||= inputs.isLost;
    for (const read of inputs.reads) {
      const { writers, areAll } = writersOf(rec, read.array, read.offset, read.width, read.step);
      pending.push(...writers);
      if (!areAll && rec.arrays[read.array].space === "global") found.set(read.row, read);
    }
  }
  return { reads: [...found.values()].sort((a, b) => a.row - b.row), isAll: isAll && !pending.length, isLost };
}

// Who wrote the cells of some bytes before `step`; areAll: whether all of them were written.
function writersOf(rec, number, offset, width, step) {
  const { cell } = rec.arrays[number];
  const writers = [];
  let areAll = true;
  for (let at = offset; at < offset + width; at += cell) {
    const writer = writerOf(rec, number, at, step);
    if (writer) writers.push(writer);
    else areAll = false;
  }
  return { writers, areAll };
}

// The source of a copied byte: of cp.async the same lane of the step that began it; of the copy engine the row that it read
// when it wrote this one, the k-th of the copy to the k-th. Zeros that were written have none.
function copied(rec, step, lane, delta) {
  const { op, extra, width } = rec.steps;
  const begun = extra[step];
  const isOfThread = op[begun] === rec.op["copy read"];
  const sources = isOfThread ? null : sourcesOf(rec, begun);
  const from = isOfThread ? lanesOf(rec, begun).find((one) => one.lane === lane) : sources?.get(`${step} ${lane}`);
  const at = isOfThread ? begun : from?.step;
  return { reads: from && width[at] ? [readOf(rec, at, { ...from, offset: from.offset + delta }, 1)] : [], isAll: sources !== undefined };
}

// For each row that the copy of the step `begun` wrote, as "step lane", the row that it read for it. undefined where it has
// not come to its end.
function sourcesOf(rec, begun) {
  rec.sources ??= new Map();
  if (!rec.sources.has(begun)) {
    const { op, extra, mask, first } = rec.steps;
    const flight = rec.flights.find(({ begin }) => begin === begun);
    const rowOf = (step, lane, row) => ({ step, lane, row, offset: rec.offsets[row] });
    const rowsOf = (steps) => steps.flatMap((step) => lanesOfMask(mask[step]).map((lane, n) => rowOf(step, lane, first[step] + n)));
    const reads = rowsOf(flight ? stepsBetween(begun, flight.end, (at) => op[at] === rec.op["copy read"] && extra[at] === begun) : []);
    const writes = rowsOf(flight?.lands ?? []);
    const pairs = writes.map(({ step, lane }, n) => [`${step} ${lane}`, reads[n]]);
    rec.sources.set(begun, reads.length === writes.length ? new Map(pairs) : undefined);
  }
  return rec.sources.get(begun);
}

function stepsBetween(first, last, wanted) {
  const found = [];
  for (let at = first + 1; at <= last; at++) if (wanted(at)) found.push(at);
  return found;
}

const readOf = (rec, step, { lane, row, offset }, width = rec.steps.width[step]) => ({ step, lane, row, array: rec.steps.array[step], offset, width });

// ---- statements

const callerOf = (rec, place) => rec.meta.places[place][2] ?? -1;

// The number of a place's statement: one of several lines has several places.
const statementOf = (rec, place) => rec.meta.statements?.[place] ?? place;

function isWithin(rec, place, around) {
  while (place >= 0 && statementOf(rec, place) !== statementOf(rec, around)) place = callerOf(rec, place);
  return place >= 0;
}

// The last step before `step` in which a thread took part, or -1.
function ownStepBefore(rec, thread, step) {
  const key = (thread >> 5) + 1;
  for (let at = lastBefore(rec.ofWarp, key, step); at >= 0; at = lastBefore(rec.ofWarp, key, at)) {
    if ((rec.steps.mask[at] >>> (thread % 32)) & 1) return at;
  }
  return -1;
}

// The steps of a thread's statement that ends with the step `last`, the last first: back while it is at the same place, or
// in what is called there, from the step `since` on. writes: of a write, back to the one before.
function statement(rec, thread, last, place, { since = 0, writes = false } = {}) {
  const { op, place: places } = rec.steps;
  const found = [];
  const takesPart = (rec.steps.mask[last] >>> (thread % 32)) & 1 && rec.steps.warp[last] === thread >> 5;
  for (let step = takesPart ? last : ownStepBefore(rec, thread, last); step >= since; step = ownStepBefore(rec, thread, step)) {
    if (!isWithin(rec, places[step], place)) break;
    const isSame = statementOf(rec, places[step]) === statementOf(rec, places[last]);
    if (writes && step !== last && rec.writes.has(op[step]) && isSame) break;
    found.push(step);
  }
  return found;
}

// The reads behind the steps of a statement, and behind the variables that it names: those of `most` statements. `past`:
// what has been followed before, to which this adds. { reads, isAll, isLost }
function followed(rec, thread, steps, place, past, most) {
  const names = rec.meta.names ?? [];
  const reads = [];
  const pending = []; // thread, variable, until before which step it was changed
  let left = most;
  let isLost = false;

  function take(of, steps, place) {
    const joined = [[of, steps]]; // a list, because a chain of shuffles may be longer than a stack
    while (joined.length && left > 0) {
      const [of, steps] = joined.pop();
      if (!steps.length || !isNew(past.statements, `${of} ${steps[0]} ${steps.at(-1)} ${place}`)) continue;
      left--;
      isLost ||= rec.meta.lost[place];
      for (const step of steps) {
        for (const read of readsAt(rec, step, of)) if (isNew(past.rows, read.row)) reads.push(read);
      }
      for (const variable of names[place] ?? []) pending.push([of, variable, steps.at(-1)]);
      for (const step of steps) {
        if (!JOINING.includes(rec.meta.ops[rec.steps.op[step]]) || !isNew(past.joined, `${step} ${place}`)) continue;
        for (const lane of lanesOfMask(rec.steps.mask[step])) {
          const other = 32 * rec.steps.warp[step] + lane;
          joined.push([other, statement(rec, other, step, place, { since: steps.at(-1) })]);
        }
      }
    }
  }

  take(thread, steps, place);
  while (pending.length && left > 0) {
    const [of, variable, until] = pending.pop();
    const changed = newBefore(rec, of, variable, until);
    if (changed < 0) continue;
    const key = `${of} ${variable} ${changed}`;
    const since = past.again.get(key) ?? changed;
    if (until > since) {
      past.again.set(key, until);
      // what was added behind its last change may have been too small to change it
      for (const other of rec.meta.variables[variable].added ?? []) pending.push([of, other, until]);
      for (const [steps, around] of setAgain(rec, of, variable, since, until)) take(of, steps, around);
    }
    if (!isNew(past.changes, key)) continue;
    isLost ||= rec.meta.variables[variable].lost;
    const before = Math.max(0, newBefore(rec, of, variable, changed - 1));
    for (const other of rec.meta.variables[variable].from ?? []) pending.push([of, other, other === variable ? changed - 1 : changed]);
    const last = ownStepBefore(rec, of, changed);
    const around = last >= before && last >= 0 ? placeNaming(rec, rec.steps.place[last], variable) : -1;
    if (around < 0) continue;
    take(of, statement(rec, of, last, around, { since: before }), around);
    pending.push([of, variable, changed - 1]);
  }
  return { reads, isAll: left > 0 && !isLost, isLost };
}

// The statements, the last first, in which a thread may have set a variable to the number that it had already, which is no
// change: by their text they assign to it, and they read. Steps, and place, of each.
function setAgain(rec, thread, variable, since, until) {
  const found = [];
  const assigning = (rec.assigning[thread] ??= stepsThatAssign(rec, thread)).get(variable) ?? [];
  let first = until;
  for (let at = assigning.length - 1; at >= 0 && assigning[at][0] >= since; at--) {
    const [step, around] = assigning[at];
    if (step >= first) continue;
    const steps = statement(rec, thread, step, around, { since });
    first = steps.at(-1);
    found.push([steps, around]);
  }
  return found;
}

// Of each variable the steps of a thread in which a statement that assigns to it brings a number into a register, in order,
// each with the innermost place of such a statement: [step, place].
function stepsThatAssign(rec, thread) {
  const { op, place: places, extra } = rec.steps;
  const found = new Map();
  for (let step = ownStepBefore(rec, thread, rec.count); step >= 0; step = ownStepBefore(rec, thread, step)) {
    const isProduct = op[step] === rec.op.end && op[extra[step]] === rec.op.wgmma;
    if (!isProduct && !rec.reads.has(op[step]) && !JOINING.includes(rec.meta.ops[op[step]])) continue;
    const seen = new Set();
    for (let place = places[step]; place >= 0; place = callerOf(rec, place)) {
      for (const variable of rec.meta.assigned?.[place] ?? []) {
        if (!isNew(seen, variable)) continue;
        if (!found.has(variable)) found.set(variable, []);
        found.get(variable).push([step, place]);
      }
    }
  }
  for (const steps of found.values()) steps.reverse();
  return found;
}

// Adds to a set; returns whether it was not there.
function isNew(set, key) {
  if (set.has(key)) return false;
  set.add(key);
  return true;
}

// The last step up to `step` before which a variable of a thread was new, or -1.
function newBefore(rec, thread, variable, step) {
  const warp = thread >> 5;
  const news = rec.news[warp] ??= newsOfWarp(rec, warp);
  return lastBefore(news, (thread & 31) * rec.variables.list.length + variable, step + 1);
}

// For each variable of each lane of a warp the steps before which any of its elements was new.
function newsOfWarp(rec, warp) {
  const count = rec.variables.list.length;
  return changesOfWarp(rec, warp, 32 * count, (lane, n) => lane * count + rec.changes.variable[n]);
}

// The innermost of a place and those from which it was called whose own statement names a variable, or -1.
function placeNaming(rec, place, variable) {
  while (place >= 0 && !rec.meta.own[place].includes(variable)) place = callerOf(rec, place);
  return place;
}

// What a thread read in a step; of a product that ends, what the tensor core read for it.
function readsAt(rec, step, thread) {
  const { op, extra, warp } = rec.steps;
  if (rec.reads.has(op[step])) {
    return warp[step] === thread >> 5 ? lanesOf(rec, step).filter(({ lane }) => lane === thread % 32).map((one) => readOf(rec, step, one)) : [];
  }
  const begun = extra[step];
  if (op[step] !== rec.op.end || op[begun] !== rec.op.wgmma) return [];
  return stepsBetween(begun, step, (at) => op[at] === rec.op["copy read"] && extra[at] === begun)
    .flatMap((at) => lanesOf(rec, at).map((one) => readOf(rec, at, one)));
}
