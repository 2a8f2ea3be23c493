// Numbers as people write them, with the same digits as the command line (flopwise.units).

/** `value` with `digits` decimals and thousands separators; exact halves go to the even digit, as in Python. */
export function fixed(value, digits) {
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const long = Math.abs(value).toFixed(Math.min(100, digits + 60));
  const dot = long.indexOf(".");
  const kept = long.slice(0, dot + (digits ? 1 + digits : 0));
  const rest = long.slice(dot + 1 + digits);
  const half = "5".padEnd(rest.length, "0");
  const last = Number(kept.at(-1));
  let units = BigInt(kept.replace(".", ""));
  if (rest > half || (rest === half && last % 2 === 1)) units += 1n;
  const text = units.toString().padStart(digits + 1, "0");
  const whole = text.slice(0, text.length - digits).replace(/\B(?=(\d{3})+$)/g, ",");
  return sign + whole + (digits ? `.${text.slice(text.length - digits)}` : "");
}

function threeDigits(value) {
  const size = Math.abs(value);
  return fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

function withPrefix(value, unit, prefixes, base = 1000) {
  let size = Math.abs(value);
  let step = 0;
  while (size >= base * 0.9995 && step < prefixes.length - 1) {
    size /= base;
    step += 1;
  }
  return `${threeDigits(value / base ** step)} ${prefixes[step].trim()}${unit}`;
}

export function bytes(value) {
  let size = Math.abs(value);
  let step = 0;
  while (size >= 1023.5 && step < 5) {
    size /= 1024;
    step += 1;
  }
  return `${threeDigits(value / 1024 ** step)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][step]}`;
}

export const gib = (value) =>
  Math.abs(value) > 0 && Math.abs(value) < 0.05 * 2 ** 30 ? bytes(value) : `${fixed(value / 2 ** 30, 2)} GiB`;
export const rate = (value, unit = "B/s") => withPrefix(value, unit, " kMGTPEZY");
export const count = (value) => withPrefix(value, "", " kMBTPE").trimEnd();
export const flops = (value) => withPrefix(value, "FLOP", " kMGTPEZY");
export const joules = (value) => withPrefix(value / 3600, "Wh", " kMGT");
export const percent = (fraction, digits = 1) => `${fixed(100 * fraction, digits).replaceAll(",", "")} %`;

/** A probability as a whole percentage; one that only rounds to 0 or 100 % is `<1 %` or `>99 %`. */
export function chance(probability) {
  const whole = Number(fixed(100 * probability, 0));
  return whole < 1 ? "<1 %" : whole > 99 ? ">99 %" : `${whole} %`;
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "unbounded";
  const size = Math.abs(value);
  for (const [limit, scale, unit] of [[1e-3, 1e6, "µs"], [1, 1e3, "ms"], [120, 1, "s"], [7200, 1 / 60, "min"]]) {
    if (size < limit) return `${threeDigits(value * scale)} ${unit}`;
  }
  return size < 172800 ? `${threeDigits(value / 3600)} h` : `${threeDigits(value / 86400)} days`;
}

export function usd(value) {
  const size = Math.abs(value);
  return `${value < 0 ? "-" : ""}$${fixed(size, size > 0 && size < 0.1 ? 4 : size < 1000 ? 2 : 0)}`;
}

/** Dollars at an axis: $18.4k. */
export const briefUsd = (value) => `$${count(value).replace(" ", "")}`;

/** A value as `text` writes it; "-" where it is not known. */
export const known = (value, text) => (value === null || value === undefined ? "-" : text(value));

/** A number of four digits, or as many as stand before its point; never with a power of ten. */
export function plain(value) {
  if (Math.abs(value) >= 1000) return fixed(value, 0);
  const text = String(Number(value.toPrecision(4)));
  return text.includes("e") ? Number(value.toPrecision(4)).toFixed(24).replace(/0+$/, "") : text;
}

/** A figure by the unit that its name ends with. */
export function figure(name, value) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (name.endsWith("_frac")) return percent(value);
  if (name.includes("usd")) return usd(value);
  if (name.endsWith("bytes_per_s")) return rate(value);
  if (name.endsWith("flops_per_s")) return rate(value, "FLOP/s");
  if (name.endsWith("_per_s") || name.includes("_per_s_")) return value >= 1e5 ? count(value) : plain(value);
  if (name.endsWith("bytes")) return bytes(value);
  if (name.endsWith("flops")) return flops(value);
  if (name.endsWith("joules")) return value < 3600 ? `${value >= 100 ? fixed(value, 0) : Number(value.toPrecision(3))} J` : joules(value);
  if (name.endsWith("_w")) return rate(value, "W");
  if (name.endsWith("_hz")) return rate(value, "Hz");
  if (name.endsWith("_c")) return `${plain(value)} °C`;
  if (name === "seconds" || name.endsWith("_s")) return value ? seconds(value) : "0 s";
  return plain(value);
}

const BY_UNIT = {
  s: (value) => (value ? seconds(value) : "0 s"), B: bytes, "B/s": rate, FLOP: flops, "FLOP/s": (value) => rate(value, "FLOP/s"), USD: usd,
  "USD/h": (value) => `${usd(value)}/h`, J: (value) => (value < 3600 ? `${plain(value)} J` : joules(value)), W: (value) => rate(value, "W"),
  Hz: (value) => rate(value, "Hz"), frac: percent,
};

/** A figure of the provenance with its unit. */
export function withUnit(value, unit = "") {
  if (value === null || value === undefined) return "unknown";
  if (typeof value !== "number") return `${value} ${unit}`.trimEnd();
  if (BY_UNIT[unit]) return BY_UNIT[unit](value);
  const whole = Number.isInteger(value) && Math.abs(value) < 1e7;
  if (unit.startsWith("J/") && Math.abs(value) > 0 && Math.abs(value) < 1e-6) return `${plain(value * 1e12)} p${unit}`;
  const number = whole ? fixed(value, 0) : Math.abs(value) >= 1e7 ? count(value) : plain(value);
  return `${number} ${number === "1" && /^[a-z]{2,}$/i.test(unit) ? unit.replace(/s$/, "") : unit}`.trimEnd(); // 1 GPU, 2 GPUs
}

/** Of which requests a plan tells a latency; "" for users in step. */
export function percentileOf(plan, name) {
  const { requests_per_s: rate, trace } = plan.workload.traffic ?? {};
  const percentile = plan.percentiles[name];
  if (!percentile || (rate === undefined && trace === undefined)) return "";
  return percentile === "mean" ? "on average" : `at ${percentile} of requests`;
}

/** The layout of a candidate in the field's letters, degrees of 1 left out. */
export function layout(degrees) {
  const words = ["dp", "tp", "pp", "cp", "ep"].filter((k) => (degrees[k] ?? 1) !== 1).map((k) => `${k}${degrees[k]}`);
  if (degrees.zero) words.push(degrees.shard ? `hsdp${degrees.shard}` : `zero${degrees.zero}`);
  if ((degrees.interleave ?? 1) !== 1) words.push(`v${degrees.interleave}`);
  if ((degrees.schedule ?? "1f1b") !== "1f1b") words.push(degrees.schedule);
  if ("micro_batch" in degrees) words.push(`mb${degrees.micro_batch}`);
  if ((degrees.recompute ?? "none") !== "none") {
    const every = (degrees.recompute_every ?? 1) > 1 ? `/${degrees.recompute_every}` : "";
    words.push(`recompute ${degrees.recompute}${degrees.recompute_first ? ` of first ${degrees.recompute_first}` : every}`);
  }
  if (degrees.offload?.length) words.push(`offload ${degrees.offload.join("+")}`);
  if ("replicas" in degrees) words.push(`${degrees.replicas} replica${degrees.replicas === 1 ? "" : "s"}`, `batch ${degrees.max_batch}`);
  words.push(String(degrees.precision || degrees.weights));
  if ((degrees.kv_dtype ?? "bf16") !== "bf16") words.push(`kv ${degrees.kv_dtype}`);
  return words.join(" ");
}
