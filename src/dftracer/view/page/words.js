// Numbers as people read them.
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

export function time(ns) {
  if (ns === 0) return "0";
  const size = Math.abs(ns);
  if (size >= 60e9) {
    const minutes = Math.floor(size / 60e9);
    return `${ns < 0 ? "-" : ""}${minutes} min ${((size - minutes * 60e9) / 1e9).toFixed(1)} s`;
  }
  const [unit, name] = UNITS.find(([u]) => size >= u) ?? UNITS[3];
  const value = ns / unit;
  return `${value.toFixed(unit === 1 ? 0 : Math.abs(value) < 10 ? 3 : Math.abs(value) < 100 ? 2 : 1)} ${name}`;
}

// A moment, with as many digits as `step` needs to tell two of them apart.
export function moment(ns, step) {
  const [unit, name] = UNITS.find(([u]) => Math.max(Math.abs(ns), step) >= u) ?? UNITS[3];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / unit))));
  return `${(ns / unit).toFixed(digits)} ${name}`;
}

export function bytes(n) {
  const names = ["B", "KB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 1000 && i < names.length - 1) { n /= 1000; i++; }
  return `${i === 0 ? Math.round(n) : n.toFixed(n < 10 ? 2 : 1)} ${names[i]}`;
}

export const count = (n) => Math.round(n).toLocaleString("en-US");
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const percent = (part) => `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)} %`;

// The end of a path says more than its beginning.
export function tail(path, most = 60) {
  return path.length <= most ? path : "…" + path.slice(path.length - most + 1);
}

export function element(tag, options = {}, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "text") e.textContent = value;
    else if (key === "on") for (const [event, f] of Object.entries(value)) e.addEventListener(event, f);
    else if (key === "class") e.className = value;
    else if (key === "colour") e.style.background = value;
    else if (value !== undefined && value !== null && value !== false) e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children);
  return e;
}
