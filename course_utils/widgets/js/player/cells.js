// cells.js — how an element of memory looks: coloured by its value, its last writer, its age or its bank, and what the
// colours mean.

const WARPS = ["#d1495b", "#e08e26", "#b3a100", "#4f9d4a", "#1f9aa8", "#5b86e5", "#9471dd", "#c04f9f"]; // LANES_OF_A_READ of plots/look.py
const COLOURINGS = { value: "value", writer: "last writer", age: "age", bank: "bank" };
const OLDEST = 5; // barriers: what is older has the same colour
const BANKS = 32;

// Colours as a canvas keeps them, in one number: bytes r, g, b and 255. 0 is no colour.
const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const luminance = (colour) => (0.2126 * (colour & 255) + 0.7152 * ((colour >> 8) & 255) + 0.0722 * ((colour >> 16) & 255)) / 255;
const hexed = (colour) => packed([1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
const PALETTE = Uint32Array.from({ length: 256 }, (_, n) => packed(colourAt(n / 255)));
const OF_BANK = Uint32Array.from({ length: BANKS }, (_, bank) => packed(colourAt(bank / BANKS, TWILIGHT)));
const OF_WARP = WARPS.map(hexed);
const NAN = "#8a8a8a"; // in no ramp, and not hatched: it is known
const OF_NAN = hexed(NAN);
const [OF_ENGINE, OF_AGE] = [hexed("#777777"), Uint32Array.from({ length: OLDEST + 1 }, (_, age) => packed(colourAt(1 - age / OLDEST)))];

// How elements look: colour(offset), 0 where there is nothing to show, and the text(offset) in a cell with room for it.
function lookOf(rec, view, { array, type, size }, [low, high]) {
  const { number } = array;
  const { read } = NUMBERS[type];
  const isShared = array.space === "shared";
  const scale = high > low ? 255 / (high - low) : 0;
  const bankOf = (offset) => ((array.begin + offset) >> 2) % BANKS;
  const outside = (offset) => offset < array.low || offset + size > array.end;
  const writer = (offset) => lastWrite(rec, number, offset, size, view.step);
  const now = barriersBefore(rec, view.step);
  const age = (step) => now - barriersBefore(rec, step);
  switch (view.colour) {
    case "bank": return {
      colour: (offset) => (outside(offset) ? 0 : OF_BANK[bankOf(offset)]),
      text: (offset) => (outside(offset) ? "" : `${bankOf(offset)}`),
    };
    case "writer": return {
      colour(offset) {
        const step = writer(offset);
        if (step < 0) return 0;
        return rec.steps.warp[step] < 0 ? OF_ENGINE : OF_WARP[rec.steps.warp[step] % WARPS.length];
      },
      text(offset) {
        const step = writer(offset);
        return step < 0 ? "" : rec.steps.warp[step] < 0 ? "c" : `${rec.steps.warp[step]}`;
      },
    };
    case "age": return {
      colour: (offset) => (writer(offset) < 0 ? 0 : OF_AGE[Math.min(age(writer(offset)), OLDEST)]),
      text: (offset) => (writer(offset) < 0 ? "" : `${age(writer(offset))}`),
    };
    default: return {
      colour(offset) {
        const step = bytesAt(rec, number, offset, size, view.step, SCRATCH_BYTES);
        if (step === UNKNOWN || (isShared && step === AT_LAUNCH)) return 0;
        const value = read();
        if (Number.isNaN(value)) return OF_NAN;
        return PALETTE[Math.min(Math.max(Math.round(scale ? (value - low) * scale : 127), 0), 255)];
      },
      text(offset) {
        const step = bytesAt(rec, number, offset, size, view.step, SCRATCH_BYTES);
        return step === UNKNOWN || (isShared && step === AT_LAUNCH) ? "" : brief(read(), 5);
      },
    };
  }
}

// Smallest and largest number that an array ever holds, for the colours: of up to 20,000 of its values.
function spreadOf(rec, number, type) {
  const array = rec.arrays[number];
  const { size, read } = NUMBERS[type];
  let [low, high] = [Infinity, -Infinity];
  const see = (value) => {
    if (!Number.isFinite(value) || Math.abs(value) > 1e30) return; // a mask's −1e38 would leave one colour to the rest
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  const look = (bytes, from) => {
    SCRATCH_BYTES.set(bytes.subarray(from, from + size));
    see(read());
  };
  const elements = Math.floor(array.bytes / size);
  const stride = Math.max(1, Math.floor(elements / 20000));
  if (array.space !== "shared") for (let n = 0; n < elements; n += stride) look(rec.initial, array.kept + n * size);
  const cells = Math.ceil(array.bytes / array.cell);
  const [from, to] = [rec.written.start[array.base], rec.written.start[array.base + cells]];
  const every = Math.max(1, Math.floor((to - from) / 20000));
  for (let n = from; n < to; n += every) if (rec.written.at[n] % size === 0) look(rec.wordBytes, rec.written.at[n]);
  return low <= high ? [low, high] : [0, 0];
}

// Diagonal lines to fill with, made once for an ink: a step has no time to draw hundreds.
const HATCHES = new Map();
function hatching(ctx, ink) {
  if (!HATCHES.has(ink)) {
    const tile = new OffscreenCanvas(6, 6);
    const lines = tile.getContext("2d");
    lines.globalAlpha = 0.35;
    lines.strokeStyle = ink;
    for (const shift of [-6, 0, 6]) {
      lines.moveTo(shift - 1, 7);
      lines.lineTo(shift + 7, -1);
    }
    lines.stroke();
    HATCHES.set(ink, tile);
  }
  return ctx.createPattern(HATCHES.get(ink), "repeat");
}

const outlined = (colour, more = "") => element("i", { class: `ak-swatch ak-outlined ${more}`, style: `border-color: ${colour}; --ak-mark: ${colour}` });

function legendOf(rec, view, array, [low, high]) {
  const ramp = (map, from, to) => element("span", {}, from, element("i", {
    class: "ak-ramp", style: `background: linear-gradient(to right, ${map.map((c) => `rgb(${c.join(",")})`).join(",")})`,
  }), to);
  const hatched = (words) => element("span", {}, element("i", { class: "ak-swatch ak-hatch" }), words);
  const never = [hatched(array.space === "shared" ? "never written" : "as at the launch")];
  if (view.colour === "value") {
    // Between the first and the last byte that the block touched are others, too, with their value from before.
    const beyond = array.low > 0 || array.end < wholeBytes(array) ? [hatched("beyond what this block touches")] : [];
    return [ramp(VIRIDIS, brief(low), brief(high)), ...(array.space === "shared" ? never : beyond)];
  }
  if (view.colour === "bank") return [ramp(TWILIGHT, "bank 0", "31")];
  if (view.colour === "age") return [ramp([...VIRIDIS].reverse(), "barriers since the write: 0", `${OLDEST} or more`), ...never];
  const { warps } = rec.meta;
  const engine = rec.ofWarp.start[1] ? [element("span", {}, swatch("#777777"), "c: the copy engine")] : [];
  return [
    element("span", {}, warps > WARPS.length ? "warp, modulo 8:" : "warp:"),
    ...WARPS.slice(0, warps).map((colour, warp) => element("span", {}, swatch(colour), `${warp}`)), ...engine, ...never,
  ];
}
