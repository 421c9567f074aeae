// numbers.js — questions/numbers.py for the browser, rule by rule: how typed numbers are read and by how much one is off.

const PREFIXES = "KMGTPE";
const SAME_RATIO = 0.01;
const LARGEST_POWER = 512;
const LARGEST_RATIO = 1e12;
const LONGEST = 60;

const GROUPS = "[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+|(?:_[0-9]{3})+)(?![0-9])";
const NUMBER = `(?:${GROUPS}|[0-9]+)(?:\\.[0-9]*)?|\\.[0-9]+`;
const FACTOR = new RegExp(`(-?)(${NUMBER})(?:e([+-]?[0-9]{1,3}))?(?: ?(?:\\^|\\*\\*) ?(-?[0-9]{1,3})(?![0-9.]))?`, "iy");
const SIGN = / ?([*/]) ?(?!\*)/y;
const SHORT = { byte: "b", us: "µs" };
const SPELLINGS = { "−": "-", "×": "*", "·": "*", "÷": "/", "μ": "µ" };

export class UnreadableNumber extends Error {}

export function readNumber(typed, unit = "") {
  let text = typed.replace(/[−×·÷μ]/g, (letter) => SPELLINGS[letter]).replace(/\s+/g, " ").trim();
  text = text.replace(/^\+/, "").replace(/^≈/, "").replace(/^~/, "").trim();
  if ([...text].length > LONGEST) {
    throw new UnreadableNumber(`This is too long for a number: type at most ${LONGEST} characters.`);
  }
  const [value, rest] = product(text);
  if (value === null) {
    throw new UnreadableNumber(`“${text}” cannot be read as a number: type one such as 1024, 1.5e9 or 2^20.`);
  }
  if (",.'’".includes(rest[0] ?? "none")) {
    throw new UnreadableNumber(
      `“${text}” can be read in two ways: use a point as the decimal sign, and commas between groups of three ` +
        "digits or not at all.",
    );
  }
  return finite(value * scale(text, rest.trim(), unit), text);
}

function finite(value, text) {
  if (!Number.isFinite(value)) throw new UnreadableNumber(`“${text}” is no finite number.`);
  return value;
}

// The match of a sticky expression at a place in the text.
function matchAt(expression, text, place) {
  expression.lastIndex = place;
  return expression.exec(text);
}

// The value of the factors at the beginning of the text, null if there is none, and what follows them.
function product(text) {
  let value = null, end = 0, sign = "*";
  let match = matchAt(FACTOR, text, 0);
  while (match) {
    const [whole, minus, digits, exponent, power] = match;
    let factor = finite(Number(digits.replace(/[, _]/g, "")) * finite(Number(`1e${exponent ?? 0}`), text), text);
    if (power) factor = finite(Math.abs(power) > LARGEST_POWER ? Infinity : factor ** Number(power), text);
    if (minus) factor = -factor;
    if (value !== null && sign === "/" && factor === 0) finite(Infinity, text);
    value = value === null ? factor : sign === "*" ? value * factor : value / factor;
    end = match.index + whole.length;
    const following = matchAt(SIGN, text, end);
    match = following && matchAt(FACTOR, text, SIGN.lastIndex);
    if (match) sign = following[1];
  }
  return [value, text.slice(end)];
}

function scale(text, typed, unit) {
  if (!typed || [oneUnit(unit), oneUnit(unit.split(" ")[0])].includes(oneUnit(typed))) return 1;
  if (!unit && new RegExp(`^[${PREFIXES}]i$`).test(typed)) return 1024 ** (1 + PREFIXES.indexOf(typed[0]));
  if (!unit && new RegExp(`^[k${PREFIXES}]$`).test(typed)) {
    throw new UnreadableNumber(`“${text}”: ${typed} can mean a power of 1000 or of 1024; type the number out.`);
  }
  if (/^[0-9*/^+(-]/.test(typed)) {
    throw new UnreadableNumber(`“${text}” cannot be read from “${typed}” on: type one number, such as 1024 or 2^20.`);
  }
  const asked = unit ? `in ${unit}, not in ${typed}` : `as a bare number, without ${typed}`;
  throw new UnreadableNumber(`The answer is asked ${asked}: convert it, and type the number.`);
}

function oneUnit(unit) {
  let plain = unit.toLowerCase();
  if (plain.length > 3) plain = plain.replace(/s$/, "");
  return SHORT[plain] ?? plain;
}

// ---- written numbers

function grouped(value, decimals = 0) {
  const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals, roundingMode: "halfEven" };
  return value.toLocaleString("en-US", digits);
}

// As Python's format ".<digits>g": half-way cases go to the even digit, and exponents have two digits.
export function general(value, digits) {
  if (value === 0) return "0";
  const exact = Math.abs(value).toExponential(100).split("e");
  const all = exact[0].replace(".", "");
  let exponent = Number(exact[1]);
  let kept = BigInt(all.slice(0, digits));
  const half = BigInt("5" + "0".repeat(all.length - digits - 1)), rest = BigInt(all.slice(digits));
  if (rest > half || (rest === half && kept % 2n === 1n)) kept += 1n;
  let text = kept.toString();
  if (text.length > digits) exponent += 1;
  text = text.slice(0, digits);
  const sign = value < 0 ? "-" : "";
  const strip = (number) => number.replace(/0+$/, "").replace(/\.$/, ""); // each has a point
  if (exponent < -4 || exponent >= digits) {
    const power = `${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
    return `${sign}${strip(`${text[0]}.${text.slice(1)}`)}e${power}`;
  }
  if (exponent < 0) return `${sign}${strip(`0.${"0".repeat(-exponent - 1)}${text}`)}`;
  return `${sign}${strip(`${text.slice(0, exponent + 1)}.${text.slice(exponent + 1)}`)}`;
}

export function writeNumber(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return grouped(value).replace(/^-0$/, "0");
  let digits = 4, text = general(value, digits);
  while (digits < 17 && !agrees(Number(text), value, 0)) text = general(value, ++digits);
  const large = Math.abs(value) >= 1e3 && Math.abs(value) < 1e15;
  return large ? grouped(value, Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))))) : text;
}

export function agrees(number, value, tolerance) {
  if (tolerance === 0 && Number.isInteger(value)) return number === value;
  return Math.abs(number - value) <= Math.max(tolerance, 1e-9) * Math.abs(value);
}

const near = (a, b, relative) => Math.abs(a - b) <= relative * Math.max(Math.abs(a), Math.abs(b));

export function howFarOff(number, value, unit) {
  const said = `${writeNumber(number)} is too ${number > value ? "large" : "small"}`;
  if (number === 0 || value === 0 || number < 0 !== value < 0) return `${said}.`;
  if (Math.abs(number - value) === 1 && Math.min(Math.abs(number), Math.abs(value)) > 2) return `${said} by one.`;
  const ratio = number / value;
  if (!(1 / LARGEST_RATIO < ratio && ratio < LARGEST_RATIO)) return `${said} by far.`;
  const larger = Math.max(ratio, 1 / ratio);
  const named = prefixMistaken(ratio, unit) || power(larger);
  if (named) return `${said}${named}`;
  if (larger < 1.5) return `${said}, by about ${general(100 * Math.abs(ratio - 1), 2)} %.`;
  return `${said}, by a factor of about ${rounded(larger)}.`;
}

function rounded(ratio) {
  const two = Number(general(ratio, 2));
  return two >= 10 && two < 1e6 ? grouped(two) : general(two, 2);
}

function prefixMistaken(ratio, unit) {
  const match = unit.match(new RegExp(`^([k${PREFIXES}])(i?)B\\b`));
  if (!match) return "";
  const steps = 1 + PREFIXES.indexOf(match[1].toUpperCase());
  const binary = `${match[1].toUpperCase()}iB`, decimal = `${steps === 1 ? "k" : match[1]}B`;
  const off = 1.024 ** (match[2] ? steps : -steps);
  if (!near(ratio, off, 0.004)) return "";
  const [given, asked] = match[2] ? [decimal, binary] : [binary, decimal];
  return `: it is the number of ${given}, and ${asked} are asked (${bytesOf(binary)}, ${bytesOf(decimal)}).`;
}

function bytesOf(unit) {
  const steps = 1 + PREFIXES.indexOf(unit[0].toUpperCase());
  return unit.includes("i") ? `1 ${unit} is 2^${10 * steps} bytes` : `1 ${unit} is 10^${3 * steps} bytes`;
}

function power(ratio) {
  const thousands = Math.round(Math.log(ratio) / Math.log(1000)), twos = Math.round(Math.log2(ratio));
  if (thousands && near(ratio, 1000 ** thousands, SAME_RATIO)) {
    const steps = thousands === 1 ? "one step" : `${thousands} steps`;
    return `, by a factor of ${grouped(1000 ** thousands)}: ${steps} of the prefixes k, M, G.`;
  }
  if (twos && twos % 10 === 0 && near(ratio, 2 ** twos, SAME_RATIO)) {
    const steps = twos === 10 ? "one step" : `${twos / 10} steps`;
    return `, by a factor of 2^${twos}: ${steps} of the prefixes Ki, Mi, Gi.`;
  }
  if (twos && near(ratio, 2 ** twos, SAME_RATIO)) {
    return `, by a factor of ${grouped(2 ** twos)}${twos > 1 ? ` (2^${twos})` : ""}.`;
  }
  return "";
}
