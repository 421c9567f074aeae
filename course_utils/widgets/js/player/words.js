// words.js — what the player says about a step, an element and a thread.

const DOES = {
  read: ["reads", "read"],
  write: ["writes", "write"],
  atomic: ["changes", "change"],
  "copy read": ["starts to copy", "start to copy"],
  "copy write": ["has a copy land:", "have a copy land:"],
  barrier: ["arrives at", "arrive at"],
  "warp barrier": ["meets at a barrier of the warp", "meet at a barrier of the warp"],
  product: ["multiplies on the tensor cores", "multiply on the tensor cores"],
  wgmma: ["starts a product of its warpgroup", "start a product of their warpgroup"],
  copy: ["orders a copy from the copy engine", "order a copy from the copy engine"],
  arrive: ["arrives at", "arrive at"],
  wait: ["waits", "wait"],
  exchange: ["exchanges numbers between its lanes", "exchange numbers"],
};

// Numbers as ranges: [0, 1, 2, 5] -> "0–2, 5".
export function ranges(numbers) {
  const parts = [];
  for (const n of numbers) {
    const last = parts.at(-1);
    if (last && n === last[1] + 1) last[1] = n;
    else parts.push([n, n]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}

const lanesOfMask = (mask) => [...Array(32).keys()].filter((lane) => (mask >>> lane) & 1);

// An element by its indices, "tile.K[3][5]", of a vector by its component, "tile.V[3][5].x"; where nobody knows what lies
// there, by its byte, "shared + 132".
export function elementName(array, offset) {
  if (array.dtype === "bytes") return `${array.name} + ${offset}`;
  let rest = Math.floor(offset / array.itemsize);
  const indices = [];
  for (const size of [...array.shape].reverse()) {
    indices.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  const component = array.is_vector ? `.${"xyzw"[indices.pop()]}` : "";
  return `${array.name}${indices.map((index) => `[${index}]`).join("")}${component}`;
}

// Who does what at a step: "Warp 2 reads 32 × 4 bytes of key at line 41".
export function deedOf(rec, step) {
  const { op, warp, mask, array, extra } = rec.steps;
  const name = rec.meta.ops[op[step]];
  const line = placeOf(rec, step);
  const where = line ? ` at line ${line.line}` : "";
  if (name === "end") return endOf(rec, extra[step]);
  if (name === "phase") return `A phase of the ${mbarrier(rec, step)} is over, the one of parity ${rec.steps.width[step]}`;
  const what = { barrier: atBarrier, arrive: arrivesAt, wait: waitsFor }[name]?.(rec, step) ?? accessOf(rec, step);
  if (warp[step] < 0) return `${engineOf(rec, step)} ${engineDoes(rec, step)}${what}${where}${productOf(rec, step)}`;
  const lanes = lanesOfMask(mask[step]);
  const whole = lanes.length === Math.min(32, rec.meta.threads - 32 * warp[step]); // the last warp may be a part of one
  const several = !whole && lanes.length > 1;
  const who = whole ? `Warp ${warp[step]}` : `Lane${several ? "s" : ""} ${ranges(lanes)} of warp ${warp[step]}`;
  return `${who} ${DOES[name][several ? 1 : 0]}${what}${where}`;
}

// What is over, of what a step began.
function endOf(rec, begun) {
  const name = rec.meta.ops[rec.steps.op[begun]];
  if (name === "barrier") {
    const last = placeOf(rec, begun);
    return `${atBarrier(rec, begun).replace(/^ ./, (first) => first[1].toUpperCase())} opens: all have arrived${last ? `, the last at line ${last.line}` : ""}`;
  }
  const what = { wgmma: "The product", copy: "The copy", "copy read": "The copy" }[name] ?? "What";
  return `${what} that warp ${rec.steps.warp[begun]} began at step ${bytes(begun)} is over`;
}

function accessOf(rec, step) {
  const { op, warp, mask, width, extra } = rec.steps;
  const array = rec.arrays[rec.steps.array[step]];
  if (!rec.addressed.has(op[step]) || (!array && warp[step] < 0)) return "";
  const lanes = lanesOfMask(mask[step]).length;
  const size = (one) => `${lanes > 1 ? `${lanes} × ` : ""}${plural(one, "byte")}`;
  if (!array) return ` ${size(extra[step])} outside of every array`;
  return ` ${width[step] ? `${size(width[step])} of ` : ""}${array.name}`;
}

const isOfProduct = (rec, step) => rec.meta.ops[rec.steps.op[rec.steps.extra[step]]] === "wgmma";

// What it does: "copy read" is a read of the copy engine, and of the tensor cores, which copy nothing.
function engineDoes(rec, step) {
  const name = rec.meta.ops[rec.steps.op[step]];
  if (name !== "copy read") return DOES[name][0];
  return isOfProduct(rec, step) ? "read" : "reads";
}

// " for the product that warp 4 began at step 120", if that is what they read for.
function productOf(rec, step) {
  const begun = rec.steps.extra[step];
  const isRead = rec.steps.op[step] === rec.op["copy read"] && isOfProduct(rec, step);
  return isRead ? ` for the product that warp ${rec.steps.warp[begun]} began at step ${bytes(begun)}` : "";
}

// Who does what none of the block's threads does.
function engineOf(rec, step) {
  const name = rec.meta.ops[rec.steps.op[step]];
  if (name === "write") return "Nobody of this block"; // another block, or what the compiler does not report
  return isOfProduct(rec, step) ? "The tensor cores" : "The copy engine";
}

// Where an mbarrier lies: in an array of them, or among other bytes.
const placeOfMbarrier = (array, offset) => (array.itemsize === 8 ? elementName(array, offset) : `${array.name} + ${offset}`);

const mbarrier = (rec, step) => `mbarrier at ${placeOfMbarrier(rec.arrays[rec.steps.array[step]], rec.steps.extra[step])}`;

const atBarrier = (rec, step) => (rec.steps.extra[step] ? ` barrier ${rec.steps.extra[step]}` : " the block's barrier");

const CLUSTER = 16; // in `extra` of what has no mbarrier; below it a named barrier, above it what is waited for
const WAITED_FOR = { 17: " for its products", 18: " for its copies", 19: " for its copies" };

function arrivesAt(rec, step) {
  const { array, extra } = rec.steps;
  if (array[step] >= 0) return ` the ${mbarrier(rec, step)}`;
  return extra[step] === CLUSTER ? " the barrier of the cluster" : ` barrier ${extra[step]}`;
}

function waitsFor(rec, step) {
  return rec.steps.array[step] < 0 && WAITED_FOR[rec.steps.extra[step]] ? WAITED_FOR[rec.steps.extra[step]] : ` at${arrivesAt(rec, step)}`;
}

// What an access costs: sectors of global memory, passes through the banks of shared memory.
function costOf(rec, step) {
  const array = rec.arrays[rec.steps.array[step]];
  const rows = lanesOf(rec, step);
  if (!array || !rows.length || !rec.steps.width[step] || rec.steps.warp[step] < 0) return "";
  if (array.space === "global") return ` It touches ${plural(sectorsOf(rec, step), "sector")} of 32 bytes.`;
  const passes = wavefrontsOf(rec, step);
  const least = Math.ceil((rows.length * rec.steps.width[step]) / 128);
  if (passes <= least) return ` It takes ${plural(passes, "pass", "passes")} through the banks.`;
  return ` It takes ${plural(passes, "pass", "passes")} through the banks: a bank conflict.`;
}

// What one lane reads or writes at a step: " Lane 5: tile[3][5] = 0.25."
function laneOf(rec, view) {
  const one = lanesOf(rec, view.step).find(({ lane }) => lane === view.lane);
  if (!one || !rec.steps.width[view.step] || rec.steps.warp[view.step] < 0) return "";
  const array = rec.arrays[rec.steps.array[view.step]];
  const type = typeIn(array, view);
  const at = (step) => brief(elementAt(rec, array.number, one.offset, type, step), 8);
  const name = elementName(array, one.offset);
  return rec.writes.has(rec.steps.op[view.step]) ? ` Lane ${view.lane}: ${name} becomes ${at(view.step + 1)}.` : ` Lane ${view.lane}: ${name} = ${at(view.step)}.`;
}

// The state in words.
export function describeStep(rec, view) {
  const { step } = view;
  const hazards = hazardsOf(rec, step);
  const words = `Step ${bytes(step)} of ${bytes(rec.count - 1)}. ${deedOf(rec, step)}.${costOf(rec, step)}${laneOf(rec, view)}`;
  if (!hazards.length) return words;
  return `${words} ${hazardWords(rec, step, hazards, view.other >= 0 ? view.other : hazards[0].other)}`;
}

// What races with a step: "Hazard: lanes 0–3 read what warp 1 wrote at step 3, line 5, and no barrier stands between."
// other: the step that is named, of several; the finding's, if one is shown.
function hazardWords(rec, step, hazards, other) {
  const { warp } = rec.steps;
  const lanes = hazards.map(({ lane }) => lane);
  const several = warp[step] >= 0 && lanes.length > 1;
  const who = warp[step] < 0 ? "it" : `lane${several ? "s" : ""} ${ranges(lanes)}`;
  const deed = `${rec.reads.has(rec.steps.op[step]) ? "read" : "write"}${several ? "" : "s"}`;
  const place = placeOf(rec, other);
  const when = `step ${bytes(other)}${place ? `, line ${place.line}` : ""}`;
  if (other === step) return `Hazard: ${who} ${deed} different numbers to one place in this step.`;
  if (other > step) return `Hazard: ${who} ${deed} where a copy under way lands at ${when}, and nobody has waited for it.`;
  if (warp[other] >= 0 && warp[other] === warp[step]) {
    const over = rec.reads.has(rec.steps.op[step]) ? "what another lane of the warp wrote" : "over what another lane of the warp read";
    const barrier = racesBetweenWarps(rec, step, other) ? "__syncthreads()" : "__syncwarp()"; // which orders the lanes of a warp, too
    return `Hazard: ${who} ${deed} ${over} at ${when}, and no ${barrier} stands between.`;
  }
  const whose = warp[other] < 0 ? engineOf(rec, other).replace("The", "the") : `warp ${warp[other]}`;
  const what = rec.reads.has(rec.steps.op[step]) ? `what ${whose} wrote` : `over what ${whose} ${rec.reads.has(rec.steps.op[other]) ? "read" : "wrote"}`;
  return `Hazard: ${who} ${deed} ${what} at ${when}, and no barrier stands between.`;
}

// The index of a thread in the block, (x, y, z).
export function threadIndex(rec, warp, lane) {
  const [x, y] = rec.meta.block;
  const thread = 32 * warp + lane;
  return `(${thread % x}, ${Math.floor(thread / x) % y}, ${Math.floor(thread / (x * y))})`;
}
