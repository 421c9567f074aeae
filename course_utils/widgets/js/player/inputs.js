// inputs.js — what went into a write. Python has found it, read by read, and says there what a statement is
// (write_of_each_read in course_utils/emulator/origins.py); here it is looked up.

// The reads that went into what a lane wrote at `step`, in their order: [{ step, lane, array, offset, width }]. Of a copy the
// one source of the byte that lies `delta` bytes behind the beginning of the lane's, if it has one.
export function inputsOf(rec, { step, lane, delta }) {
  const { op, mask, first, array, width } = rec.steps;
  rec.inputs ??= historyOf(rec.into.length, (see) => forEachStep(rec, (at) => {
    if (!rec.reads.has(op[at])) return;
    for (let row = first[at], end = row + lanesIn(mask[at]); row < end; row++) if (rec.into[row] >= 0) see(rec.into[row], at, row);
  }));
  const row = first[step] + lanesIn(mask[step] & (2 ** lane - 1));
  const { start, step: steps, at: rows } = rec.inputs;
  const reads = [];
  for (let n = start[row]; n < start[row + 1]; n++) {
    const at = steps[n];
    reads.push({ step: at, lane: nthLane(mask[at], rows[n] - first[at]), array: array[at], offset: rec.offsets[rows[n]], width: width[at] });
  }
  if (op[step] !== rec.op["copy write"]) return reads;
  return reads.filter((read) => delta < read.width).map((read) => ({ ...read, offset: read.offset + delta, width: 1 }));
}
