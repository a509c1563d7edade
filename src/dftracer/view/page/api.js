// Asking the server. Every request carries the token of this page.
const token = document.documentElement.dataset.token;

export function address(path, query = {}) {
  const params = new URLSearchParams({token});
  for (const [key, value] of Object.entries(query)) {
    if (value === null || value === undefined) continue;
    if (Array.isArray(value)) for (const each of value) params.append(key, each);
    else params.set(key, value);
  }
  return `/api/${path}?${params}`;
}

// A list of rows, short: 3,4,5,9 is 3-5,9.
export function runs(rows) {
  const out = [];
  for (const row of rows) {
    const last = out.at(-1);
    if (last && last[1] === row - 1) last[1] = row; else out.push([row, row]);
  }
  return out.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(",");
}

// Numbers of rows and events hold for one reading of a run; a job that is followed is read again and again.
const readings = [];
export function setReading(run, reading) { readings[run] = reading; }

// Answers arrive in any order: tells whether nothing was asked since.
export function latest() {
  let last = 0;
  return () => { const mine = ++last; return () => mine === last; };
}

async function ask(path, query, signal) {
  const answer = await fetch(address(path, {reading: readings[query?.run], ...query}), {signal});
  if (answer.status === 410) throw Object.assign(new Error(await answer.text()), {outdated: true});
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

export async function json(path, query, signal) {
  return (await ask(path, query, signal)).json();
}

const KINDS = {start: Float64Array, length: Float64Array, span: Uint32Array, name: Uint32Array, row: Uint16Array,
  part: Uint16Array, bin_x: Uint16Array, bin_width: Uint16Array, bin_row: Uint16Array, cls: Uint8Array,
  bin_cls: Uint8Array, bin_fill: Uint8Array};

// A picture: a header in JSON, then columns of numbers, each at a multiple of 8 bytes.
export async function picture(query, signal) {
  const bytes = await (await ask("picture", query, signal)).arrayBuffer();
  const size = Number(new DataView(bytes).getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, size)));
  const out = {names: head.names, full: head.full};
  for (const [name, [at, count]] of Object.entries(head.columns)) out[name] = new KINDS[name](bytes, 8 + size + at, count);
  return out;
}
