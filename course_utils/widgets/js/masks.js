// masks.js — sparse patterns as masks: their tiles, what they cost, and who reaches whom. The same definitions as
// course_utils.patterns; what draws them is in explorer.js and paint.js.

const EXACT_QUERIES = 1024; // of a long sequence: these first queries are counted one by one,
const SAMPLED_ROWS = 32; // and of the rows of tiles below them so many
const FULL_SIZES = { "16 K": 16384, "128 K": 131072 };
const [SKIPPED, PARTIAL, FULL] = [0, 1, 2];

// ---- the patterns: PATTERNS[kind](values, length) gives see(i, mark), which marks the keys that query i sees.
// mark(first, end, step, width) stands for the keys below end of runs of `width` keys (1) at first, first + step (1), …;
// it drops what lies outside the sequence.

export const PATTERNS = {
  causal: () => (i, mark) => mark(0, i + 1),
  full: (_, length) => (i, mark) => mark(0, length),
  sliding_window: ({ window }) => (i, mark) => mark(i - window + 1, i + 1),
  dilated: ({ window, dilation }) => (i, mark) => mark(i - (window - 1) * dilation, i + 1, dilation),
  dilated_sorted: ({ window, dilation }, length) => {
    // Positions 0, d, 2d, …, then 1, d + 1, …: in this order each residue class is a sliding window of its own.
    const [size, longer] = [Math.floor(length / dilation), length % dilation]; // the first classes have one more
    return (i, mark) => {
      const early = i < longer * (size + 1);
      const start = early ? i - (i % (size + 1)) : i - ((i - longer * (size + 1)) % size);
      mark(Math.max(i - window + 1, start), i + 1);
    };
  },
  power_of_two: () => (i, mark) => {
    mark(i, i + 1);
    for (let back = 1; back <= i; back *= 2) mark(i - back, i - back + 1);
  },
  strided: ({ stride }) => (i, mark) => {
    mark(i - stride, i + 1);
    mark(i % stride, i + 1, stride);
  },
  fixed: ({ stride, columns }) => (i, mark) => {
    mark(i - (i % stride), i + 1);
    mark(Math.max(stride - columns, 0), i + 1, stride, Math.min(columns, stride));
  },
  streaming: ({ sinks, window }) => (i, mark) => {
    mark(0, Math.min(sinks, i + 1));
    mark(i - window + 1, i + 1);
  },
  tree: ({ branching }) => (i, mark) => {
    if (branching === 1) return mark(0, i + 1); // a chain
    for (let node = i; node >= 0; node = Math.floor((node - 1) / branching)) mark(node, node + 1);
  },
  local: ({ radius }) => (i, mark) => mark(i - radius, i + radius + 1),
  local_2d: ({ width: most, radius }, length) => {
    const width = imageWidth(length, most);
    return (i, mark) => {
      const [x, y] = [i % width, Math.floor(i / width)];
      const [left, right] = [Math.max(x - radius, 0), Math.min(x + radius + 1, width)];
      for (let row = Math.max(y - radius, 0); row <= y + radius && row * width < length; row++) {
        mark(row * width + left, row * width + right);
      }
    };
  },
  block_diagonal: ({ block }) => (i, mark) => mark(i - (i % block), i - (i % block) + block),
  document: ({ tokens }) => (i, mark) => mark(i - (i % tokens), i - (i % tokens) + tokens),
  global_tokens: ({ count, spacing }, length) => {
    const isGlobal = (i) => i % spacing === 0 && i < count * spacing;
    return (i, mark) => (isGlobal(i) ? mark(0, length) : mark(0, (count - 1) * spacing + 1, spacing));
  },
  longformer: (values, length) => {
    const parts = [PATTERNS.local(values, length), PATTERNS.global_tokens(values, length)];
    return (i, mark) => parts.forEach((see) => see(i, mark));
  },
  random_blocks: ({ block, per_row, seed }, length) =>
    blockRows(block, length, (row, blocks) => drawBlocks(seed, row, blocks, per_row, () => false)),
  bigbird: ({ block, global_blocks, window_blocks, random_blocks, seed }, length) =>
    blockRows(block, length, (row, blocks) => {
      if (row < global_blocks) return [[0, blocks]];
      const reach = Math.floor(window_blocks / 2);
      const kept = (column) => column < global_blocks || Math.abs(row - column) <= reach;
      return [[0, global_blocks], [row - reach, row + reach + 1], ...drawBlocks(seed, row, blocks, random_blocks, kept)];
    }),
};

// The greatest width, `most` or less, of an image of `length` patches.
function imageWidth(length, most) {
  while (length % most) most--;
  return most;
}

// A pattern made of blocks: runsOf(row of blocks, number of blocks) lists the blocks its queries see, as [first, end).
function blockRows(block, length, runsOf) {
  const blocks = Math.ceil(length / block);
  const known = new Map();
  return (i, mark) => {
    const row = Math.floor(i / block);
    if (!known.has(row)) known.set(row, runsOf(row, blocks));
    for (const [first, end] of known.get(row)) mark(first * block, end * block);
  };
}

// The n-th draw of a row of blocks: 32-bit arithmetic, as in Python and CUDA.
export function hash(seed, row, n) {
  let x = seed ^ Math.imul(row, 0x9e3779b1) ^ Math.imul(n, 0x85ebca77);
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

// `count` different blocks that are not kept anyway, or as many as there are.
function drawBlocks(seed, row, blocks, count, kept) {
  let left = 0;
  for (let column = 0; column < blocks && left < count; column++) left += !kept(column);
  const drawn = new Set();
  for (let n = 0; drawn.size < Math.min(count, left); n++) {
    const column = hash(seed, row, n) % blocks;
    if (!kept(column)) drawn.add(column);
  }
  return [...drawn].map((column) => [column, column + 1]);
}

// ---- figures

// mark for a sequence of `length` tokens: takes the runs apart for run(first, end).
function runs(length, run) {
  return (first, end, step = 1, width = 1) => {
    if (first < 0) first += Math.ceil(-first / step) * step;
    if (end > length) end = length;
    if (step <= width) {
      if (first < end) run(first, end);
    } else for (; first < end; first += step) run(first, Math.min(first + width, end));
  };
}

// The mask as bits: bit j % 32 of word j >> 5 of row i is set where query i sees key j.
export function maskOf(kind, values, length) {
  const words = Math.ceil(length / 32);
  const bits = new Uint32Array(length * words);
  const see = PATTERNS[kind](values, length);
  let row = 0;
  const run = (first, end) => {
    const [low, high] = [first >> 5, (end - 1) >> 5];
    const [from, to] = [-1 << (first & 31), -1 >>> (31 - ((end - 1) & 31))];
    if (low === high) {
      bits[row + low] |= from & to;
      return;
    }
    bits[row + low] |= from;
    bits.fill(-1, row + low + 1, row + high);
    bits[row + high] |= to;
  };
  const mark = runs(length, run);
  for (let i = 0; i < length; i++, row += words) see(i, mark);
  return { length, words, bits };
}

function ones(word) {
  word -= (word >>> 1) & 0x55555555;
  word = (word & 0x33333333) + ((word >>> 2) & 0x33333333);
  return Math.imul((word + (word >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
}

// The tiles of `size` × `size`: state of each (skipped, partial, full), how many there are of each, and all pairs kept.
// As in BlockLists, a tile is full if all its keys exist and all its queries that exist see all of them.
export function tilesOf({ length, words, bits }, size) {
  const side = Math.ceil(length / size);
  const counts = new Int32Array(side * side);
  const state = new Uint8Array(side * side);
  const totals = [0, 0, 0];
  let pairs = 0;
  for (let i = 0; i < length; i++) {
    const first = Math.floor(i / size) * side;
    for (let w = 0; w < words; w++) {
      const word = bits[i * words + w];
      if (word === 0) continue;
      if (size >= 32) counts[first + Math.floor((w * 32) / size)] += ones(word);
      else {
        counts[first + 2 * w] += ones(word & 0xffff); // tiles of 16
        if (word >>> 16) counts[first + 2 * w + 1] += ones(word >>> 16);
      }
    }
  }
  for (let n = 0; n < side * side; n++) {
    pairs += counts[n];
    const existing = Math.min(length - Math.floor(n / side) * size, size);
    state[n] = counts[n] === existing * size ? FULL : counts[n] > 0 ? PARTIAL : SKIPPED;
    totals[state[n]] += 1;
  }
  return { size, side, state, pairs, skipped: totals[SKIPPED], partial: totals[PARTIAL], full: totals[FULL] };
}

// The layer after which the output at `query` first depends on each key, -1 where it never does. In each layer a
// token draws on the keys it sees, and on itself through the residual connection.
export function layersTo({ length, words, bits }, query) {
  const layers = new Int32Array(length).fill(-1);
  layers[query] = 0;
  let frontier = [query];
  for (let layer = 1; frontier.length; layer++) {
    const seen = new Uint32Array(words);
    for (const i of frontier) for (let w = 0; w < words; w++) seen[w] |= bits[i * words + w];
    frontier = [];
    for (let j = 0; j < length; j++) {
      if (layers[j] >= 0 || !((seen[j >> 5] >>> (j & 31)) & 1)) continue;
      layers[j] = layer;
      frontier.push(j);
    }
  }
  return layers;
}

// About how many tiles a long sequence visits: the first rows of tiles counted, the others estimated from a sample.
export function visitedAt(kind, values, length, size) {
  const side = Math.ceil(length / size);
  const see = PATTERNS[kind](values, length);
  const visited = new Uint8Array(side);
  const shift = Math.log2(size);
  const mark = runs(length, (first, end) => {
    const from = first >> shift;
    const to = (end - 1) >> shift;
    if (to - from > 8) visited.fill(1, from, to + 1); // slow to start, and most runs are short
    else for (let n = from; n <= to; n++) visited[n] = 1;
  });
  const markTiles = (first, end, step = 1, width = 1) => {
    if (step > size) return mark(first, end, step, width);
    end = Math.min(end, length); // no tile lies between the runs: one, to the end of the last
    mark(first, Math.min(end, first + Math.floor((end - 1 - first) / step) * step + width));
  };
  const count = (row) => {
    visited.fill(0);
    for (let i = row * size; i < Math.min((row + 1) * size, length); i++) see(i, markTiles);
    let sum = 0;
    for (let n = 0; n < side; n++) sum += visited[n];
    return sum;
  };
  const exact = Math.min(EXACT_QUERIES / size, side);
  const each = (side - exact) / SAMPLED_ROWS;
  let tiles = 0;
  for (let row = 0; row < exact; row++) tiles += count(row);
  for (let n = 0; n < SAMPLED_ROWS && each > 0; n++) {
    const place = hash(0, 0, n >> 1) / 2 ** 32; // drawn, so as not to fall in step with the pattern; mirrored in turn
    tiles += each * count(exact + Math.floor((n + (n % 2 ? 1 - place : place)) * each));
  }
  return tiles;
}

// The FLOPs of Q Kᵀ and P V for so many pairs of one head.
const flopsOf = (pairs, dim) => 4 * pairs * dim;

// Seconds for one launch: the slower of arithmetic on the visited tiles and moving Q, K, V and O (16 bit) once.
export function secondsOf(tiles, size, length, dim, rates) {
  const flops = rates.heads * flopsOf(tiles * size * size, dim);
  return Math.max(flops / rates.flops_per_second, (rates.heads * 4 * length * dim * 2) / rates.bytes_per_second);
}

// The pattern as one types it in Python.
export function codeOf(kind, values, length) {
  const { count, spacing, tokens } = values;
  const call = (name, given) => `${name}(${Object.entries(given).map(([key, value]) => `${key}=${value}`).join(", ")})`;
  const globals = `global_tokens(range(0, ${count * spacing}, ${spacing}))`;
  const rest = length % tokens;
  switch (kind) {
    case "dilated_sorted": return `${call("dilated", values)}, sorted by position mod ${values.dilation}`;
    case "fixed": return call("fixed", { ...values, columns: Math.min(values.columns, values.stride) });
    case "tree": return `tree([(i - 1) // ${values.branching} for i in range(${length})])`;
    case "document": return `document([${tokens}] * ${Math.floor(length / tokens)}${rest ? ` + [${rest}]` : ""})`;
    case "local_2d": {
      const width = imageWidth(length, values.width);
      return call("local_2d", { height: length / width, width, radius: values.radius });
    }
    case "global_tokens": return globals;
    case "longformer": return `local(radius=${values.radius}) | ${globals}`;
    default: return call(kind, values);
  }
}

const percent = (share) => `${number(100 * share, share < 0.0995 ? 2 : 1)} %`;
