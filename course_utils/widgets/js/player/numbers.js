// numbers.js — the numbers in a recording's bytes: how each type is read, and how a number is written in a few letters.

const SCRATCH = new DataView(new ArrayBuffer(8));
const SCRATCH_BYTES = new Uint8Array(SCRATCH.buffer);

// A float of `exponent` and `mantissa` bits. Without infinities (e4m3) only the largest code is not a number.
function smallFloat(bits, exponent, mantissa, { infinite = true } = {}) {
  const sign = (bits >>> (exponent + mantissa)) & 1 ? -1 : 1;
  const power = (bits >>> mantissa) & ((1 << exponent) - 1);
  const part = bits & ((1 << mantissa) - 1);
  const bias = (1 << (exponent - 1)) - 1;
  const largest = power === (1 << exponent) - 1;
  if (largest && infinite) return part ? NaN : sign * Infinity;
  if (largest && part === (1 << mantissa) - 1) return NaN;
  return power ? sign * 2 ** (power - bias) * (1 + part / (1 << mantissa)) : sign * 2 ** (1 - bias) * (part / (1 << mantissa));
}

// Of each type its bytes, and how it is read from the scratch bytes.
const NUMBERS = {
  float32: { size: 4, read: () => SCRATCH.getFloat32(0, true) },
  float16: { size: 2, read: () => smallFloat(SCRATCH.getUint16(0, true), 5, 10) },
  bfloat16: { size: 2, read: () => smallFloat(SCRATCH.getUint16(0, true), 8, 7) },
  float8_e4m3: { size: 1, read: () => smallFloat(SCRATCH.getUint8(0), 4, 3, { infinite: false }) },
  float8_e5m2: { size: 1, read: () => smallFloat(SCRATCH.getUint8(0), 5, 2) },
  float64: { size: 8, read: () => SCRATCH.getFloat64(0, true) },
  int32: { size: 4, read: () => SCRATCH.getInt32(0, true), whole: true },
  uint32: { size: 4, read: () => SCRATCH.getUint32(0, true), whole: true },
  int64: { size: 8, read: () => Number(SCRATCH.getBigInt64(0, true)), whole: true },
  uint64: { size: 8, read: () => Number(SCRATCH.getBigUint64(0, true)), whole: true },
  int16: { size: 2, read: () => SCRATCH.getInt16(0, true), whole: true },
  uint16: { size: 2, read: () => SCRATCH.getUint16(0, true), whole: true },
  int8: { size: 1, read: () => SCRATCH.getInt8(0), whole: true },
  uint8: { size: 1, read: () => SCRATCH.getUint8(0), whole: true },
  bool: { size: 1, read: () => SCRATCH.getUint8(0), whole: true },
};
// What a type is called in CUDA.
const OF_CUDA = {
  float: "float32", int: "int32", unsigned: "uint32", "unsigned int": "uint32", long: "int32", bool: "uint8",
  double: "float64", bfloat16: "bfloat16", __half: "float16", half: "float16", __nv_bfloat16: "bfloat16", uint32_t: "uint32", int32_t: "int32",
};

// The number of an element before `step`; undefined where its bytes are unknown. type: one of NUMBERS.
export function elementAt(rec, array, offset, type, step) {
  const { size, read } = NUMBERS[type];
  return bytesAt(rec, array, offset, size, step, SCRATCH_BYTES) === UNKNOWN ? undefined : read();
}

// What g++ calls the types of local variables.
const OF_VARIABLE = {
  ...OF_CUDA, "long int": "int64", "long long int": "int64", "long unsigned int": "uint64", "long long unsigned int": "uint64",
  "short int": "int16", "short unsigned int": "uint16", "signed char": "int8", char: "int8", "unsigned char": "uint8",
  char16_t: "uint16", char32_t: "uint32", wchar_t: "int32",
};

// The number in the 32-bit words of a local variable's element: one, or the low and the high one.
export function numberOfWords([low, high = 0], type) {
  SCRATCH.setUint32(0, low, true);
  SCRATCH.setUint32(4, high, true);
  return NUMBERS[OF_VARIABLE[type] ?? "float32"].read();
}

// The type of an array's numbers: its own, or where it has none the one that the reader chose.
const typeIn = (array, view) => (NUMBERS[array.dtype] ? array.dtype : view.type);

// A number in about `room` letters.
export function brief(value, room = 6) {
  if (value === undefined) return "";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  const size = Math.abs(value);
  const whole = Number.isInteger(value);
  const sign = value < 0 ? 1 : 0;
  const digits = whole ? 0 : Math.max(1, Math.min(4, room - 2 - sign));
  let text = whole ? `${value}` : `${Number(value.toPrecision(digits))}`;
  if (text.length > room + sign) text = `${Number(value.toPrecision(Math.max(1, digits - 1)))}`;
  if (text.length > room + sign + 1 || (size && size < 1e-3)) text = value.toExponential(room > 6 ? 2 : 0);
  return text.replace("e+", "e").replaceAll("-", "−");
}
