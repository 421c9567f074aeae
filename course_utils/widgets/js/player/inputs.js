// inputs.js — from what a number was made: the reads behind a write, back through statements, local variables and copies.
// The rule is that of course_utils/emulator/origins.py. Statements are known by their lines and variables by their names
// there, so that this is rather too much than too little.

const JOINING = ["exchange", "product"]; // what lanes do together: each may have the numbers of all

// The reads from which a lane wrote at `step`: { reads: [{ step, lane, row, array, offset, width }], isAll, isLost }, in their
// order. Of a copy it is what was copied: `delta` bytes after the beginning of the lane's. isAll: whether all was followed to
// its end; isLost: whether a way leads through registers that the recording leaves out.
export function inputsOf(rec, step, lane, delta = 0) {
  return wayBack(rec, [{ step, lane, delta }], false);
}

// The reads from global memory of what the block had not written, from which an element was made before `step`.
// { reads, isAll, isLost }
export function originsOf(rec, number, offset, size, step) {
  const { writers } = writersOf(rec, number, offset, size, step);
  const found = wayBack(rec, writers, true);
  return { ...found, isAll: found.isAll && !(writers.length && rec.arrays[number].may_stay) };
}

// Who wrote the cells of some bytes before `step`, or in it, of its lanes before `lane`; areAll: whether all of them were
// written.
function writersOf(rec, number, offset, width, step, lane = 0) {
  const { cell } = rec.arrays[number];
  const writers = [];
  let areAll = true;
  for (let at = offset; at < offset + width; at += cell) {
    const writer = writerOf(rec, number, at, step, lane);
    if (writer) writers.push(writer);
    else areAll = false;
  }
  return { writers, areAll };
}

// The source of a copied byte, if it has one: of cp.async the same lane of the step that began it; of the copy engine the row
// that it read when it wrote this one, the k-th of the copy to the k-th. Zeros that were written have none. isKnown: whether
// the copy has come to its end.
function sourceOf(rec, { step, lane, delta }) {
  const { op, extra, width } = rec.steps;
  const begun = extra[step];
  const isOfThread = op[begun] === rec.op["copy read"];
  const sources = isOfThread ? null : sourcesOf(rec, begun);
  const from = isOfThread ? lanesOf(rec, begun).find((one) => one.lane === lane) : sources?.get(`${step} ${lane}`);
  const at = isOfThread ? begun : from?.step;
  return { read: from && width[at] ? readOf(rec, at, { ...from, offset: from.offset + delta }, 1) : null, isKnown: sources !== undefined };
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

// The way back from what was written, [{ step, lane, delta }], the last step first: all that something was made from lies
// before it. throughMemory: on from what is read to who wrote it. { reads, isAll, isLost }
function wayBack(rec, writes, throughMemory) {
  const { op, warp: warps, place: places } = rec.steps;
  const threads = new Map(); // of each that is on the way: the variables from which something is made, and the places whose
  const found = new Map(); // statements are followed back, and whether only to the statement's write before
  const wanted = new Map(); // of steps, what was written from which the way is still to be followed
  const read = new Set();
  let [isKnown, isLost] = [true, false];

  const want = (write) => {
    if (!wanted.has(write.step)) wanted.set(write.step, new Map());
    wanted.get(write.step).set(`${write.lane} ${write.delta}`, write);
  };
  const stateOf = (thread) => threads.get(thread) ?? threads.set(thread, { matter: new Set(), within: new Map(), asked: new Set() }).get(thread);

  function from(one) {
    const key = one.width === rec.steps.width[one.step] ? one.row : `${one.row} ${one.offset}`;
    if (!isNew(read, key)) return;
    const { writers, areAll } = throughMemory ? writersOf(rec, one.array, one.offset, one.width, one.step, one.lane) : { writers: [], areAll: false };
    writers.forEach(want);
    if (throughMemory && rec.arrays[one.array].may_stay) isKnown = false; // what was not written is not followed
    if (!throughMemory || (!areAll && rec.arrays[one.array].space === "global")) found.set(one.row, one);
  }

  // The places whose statements a step of a thread is part of, of those that are followed.
  function taken(step, { matter, within }) {
    const place = places[step];
    for (const [around, untilWrite] of within) {
      const isBefore = untilWrite && rec.writes.has(op[step]) && statementOf(rec, place) === statementOf(rec, around);
      if (isBefore || !isWithin(rec, place, around)) within.delete(around);
    }
    for (const [around, variables] of matter.size ? settingAt(rec, place) : []) {
      if (variables.some((variable) => matter.has(variable))) within.set(around, false);
    }
    return [...within.keys()];
  }

  // The variables that a statement names, as they were before a step, and the conditions on which it is executed; and all from
  // which these may be made: also what is set to the number that it has already, which is no change, is made from something.
  function ask(step, thread, place) {
    const { matter, asked } = stateOf(thread);
    if (!isNew(asked, place)) return;
    isLost ||= rec.meta.lost[place];
    const { news } = firstsOf(rec);
    const count = rec.variables.list.length; // the numbers of conditions and pointers are those behind
    const pending = [...(rec.meta.names?.[place] ?? []), ...(rec.meta.unrecorded?.at[place] ?? [])];
    while (pending.length) {
      const variable = pending.pop();
      if (matter.has(variable) || (variable < count && news[thread * count + variable] > step)) continue;
      matter.add(variable);
      const made = variable < count ? rec.meta.variables[variable] : rec.meta.unrecorded.made[variable - count];
      isLost ||= made.lost;
      pending.push(...(made.from ?? []));
    }
  }

  function take(step, lane, around) {
    if (around.length) readsAt(rec, step, lane).forEach(from);
    for (const place of around) ask(step, 32 * warps[step] + lane, place);
  }

  // What was written, and is followed from here.
  function begin(write) {
    const { step, lane } = write;
    const place = places[step];
    if (op[step] === rec.op["copy write"]) {
      const source = sourceOf(rec, write);
      isKnown &&= source.isKnown;
      if (source.read) from(source.read);
    } else if (warps[step] < 0 || place < 0) isKnown = false;
    else {
      const { within } = stateOf(32 * warps[step] + lane);
      if (!within.has(place)) within.set(place, true);
      take(step, lane, [place]);
    }
  }

  // A step of a warp, as far as it is part of statements that are followed.
  function partOfStatements(step) {
    const first = 32 * warps[step];
    const lanes = lanesOfMask(rec.steps.mask[step]);
    let steps = lanes.filter((lane) => threads.has(first + lane)).map((lane) => [lane, taken(step, stateOf(first + lane))]);
    if (JOINING.includes(rec.meta.ops[op[step]])) {
      const together = [...new Set(steps.flatMap(([, around]) => around))];
      steps = together.length ? lanes.map((lane) => [lane, together]) : [];
      for (const [lane] of steps) for (const around of together) stateOf(first + lane).within.set(around, false);
    }
    for (const [lane, around] of steps) take(step, lane, around);
  }

  function visit(step) {
    if (warps[step] >= 0 && threads.size) partOfStatements(step);
    // A lane of an atomic reads what another one has written in it: a Map also visits what is added meanwhile.
    for (const write of wanted.get(step)?.values() ?? []) begin(write);
  }

  writes.forEach(want);
  for (let step = Math.max(-1, ...wanted.keys()); step >= 0; step--) {
    visit(step);
    for (const [thread, variable] of threads.size ? firstsOf(rec).behind.get(step) ?? [] : []) threads.get(thread)?.matter.delete(variable);
  }
  return { reads: [...found.values()].sort((a, b) => a.row - b.row), isAll: isKnown && !isLost, isLost };
}

// A place and those from where it was called, each with the variables that its statement sets, but for those that one
// further inside does.
function settingAt(rec, place) {
  rec.setting ??= new Map();
  if (!rec.setting.has(place)) {
    const [found, seen] = [[], new Set()];
    for (let one = place; one >= 0; one = callerOf(rec, one)) {
      const variables = (rec.meta.sets?.[one] ?? []).filter((variable) => isNew(seen, variable));
      if (variables.length) found.push([one, variables]);
    }
    rec.setting.set(place, found);
  }
  return rec.setting.get(place);
}

// When the variables of threads were set for the first time. news: of each thread, for each variable, the step before which
// it was (-1 where no thread says so: its function has come to its end before the next step); behind: by the step of the thread right before that, [thread, variable].
function firstsOf(rec) {
  if (rec.firsts) return rec.firsts;
  const count = rec.variables.list.length;
  const { step, thread, variable } = rec.changes;
  const news = new Int32Array(32 * rec.meta.warps * count).fill(rec.count + 1);
  const behind = new Map();
  const told = new Set(variable);
  for (let key = 0; key < news.length; key++) if (!told.has(key % count)) news[key] = -1;
  for (let n = 0; n < step.length; n++) {
    const key = thread[n] * count + variable[n];
    if (news[key] <= rec.count) continue;
    news[key] = step[n];
    listOf(behind, ownStepBefore(rec, thread[n], step[n])).push([thread[n], variable[n]]);
  }
  return rec.firsts = { news, behind };
}

// The last step before `step` in which a thread took part, or -1.
function ownStepBefore(rec, thread, step) {
  const key = (thread >> 5) + 1;
  for (let at = lastBefore(rec.ofWarp, key, step); at >= 0; at = lastBefore(rec.ofWarp, key, at)) {
    if ((rec.steps.mask[at] >>> (thread % 32)) & 1) return at;
  }
  return -1;
}

// Adds to a set; returns whether it was not there.
function isNew(set, key) {
  if (set.has(key)) return false;
  set.add(key);
  return true;
}

// What a lane read in a step; of a product that ends, what the tensor core read for it.
function readsAt(rec, step, lane) {
  const { op, extra, mask, first, array, width } = rec.steps;
  if (rec.reads.has(op[step])) {
    if (array[step] < 0 || !width[step]) return []; // outside of every array, or zeros
    const row = first[step] + lanesIn(mask[step] & (2 ** lane - 1));
    return [readOf(rec, step, { lane, row, offset: rec.offsets[row] })];
  }
  const begun = extra[step];
  if (op[step] !== rec.op.end || op[begun] !== rec.op.wgmma) return [];
  rec.ofProducts ??= new Map();
  if (!rec.ofProducts.has(step)) {
    rec.ofProducts.set(step, stepsBetween(begun, step, (at) => op[at] === rec.op["copy read"] && extra[at] === begun)
      .flatMap((at) => lanesOf(rec, at).map((one) => readOf(rec, at, one))));
  }
  return rec.ofProducts.get(step);
}
