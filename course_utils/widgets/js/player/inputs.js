// inputs.js — where the inputs of a write came from, statement by statement.

const MOST_STATEMENTS = 200; // that are looked at, back from a write

// The reads whose numbers a thread used for what it wrote at `step`: those of the same statement, and, through the local
// variables that its line names, those of the statements that last changed them. [{ step, array, offset, through }], where
// `through` lists the variables on the way. It goes by lines: two statements in one line are one, and a condition or an
// index counts as an input where it stands in the line. Of a copy it is what was copied: the byte `delta` of the lane's.
export function inputsOf(rec, step, lane, delta = 0) {
  if (rec.steps.op[step] === rec.op["copy write"]) return copied(rec, step, lane, delta);
  const thread = 32 * rec.steps.warp[step] + lane;
  const names = new Map(rec.variables.list.map(({ name, number }) => [name, number]));
  const found = [];
  const seen = new Set();
  const queue = [{ step, through: [] }];
  while (queue.length && seen.size < MOST_STATEMENTS) {
    const { step: at, through } = queue.shift();
    if (seen.has(at)) continue;
    seen.add(at);
    for (const read of readsOfStatement(rec, at, lane)) found.push({ ...read, through });
    for (const name of new Set(lineOf(rec, at).match(/[A-Za-z_]\w*/g))) {
      if (!names.has(name)) continue;
      const changed = lastChange(rec, thread, names.get(name), at);
      const before = changed < 0 ? -1 : ownStepBefore(rec, rec.steps.warp[step], lane, changed);
      if (before >= 0 && before < at) queue.push({ step: before, through: [...through, name] });
    }
  }
  return found;
}

// The source of a copied byte: of cp.async the same lane of the step that began it; of the copy engine the same row of the
// reading step that belongs to the writing one, the k-th of the copy to the k-th. Zeros that were written have none.
function copied(rec, step, lane, delta) {
  const { op, extra, width } = rec.steps;
  const begun = extra[step];
  const ofCopy = (name) => {
    const found = [];
    for (let at = begun + 1; at <= step || op[at] !== rec.op.end; at++) {
      if (at >= rec.count) break;
      if (op[at] === rec.op[name] && extra[at] === begun) found.push(at);
    }
    return found;
  };
  const reading = op[begun] === rec.op["copy read"] ? begun : ofCopy("copy read")[ofCopy("copy write").indexOf(step)] ?? -1;
  const from = reading >= 0 && width[reading] ? reading : -1;
  const own = from < 0 ? undefined : lanesOf(rec, from).find((one) => one.lane === lane);
  return own ? [{ step: from, array: rec.steps.array[from], offset: own.offset + delta, through: [] }] : [];
}

function lineOf(rec, step) {
  const place = placeOf(rec, step);
  return place ? (rec.meta.sources[place.file] ?? "").split("\n")[place.line - 1]?.replace(/\/\/.*/, "") ?? "" : "";
}

// The reads of a lane in the statement that ends at `step`: back to its last step in another line, or its last write.
function readsOfStatement(rec, step, lane) {
  const found = [];
  const place = rec.steps.place[step];
  for (let at = step; at >= 0 && rec.steps.place[at] === place; at = ownStepBefore(rec, rec.steps.warp[step], lane, at)) {
    if (at !== step && rec.writes.has(rec.steps.op[at])) break;
    if (!rec.reads.has(rec.steps.op[at])) continue;
    const own = lanesOf(rec, at).find((one) => one.lane === lane);
    if (own) found.unshift({ step: at, array: rec.steps.array[at], offset: own.offset });
  }
  return found;
}

// The last step before `step` in which a lane of a warp took part, or -1.
function ownStepBefore(rec, warp, lane, step) {
  for (let at = lastBefore(rec.ofWarp, warp + 1, step); at >= 0; at = lastBefore(rec.ofWarp, warp + 1, at)) {
    if ((rec.steps.mask[at] >>> lane) & 1) return at;
  }
  return -1;
}

// The step at which a variable of a thread was last seen changed at or before `step`, or -1.
function lastChange(rec, thread, variable, step) {
  let last = -1;
  for (let n = 0; n < rec.variables.list[variable].count; n++) last = Math.max(last, variableAt(rec, thread, variable, n, step)?.step ?? -1);
  return last;
}
