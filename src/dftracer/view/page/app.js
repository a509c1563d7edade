// The page: one view, a pane for each run, and what ties them together.
import {json, latest, runs, setReading} from "view/api.js";
import {Axis} from "view/axis.js";
import {at, chip, showEvent, showFlame, showFound, showRange, showTable} from "view/drawer.js";
import {Navigator} from "view/navigator.js";
import {Tracks} from "view/tracks.js";
import {Pane} from "view/pane.js";
import {View} from "view/view.js";
import {bytes, count, element, percent, plural, tail, time} from "view/words.js";

const view = new View();
const panes = [];
const timings = [];  // of the last pictures, in ms, question to painted
let about = [], states = null, hits = [], hit = -1, tries = 0;
window.dftracerView = {view, panes, timings};

const say = (text) => { at("say").textContent = text; };
const several = () => panes.length > 1;

// ---- what is selected

async function selectionChanged(open = true) {
  const s = view.selected;
  for (const p of panes) if (!s || p.number !== s.run) { p.details = null; p.refresh(); }
  if (!s) { showEvent(null); return; }
  try {
    const d = await json("event", s);
    if (view.selected !== s) return;
    panes[s.run].show(d);
    showSelected(s, d);
    if (open) { openTab("event", true); say(`${d.name}, ${d.cat}, ${time(d.length)}, ${d.lane}`); }
  } catch (e) { if (view.selected === s) failed(e); }
}

function showSelected(s, d) {
  panes[s.run].details = d;
  panes[s.run].refresh();
  showEvent(d, (e) => goTo({run: s.run, ...e}));
}

const isOf = (details, s) => details?.part === s.part && details?.span === s.span;

function goTo(e) {
  const middle = e.start + e.length / 2;
  if (e.start < view.t0 || e.start + e.length > view.t1 || e.length < view.span / 5000) {
    const span = Math.min(view.span, Math.max(e.length * 6, 2000));
    view.look(middle - span / 2, middle + span / 2);
  }
  view.select({run: e.run ?? 0, part: e.part, span: e.span});
}

// One step at a time: a key that is held down goes on from where the last one led.
let stepping = false;
async function step(key) {
  if (stepping) return;
  stepping = true;
  try { await stepFrom(view.selected, key); } catch (e) { failed(e); } finally { stepping = false; }
}

async function stepFrom(s, key) {
  const current = view.choosing(), shown = s && panes[s.run].details;
  // The details of what was selected a moment ago may still be on their way.
  const d = s && (isOf(shown, s) ? shown : await json("event", s));
  if (!d) {
    const pane = panes[0], row = (pane.bands.find((b) => b.lane.role === "main") ?? pane.bands[0])?.rows[0];
    const near = row === undefined ? null : await json("at", {run: 0, row, t: Math.round((view.t0 + view.t1) / 2), reach: Math.ceil(view.length)});
    if (near && current()) goTo({run: 0, ...near});
    return;
  }
  if (!current()) return;
  if (key === "ArrowUp" && d.parents.length) goTo({run: s.run, ...d.parents[0]});
  else if (key === "ArrowDown" && d.children.length) goTo({run: s.run, ...d.children[0]});
  else if (key === "ArrowLeft" || key === "ArrowRight") {
    const t = key === "ArrowLeft" ? d.start - 1 : d.start + Math.max(d.length, 1);
    let near = await json("at", {run: s.run, row: d.row, t, reach: Math.ceil(view.length)});
    if (near && near.span === d.span) {
      const other = d.span + (key === "ArrowLeft" ? -1 : 1);
      near = await json("event", {run: s.run, part: d.part, span: other}).catch(() => null);
      if (near && near.row !== d.row) near = null;
    }
    if (near && current()) goTo({run: s.run, ...near});
  }
}

// ---- ranges

const rangesAsked = latest();
async function rangeDone(open = true) {
  if (open) openTab("range");
  const current = rangesAsked();
  if (!view.range) { showRange(null); return; }
  at("range").replaceChildren(element("p", {class: "soft", text: "Computing …"}));
  const [t0, t1] = view.range.map(Math.round);
  const query = {t0, t1: Math.max(t1, t0 + 1), hide: [...view.hidden], ranks: view.filter.ranks};
  const found = await Promise.all(panes.map((p) => json("range", {run: p.number, ...query}))).catch((e) => { failed(e); return null; });
  if (!found || !current()) return;
  at("range").replaceChildren();
  found.forEach((f, i) => showRange(f, i, several()));
  say(`range of ${time(t1 - t0)} selected`);
}

// ---- search

const searches = latest();
async function search(text, open = true, jump = false) {
  view.query = text;
  view.changed("query");
  const current = searches();
  hits = [];
  if (open) hit = -1;
  for (const p of panes) { p.hits = []; p.refresh(); }
  if (!text) { showFound(null); return; }
  if (open) openTab("found");
  const take = (answers, args) => {
    const seen = new Set(hits.map((h) => `${h.run}.${h.part}.${h.span}`));
    let total = take.total ?? 0;
    answers.forEach((a, run) => {
      const fresh = a.hits.map((h) => ({run, ...h})).filter((h) => !seen.has(`${h.run}.${h.part}.${h.span}`));
      hits.push(...fresh);
      panes[run].hits = hits.filter((h) => h.run === run);
      total += a.total - (a.hits.length - fresh.length);
      panes[run].refresh();
    });
    take.total = total;
    hits.sort((a, b) => a.start - b.start);
    showFound({text, total, hits: hits.slice(0, 500), args}, goTo);
  };
  try {
    const named = await Promise.all(panes.map((p) => json("search", {run: p.number, q: text})));
    if (!current()) return;
    take(named, "running");
    if (jump && hits.length) { nextHit(1); jump = false; }
    const answers = await Promise.all(panes.map((p) => json("search", {run: p.number, q: text, args: 1})));
    if (!current()) return;
    take(answers, "done");
    if (jump && hits.length) nextHit(1);
    if (open) say(`${plural(take.total, "event")} found`);
  } catch (e) { if (current()) failed(e); }
}

function nextHit(by) {
  if (!hits.length) return;
  hit = (hit + by + hits.length) % hits.length;
  goTo(hits[hit]);
}

// ---- tabs

let tableTimer = 0;
const tables = latest();
function openTab(name, keepTable = false) {
  if (keepTable && (view.tab === "table" || view.tab === "code" || view.tab === "found" || view.tab === "steps")) return;
  view.tab = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const open = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(open));
    tab.tabIndex = open ? 0 : -1;
    at(tab.getAttribute("aria-controls")).hidden = !open;
  }
  view.changed("tab");
  if (name === "table") listEvents();
  if (name === "code") drawFlame();
}

let flameTimer = 0;
const flames = latest();
function drawFlame() {
  clearTimeout(flameTimer);
  const current = flames();
  if (view.tab !== "code") return;
  flameTimer = setTimeout(async () => {
    const query = {t0: Math.round(view.t0), t1: Math.max(Math.round(view.t1), Math.round(view.t0) + 1), ranks: view.filter.ranks};
    const trees = await Promise.all(panes.map((p) => json("flame", {run: p.number, ...query}))).catch((e) => { failed(e); return null; });
    if (trees && current()) showFlame(trees, several());
  }, 200);
}

function listEvents() {
  clearTimeout(tableTimer);
  const current = tables();
  if (view.tab !== "table") return;
  tableTimer = setTimeout(async () => {
    const answers = await Promise.all(panes.map((p) => json("list", {run: p.number, t0: Math.round(view.t0), t1: Math.round(view.t1),
      rows: runs(p.bands.flatMap((b) => b.lane.rows)), hide: [...view.hidden]}))).catch((e) => { failed(e); return null; });
    if (!answers || !current()) return;
    const events = answers.flatMap((a, run) => a.events.map((e) => ({run, ...e, lane: several() ? `${"AB"[run]}: ${e.lane}` : e.lane})));
    events.sort((a, b) => a.start - b.start);
    showTable(events, answers.reduce((n, a) => n + a.total, 0), goTo);
  }, 200);
}

// ---- this view as one file, for people who have neither the trace nor the program

function picture(pane) {
  const shown = pane.querySelector("canvas"), labels = pane.querySelector(".labels"), ratio = shown.width / shown.clientWidth;
  const left = labels.offsetWidth, out = element("canvas", {}), ink = out.getContext("2d");
  out.width = (left + shown.clientWidth) * ratio; out.height = shown.height;
  ink.scale(ratio, ratio);
  ink.fillStyle = getComputedStyle(document.body).backgroundColor;
  ink.fillRect(0, 0, out.width, out.height);
  ink.drawImage(shown, left, 0, shown.clientWidth, shown.clientHeight);
  ink.fillStyle = getComputedStyle(document.body).color;
  ink.font = "12px system-ui, sans-serif";
  const top = pane.getBoundingClientRect().top;
  for (const li of labels.children) ink.fillText(li.textContent.trim(), 8, li.getBoundingClientRect().top - top + 14, left - 12);
  return out.toDataURL("image/png");
}

async function exportView() {
  const page = document.implementation.createHTMLDocument(document.title), add = (tag, text) => page.body.appendChild(Object.assign(page.createElement(tag), {textContent: text}));
  page.head.appendChild(Object.assign(page.createElement("meta"), {name: "viewport", content: "width=device-width, initial-scale=1"}));
  // Added as text: the policy of this page holds for elements that it makes.
  const style = "body{font:14px/1.5 system-ui,sans-serif;margin:20px auto;max-width:1400px;padding:0 16px}img{max-width:100%}td,th{padding:2px 10px;text-align:right}td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}";
  add("h1", about.map((a) => a.title).join(" and "));
  for (const line of about.flatMap((a) => a.steps?.head ?? [])) add("p", line);
  add("p", `From ${time(view.t0)} to ${time(view.t1)} of the run.`);
  for (const pane of document.querySelectorAll(".pane")) Object.assign(page.body.appendChild(page.createElement("img")), {src: picture(pane), alt: "the events of this view, by lane"});
  const listed = await Promise.all(panes.map((p) => json("list", {run: p.number, t0: Math.round(view.t0), t1: Math.round(view.t1), rows: runs(p.bands.flatMap((b) => b.lane.rows)), hide: [...view.hidden]})));
  const events = listed.flatMap((a) => a.events).sort((a, b) => a.start - b.start), total = listed.reduce((n, a) => n + a.total, 0);
  add("h2", total > events.length ? `The first ${count(events.length)} of ${plural(total, "event")}` : plural(total, "event"));
  const table = page.body.appendChild(page.createElement("table"));
  for (const row of [["event", "lane", "start", "time"], ...events.map((e) => [`${e.cat}: ${e.name}`, e.lane, time(e.start), time(e.length)])]) {
    const tr = table.appendChild(page.createElement("tr"));
    for (const text of row) tr.appendChild(page.createElement(row[0] === "event" && row[2] === "start" ? "th" : "td")).textContent = text;
  }
  const url = URL.createObjectURL(new Blob([`<!doctype html>\n${page.documentElement.outerHTML.replace("</head>", `<style>${style}</style></head>`)}`], {type: "text/html"}));
  element("a", {href: url, download: "dftracer-view.html"}).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
  say("the view was saved as dftracer-view.html");
}

// ---- menus, legend, theme

function fillMenus() {
  const cats = [...new Set(about.flatMap((a) => a.classes.map((c) => c.cat)))].filter((c) => c !== "ledger").sort();
  const ranks = [...new Set(about.flatMap((a) => a.lanes.map((l) => l.rank)))].filter((r) => r !== null).sort((a, b) => a - b);
  const box = (host, values, checked, change) => {
    const old = host.querySelector("legend");
    host.querySelector("fieldset").replaceChildren(old, ...values.map((v) => {
      const input = element("input", {type: "checkbox", value: v, on: {change: (e) => change(v, e.target.checked)}});
      input.checked = checked(v);
      return element("label", {}, input, String(v) === "" ? "(none)" : String(v));
    }));
  };
  box(at("cats"), cats, (c) => !view.hidden.has(c), (c, on) => {
    if (on) view.hidden.delete(c); else view.hidden.add(c);
    view.changed("filter");
  });
  box(at("ranks"), ranks.map(String), (r) => !view.ranks || view.ranks.has(Number(r)), (r, on) => {
    const shown = new Set(view.ranks ?? ranks);
    if (on) shown.add(Number(r)); else shown.delete(Number(r));
    view.ranks = shown.size === ranks.length ? null : shown;
    view.changed("filter");
  });
  at("ranks").hidden = ranks.length < 2;
  const kinds = new Set(about.flatMap((a) => a.classes.filter((c) => c.used).map((c) => a.kinds[c.kind])));
  const used = about[0].kinds.filter((k) => kinds.has(k));
  at("legend").replaceChildren(...used.map((k) => element("span", {class: "chip"}, chip(k), k)));
}

function setTheme(theme) {
  view.theme = theme;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme ?? system;
  if (about.length) fillMenus();
  for (const p of panes) { p.sheet = null; p.ask(); p.refresh(); }
  axis.draw();
  nav.draw();
  if (about.length) nav.list();
  if (view.selected) selectionChanged(false);
  if (view.range) rangeDone(false);
}

// ---- the run itself

function failed(e) { if (!e.outdated) at("title").replaceChildren(element("span", {class: "error", text: e.message || String(e)})); }

function head() {
  const title = at("title");
  if (several()) title.replaceChildren(about.map((a, i) => `${"AB"[i]}: ${time(a.length)}`).join(", "));  // each pane has its name
  else {
    const {command} = about[0].identity, shown = command ? `, ${command.replaceAll(";", " ").slice(0, 120)}` : "";
    title.replaceChildren(about[0].title, " ", element("span", {class: "soft", text: `${plural(about[0].events, "event")} in ${time(about[0].length)}${shown}`}));
  }
  title.title = about.map((a) => (a.steps?.head ?? [a.title]).join("\n")).join("\n\n");
  document.title = `${about.map((a) => a.title).join(" and ")}: dftracer view`;
}

// Show what the address holds.
async function restore() {
  if (view.read()) view.look(view.t0, view.t1); else view.whole();
  setTheme(view.theme);
  at("flows").setAttribute("aria-pressed", String(view.flows));
  at("step").value = view.step ?? "";
  at("search").value = view.query;
  fillMenus();
  filterChanged();
  openTab(view.tab);
  await Promise.all([rangeDone(false), search(view.query, false), selectionChanged(false)]);
}

// A run that was read again has other numbers for its events: the selected one among them, looked for by where it is.
// Times read from a running process are converted again when written, and may then be rounded differently.
const ROUNDING = 2000;
const unlessOutdated = (e) => { if (e.outdated) throw e; return null; };
async function renumbered(fresh) {
  const s = view.selected, pane = s && panes[s.run];
  if (!s) return null;
  const {reading, lanes, start_us} = fresh[s.run], d = isOf(pane.details, s) ? pane.details : await json("event", s).catch(() => null);
  // A process has another name once its training has begun ("rank 0").
  const old = d && pane.rowY.get(d.row)?.lane, isOld = (l) => l.role === old.role && l.pid_tid === old.pid_tid;
  const lane = old && (lanes.find((l) => pane.key(l) === pane.key(old)) ?? lanes.find(isOld));
  const earlier = (about[s.run].start_us - start_us) * 1000;  // times count from the first event that is known
  const found = lane ? await sameEvent(d, d.start + earlier, lane.rows, old.rows.indexOf(d.row), {run: s.run, reading}) : null;
  const now = found && {run: s.run, part: found.part, span: found.span};
  const details = now && await json("event", {...now, reading}).catch(unlessOutdated);
  if (view.selected !== s) return renumbered(fresh);
  return details && {selected: now, details};
}

// It is a row lower as soon as the event around it has ended, which is when that one is written.
async function sameEvent(d, start, rows, depth, of) {
  const t = Math.round(start + d.length / 2), near = (a, b) => Math.abs(a - b) <= ROUNDING;
  for (const row of [...rows.slice(depth), ...rows.slice(0, depth)]) {
    const e = await json("at", {...of, row, t, reach: ROUNDING}).catch(unlessOutdated);
    if (e && e.name === d.name && near(e.start, start) && near(e.length, d.length)) return e;
  }
  return null;
}

// All at once: numbers of one reading never meet those of another.
function readAgain(kept) {
  view.choice++;
  view.selected = kept?.selected ?? null;
  hits = [];
  for (const p of panes) { p.hits = []; p.arrows = []; p.details = null; }
  if (kept) showSelected(kept.selected, kept.details); else showEvent(null);
  if (view.query) search(view.query, false);
}

// A run begins with imports and set-up: the page opens where its training does, unless the address says otherwise.
let placed = false;
function openAtFirstStep() {
  const first = nav.answer?.rows?.[0]?.start;
  if (placed || first === undefined || states?.follow) return;
  placed = true;
  const untouched = view.t0 <= 0 && view.t1 >= view.length;
  if (untouched && first > view.length / 10) view.look(first - (view.length - first) / 50, view.length);
}

async function load() {
  const fresh = await Promise.all(panes.map((p) => json("run", {run: p.number})));
  const again = about.some((a, i) => a.reading !== fresh[i].reading);
  const kept = again ? await renumbered(fresh) : null;
  about = fresh;
  const followed = view.length > 1 && view.t1 >= view.length * 0.999, everything = followed && view.t0 <= 0;
  const before = view.length;
  view.length = Math.max(1, ...about.map((a) => a.length));
  about.forEach((a, i) => { setReading(i, a.reading); panes[i].setRun(a, several()); });
  if (again) readAgain(kept);
  fillMenus();
  head();
  tracks.load(0).catch(failed);
  await nav.load(about);
  if (before === 1) {
    await restore();
    openAtFirstStep();
    document.documentElement.dataset.ready = "1";
    return;
  }
  openAtFirstStep();
  if (followed && states?.follow) {
    view.look(view.t0 + view.length - before, view.t1 + view.length - before);
  } else if (again && everything) view.whole();
  else view.changed("look");
}

function showLive() {
  const run = states.runs[0], live = run.live;
  at("live").hidden = !states.follow;
  if (!states.follow) return;
  const age = live.end_us ? Math.max(0, Date.now() / 1000 - live.end_us / 1e6) : null;
  const old = age === null || age > 15;
  const pair = (name, value) => element("span", {}, `${name} `, element("b", {text: value}));
  at("live").replaceChildren(element("span", {}, element("span", {class: old ? "dot old" : "dot", text: "●"}),
    run.error ? ` ${run.error}` : age === null ? " waiting for events" : old ? ` last event ${time(age * 1e9)} ago` : " following"),
    ...(live.running !== undefined ? [pair("processes", `${live.running} running`)] : []),
    ...(live.dropped ? [pair("dropped", count(live.dropped))] : []),
    ...(live.window_s ? [pair(`last ${live.window_s.toFixed(0)} s: steps/s`, live.steps_per_s === null ? "–" : live.steps_per_s.toFixed(2)),
      pair("waiting for the loader", live.fetch_wait === null ? "–" : percent(live.fetch_wait)), ...(live.device_busy === null ? [] : [pair("device busy", percent(live.device_busy))]),
      ...(live.samples_per_s ? [pair("samples/s", live.samples_per_s.toFixed(1))] : []), pair("read", `${bytes(live.read_per_s)}/s`),
      pair("written", `${bytes(live.written_per_s)}/s`), pair("events", `${count(live.events_per_s)}/s`),
      ...(live.hottest ? [pair("hottest file", tail(live.hottest.path, 36))] : [])] : []));
}

async function poll() {
  let wait = 150;
  const before = states;
  try {
    states = await json("state");
    tries = 0;
    while (panes.length < states.runs.length) panes.push(new Pane(at("panes"), panes.length, view, hooks));
    showLive();
    // An address may name what only the whole run has.
    const named = location.hash.length > 1;
    const ready = states.runs.every((r) => r.ready && (r.whole || states.follow || !named || before?.shown));
    states.shown = ready;
    const broken = states.runs.find((r) => r.error && !r.whole);
    if (!ready) {
      const sum = (key) => states.runs.reduce((n, r) => n + r[key], 0);
      if (broken && !states.follow) failed(new Error(broken.error));
      else at("title").textContent = broken ? broken.error : `Reading the trace … ${sum("total") ? percent(sum("done") / sum("total")) : ""}`;
    } else if (!before || states.runs.some((r, i) => r.generation !== before.runs[i]?.generation)) {
      await load();
    }
    if (ready && broken && !states.follow) failed(new Error(broken.error));
    if (ready) wait = states.follow ? 1000 : states.runs.every((r) => r.whole ? r.steps || r.notes.length : r.error) ? 0 : 300;
    else if (broken) wait = states.follow ? 1000 : 0;
  } catch (e) {
    if (e.outdated) states = before;  // read once more meanwhile: the newest is loaded next
    wait = e.outdated ? 150 : Math.min(5000, 300 * 2 ** tries++);
    if (tries > 3) failed(new Error("the server no longer responds: start `dftracer view` again"));
  }
  if (wait) setTimeout(poll, wait);
}

function filterChanged() {
  at("cats").toggleAttribute("data-active", view.hidden.size > 0);
  at("ranks").toggleAttribute("data-active", view.ranks !== null);
  for (const p of panes) p.layout();
  listEvents();
  drawFlame();
}

function fit() {
  const s = view.selected, d = s && panes[s.run].details;
  const [a, b] = view.range && !d ? view.range : d ? [d.start, d.start + d.length] : [0, view.length];
  const room = Math.max((b - a) * 0.1, 100);
  view.look(a - room, b + room);
}

const hooks = {
  ticks: () => axis.ticks(),
  resized: () => axis.draw(),
  drawn: (ms) => { timings.push(ms); if (timings.length > 200) timings.shift(); },
  failed,
  rangeDone: () => rangeDone(),
  fit,
  tip: (text, x, y) => {
    const tip = at("tip");
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.min(x + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18}px`;
  },
};
const axis = new Axis(at("axis"), view, () => rangeDone());
const nav = new Navigator(view, {say});
const tracks = new Tracks(at("machine"), view, hooks);

view.addEventListener("look", () => {
  axis.draw();
  tracks.draw();
  for (const p of panes) { p.refresh(); p.ask(); p.canvas.setAttribute("aria-label", `Timeline from ${time(view.t0)} to ${time(view.t1)}; press L for a table of its events`); }
  listEvents();
  drawFlame();
});
view.addEventListener("select", () => selectionChanged());
view.addEventListener("range", () => { axis.draw(); for (const p of panes) p.refresh(); });
view.addEventListener("filter", () => { filterChanged(); if (view.range) rangeDone(false); });

// ---- keys and buttons

const KEYS = {
  w: () => view.zoom(0.6), s: () => view.zoom(1 / 0.6), a: () => view.pan(-0.25), d: () => view.pan(0.25),
  f: fit, 0: () => view.whole(), Home: () => view.whole(),
  r: () => { view.setRange([Math.max(0, view.t0), Math.min(view.length, view.t1)]); rangeDone(); },
  "[": () => nav.go(-1), "]": () => nav.go(1),
  "/": () => { at("search").focus(); at("search").select(); },
  "?": () => at("help").showModal(),
  n: () => nextHit(1), p: () => nextHit(-1),
  l: () => { openTab("table"); at("table").focus(); },
  c: () => { openTab("code"); at("code").focus(); },
  g: () => at("flows").click(), t: () => at("theme").click(),
  ArrowLeft: step, ArrowRight: step, ArrowUp: step, ArrowDown: step,
  Escape: () => { for (const m of document.querySelectorAll(".menu[open]")) m.open = false; if (view.range) { view.setRange(null); rangeDone(false); } else view.select(null); },
};
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || at("help").open) return;
  if (e.target.matches("input, select, textarea")) {
    if (e.key === "Escape") { e.preventDefault(); e.target.blur(); panes[0]?.box.focus(); }
    return;
  }
  if (e.target.closest("[role=tablist], [role=tabpanel], #grip") && e.key.startsWith("Arrow")) return;
  const act = KEYS[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  if (act && panes.length && about.length) { e.preventDefault(); act(e.key); }
});
at("search-form").addEventListener("submit", (e) => { e.preventDefault(); search(at("search").value.trim(), true, true); });
at("search").addEventListener("search", () => { if (!at("search").value) search(""); });
at("step").addEventListener("change", async () => {
  const step = view.step = at("step").value === "" ? null : Number(at("step").value);
  view.changed("filter");
  if (step === null) return;
  const places = Object.values(await json("step", {run: 0, step}));
  if (view.step !== step) return;
  if (!places.length) { say(`no step ${step}`); return; }
  const a = Math.min(...places.map((p) => p[0])), b = Math.max(...places.map((p) => p[1]));
  view.look(a - (b - a) * 0.05, b + (b - a) * 0.05);
});
at("flows").addEventListener("click", () => {
  view.flows = !view.flows;
  at("flows").setAttribute("aria-pressed", String(view.flows));
  for (const p of panes) { p.askArrows(); p.refresh(); }
  view.changed("flows");
});
at("whole").addEventListener("click", () => view.whole());
at("export").addEventListener("click", () => exportView().catch(failed));
at("theme").addEventListener("click", () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); view.changed("theme"); });
at("help-open").addEventListener("click", () => at("help").showModal());
at("skip").addEventListener("click", (e) => { e.preventDefault(); openTab("table"); at("table").focus(); });
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => openTab(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (e) => {
    const all = [...document.querySelectorAll("[role=tab]")];
    const to = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (!to) return;
    const next = all[(all.indexOf(tab) + to + all.length) % all.length];
    openTab(next.getAttribute("aria-controls"));
    next.focus();
  });
}
document.addEventListener("click", (e) => { for (const m of document.querySelectorAll(".menu[open]")) if (!m.contains(e.target)) m.open = false; });
const grip = at("grip"), drawer = at("drawer");
const drawerTo = (height) => { drawer.style.height = `${Math.max(60, Math.min(innerHeight - 260, height))}px`; };
grip.addEventListener("pointerdown", (e) => {
  grip.setPointerCapture(e.pointerId);
  const from = e.clientY, height = drawer.offsetHeight;
  grip.onpointermove = (m) => drawerTo(height + from - m.clientY);
  grip.onpointerup = () => { grip.onpointermove = null; };
});
grip.addEventListener("keydown", (e) => {
  const by = {ArrowUp: 30, ArrowDown: -30}[e.key];
  if (by) { e.preventDefault(); drawerTo(drawer.offsetHeight + by); }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (!view.theme) setTheme(null); });
addEventListener("hashchange", () => { if (about.length) restore(); });

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
showEvent(null); showRange(null); showFound(null);
poll();
