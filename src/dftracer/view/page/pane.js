// One run: its lanes, and the picture of them that the server made.
import {json, latest, picture, runs} from "view/api.js";
import {Sheet} from "view/sheet.js";
import {drawArrows} from "view/arrows.js";
import {css} from "view/palette.js";
import {element, plural, time} from "view/words.js";

const ROW = 18, GAP = 6, GROUP = 22, MARGIN = 220;
const SIDE = 0.5;  // of the view's width, drawn beyond either side so that moving shows something

export class Pane {
  constructor(host, number, view, hooks) {
    this.number = number; this.view = view; this.hooks = hooks;
    this.about = null; this.sheet = null; this.arrows = []; this.details = null; this.hits = [];
    this.folded = new Set(); this.known = new Set();
    this.asking = null; this.again = false; this.dirty = false; this.arrowsAsked = latest();
    this.canvas = element("canvas", {role: "img", "aria-label": "Timeline"});
    this.labels = element("ul", {class: "labels", "aria-label": "Lanes"});
    this.name = element("span", {class: "run-name", hidden: true});
    this.box = element("div", {class: "pane", tabindex: 0, role: "group"},
      element("div", {class: "field"}, this.canvas), this.name, this.labels);
    host.append(this.box);
    this.context = this.canvas.getContext("2d");
    new ResizeObserver(() => this.resize()).observe(this.box);
    this.box.addEventListener("scroll", () => { this.refresh(); this.ask(); });
    this.listen();
  }

  setRun(about, several) {
    this.about = about;
    this.arrowsAsked();
    this.classKind = about.classes.map((c) => about.kinds[c.kind]);
    this.name.hidden = !several;
    this.name.textContent = `${"AB"[this.number]}: ${about.title}`;
    this.box.setAttribute("aria-label", `Timeline of ${about.title}, ${plural(about.lanes.length, "lane")}`);
    const many = about.lanes.reduce((n, lane) => n + lane.rows.length, 0) > 80;
    about.lanes.forEach((lane, i) => {
      const key = this.key(lane);
      if (!this.known.has(key) && many && lane.role !== "main" && lane.role !== "stages" && lane.role !== "stream") this.folded.add(key);
      this.known.add(key);
    });
    this.layout();
  }

  key(lane) { return `${lane.group}/${lane.label}/${lane.pid_tid}`; }

  get lanes() {
    const ranks = this.view.ranks;
    return this.about.lanes.filter((lane) => !ranks || (lane.rank !== null && ranks.has(lane.rank)));
  }

  layout() {
    if (!this.about) return;
    let y = 0, group = null;
    this.rowY = new Map(); this.bands = []; this.groups = [];
    const items = [];
    for (const lane of this.lanes) {
      if (lane.group !== group) {
        group = lane.group;
        this.groups.push({y, label: group});
        const item = element("li", {class: "group", text: group});
        Object.assign(item.style, {top: `${y}px`, height: `${GROUP}px`});
        items.push(item);
        y += GROUP + 2;
      }
      const folded = this.folded.has(this.key(lane));
      const rows = folded ? lane.rows.slice(0, 1) : lane.rows;
      lane.rows.forEach((row, depth) => this.rowY.set(row, {y: y + (folded ? 0 : depth) * ROW, lane, shown: depth < rows.length}));
      const button = element("button", {type: "button", text: lane.label, "aria-expanded": String(!folded),
        title: `${lane.label}\n${lane.pid_tid}, ${plural(lane.events, "event")}`,
        on: {click: () => this.fold(lane)}});
      const item = element("li", {class: lane.rows.length === 1 ? "single" : ""}, button);
      Object.assign(item.style, {top: `${y}px`, height: `${rows.length * ROW}px`});
      items.push(item);
      this.bands.push({y, height: rows.length * ROW, rows, lane});
      y += rows.length * ROW + GAP;
    }
    this.height = y + 20;
    this.labels.style.height = `${this.height}px`;
    this.labels.replaceChildren(...items);
    this.ask();
    this.refresh();
  }

  fold(lane) {
    const key = this.key(lane);
    if (this.folded.has(key)) this.folded.delete(key); else this.folded.add(key);
    const at = [...this.labels.querySelectorAll("button")].findIndex((b) => b === document.activeElement);
    this.layout();
    if (at >= 0) this.labels.querySelectorAll("button")[at]?.focus();
  }

  resize() {
    const gutter = this.labels.clientWidth;
    this.width = Math.max(50, this.box.clientWidth - gutter);
    this.tall = this.box.clientHeight;
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.tall * this.ratio);
    Object.assign(this.canvas.style, {width: `${this.width}px`, height: `${this.tall}px`});
    this.hooks.resized(this.width);
    this.ask();
    this.draw();
  }

  get top() { return this.labels.offsetTop - this.box.scrollTop; }
  x(t) { return (t - this.view.t0) / this.view.span * this.width; }
  t(x) { return this.view.t0 + x / this.width * this.view.span; }

  visibleRows() {
    const low = -this.top - MARGIN, high = -this.top + this.tall + MARGIN;
    return this.bands.filter((b) => b.y < high && b.y + b.height > low).flatMap((b) => b.rows);
  }

  // One question at a time; what changed meanwhile is asked for when the answer is here.
  async ask() {
    if (!this.about || !this.width) return;
    if (this.asking) { this.again = true; return; }
    this.asking = new AbortController();
    const began = performance.now(), about = this.about;
    try {
      const {t0, t1, span} = this.view;
      const [from, to] = [t0 - span * SIDE, t1 + span * SIDE].map(Math.round);
      const rows = this.visibleRows();
      const w = Math.min(8000, Math.round(this.width * (1 + 2 * SIDE) * this.ratio));
      const query = {run: this.number, t0: from, t1: to, w, rows: runs(rows), hide: [...this.view.hidden], step: this.view.step};
      const drawn = await picture(query, this.asking.signal);
      if (about === this.about) this.sheet = new Sheet(drawn, {from, to, w, rows}, this);
      this.hooks.drawn(performance.now() - began);
    } catch (e) {
      if (e.name !== "AbortError") this.hooks.failed(e);
    }
    this.asking = null;
    this.refresh();
    if (this.again) { this.again = false; this.ask(); } else this.askArrows();
  }

  async askArrows() {
    clearTimeout(this.arrowTimer);
    const current = this.arrowsAsked();
    this.arrowTimer = setTimeout(async () => {
      const query = {run: this.number, t0: Math.round(this.view.t0), t1: Math.round(this.view.t1), rows: runs(this.visibleRows())};
      try {
        const found = this.view.flows ? await json("flows", query) : {arrows: [], total: 0};
        if (!current()) return;
        this.arrows = found.arrows;
        this.arrowsTotal = found.total;
        this.refresh();
      } catch { /* the next view asks again */ }
    }, 120);
  }

  refresh() {
    if (this.dirty) return;
    this.dirty = true;
    requestAnimationFrame(() => { this.dirty = false; this.draw(); });
  }

  draw() {
    if (!this.about || !this.rowY) return;
    const c = this.context, top = this.top;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = css("--bg");
    c.fillRect(0, 0, this.width, this.tall);
    c.fillStyle = css("--lane");
    for (const b of this.bands) if (b.y + top < this.tall && b.y + b.height + top > 0) c.fillRect(0, b.y + top - 1, this.width, b.height + 2);
    c.strokeStyle = css("--grid");
    c.lineWidth = 1;
    c.beginPath();
    for (const t of this.hooks.ticks()) { const x = Math.round(this.x(t)) + 0.5; c.moveTo(x, 0); c.lineTo(x, this.tall); }
    c.stroke();
    this.sheet?.paint(c, top);
    c.fillStyle = css("--group");
    for (const g of this.groups) if (g.y + top > -GROUP && g.y + top < this.tall) c.fillRect(0, g.y + top, this.width, GROUP);
    this.drawMarks(c, top);
    if (this.view.flows) drawArrows(c, this, top, this.arrows, this.arrows.length > 60 ? 0.25 : 0.5);
    if (this.details) drawArrows(c, this, top, this.details.flows, 1);
    this.canvas.dataset.drawn = String(Number(this.canvas.dataset.drawn ?? 0) + 1);
  }

  drawMarks(c, top) {
    const outline = (mark, stroke, width) => {
      const at = this.rowY.get(mark.row);
      if (!at) return;
      const x = this.x(mark.start), w = Math.max(2, this.x(mark.start + mark.length) - x);
      if (x > this.width || x + w < 0) return;
      c.strokeStyle = stroke; c.lineWidth = width;
      c.strokeRect(x - 0.5, at.y + top - 0.5, w + 1, ROW - 1);
    };
    for (const hit of this.hits) outline(hit, css("--warn"), 1.5);
    if (this.details) outline(this.details, css("--ink"), 2.5);
    if (this.view.range) {
      const [a, b] = this.view.range.map((t) => this.x(t));
      c.fillStyle = css("--accent"); c.globalAlpha = 0.12;
      c.fillRect(a, 0, b - a, this.tall);
      c.globalAlpha = 1;
      c.fillRect(a, 0, 1, this.tall); c.fillRect(b, 0, 1, this.tall);
    }
  }

  // The row at a height of the canvas.
  rowAt(y) {
    const at = y - this.top;
    const band = this.bands.find((b) => at >= b.y && at < b.y + b.height);
    return band ? band.rows[Math.floor((at - band.y) / ROW)] ?? null : null;
  }

  show(mark) {
    const at = this.rowY.get(mark.row);
    if (!at) return;
    if (!at.shown) { this.folded.delete(this.key(at.lane)); this.layout(); }
    const y = this.rowY.get(mark.row).y + this.labels.offsetTop;
    if (y < this.box.scrollTop + 40) this.box.scrollTop = y - 60;
    else if (y > this.box.scrollTop + this.tall - 60) this.box.scrollTop = y - this.tall + 100;
  }

  listen() {
    const canvas = this.canvas;
    let pull = null;
    canvas.addEventListener("pointerdown", (e) => {
      if (e.button !== 0) return;
      canvas.setPointerCapture(e.pointerId);
      pull = {x: e.offsetX, y: e.offsetY, at: this.t(e.offsetX), scroll: this.box.scrollTop, moved: false, range: e.shiftKey, t0: this.view.t0, t1: this.view.t1};
      this.box.focus({preventScroll: true});
    });
    canvas.addEventListener("pointermove", (e) => {
      if (!pull) { this.hover(e); return; }
      const dx = e.offsetX - pull.x, dy = e.offsetY - pull.y;
      if (Math.abs(dx) + Math.abs(dy) > 4) pull.moved = true;
      if (!pull.moved) return;
      this.hooks.tip(null);
      if (pull.range) { this.view.setRange([pull.at, this.t(e.offsetX)]); return; }
      canvas.classList.add("pulling");
      const by = dx / this.width * (pull.t1 - pull.t0);
      this.box.scrollTop = pull.scroll - dy;
      this.view.look(pull.t0 - by, pull.t1 - by);
    });
    const end = (e) => {
      canvas.classList.remove("pulling");
      if (pull && !pull.moved) this.pick(e);
      else if (pull?.range) this.hooks.rangeDone();
      pull = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", () => { pull = null; });
    canvas.addEventListener("pointerleave", () => this.hooks.tip(null));
    canvas.addEventListener("dblclick", () => this.hooks.fit());
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      const by = e.deltaMode === 1 ? 16 : 1;
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.view.pan((e.deltaX || e.deltaY) * by / this.width);
      else this.view.zoom(Math.exp(Math.max(-120, Math.min(120, e.deltaY * by)) * 0.004), this.t(e.offsetX));
    }, {passive: false});
  }

  hover(e) {
    const row = this.rowAt(e.offsetY);
    const found = row === null ? null : this.sheet?.at(row, this.t(e.offsetX), this.view.span / this.width);
    this.canvas.style.cursor = found ? "pointer" : "";
    this.hooks.tip(found ? this.words(found, row) : null, e.clientX, e.clientY);
  }

  words(found, row) {
    const lane = this.rowY.get(row)?.lane.label ?? "";
    if (found.bin) return `${found.kind}: ${Math.round(100 * found.fill)} % of this pixel (${time(found.width)})\n${lane}; zoom in for single events`;
    return `${found.name}\n${time(found.length)} at ${time(found.start)}, ${lane}`;
  }

  async pick(e) {
    const row = this.rowAt(e.offsetY);
    if (row === null) { this.view.select(null); return; }
    const pixel = this.view.span / this.width, t = this.t(e.offsetX);
    const found = this.sheet?.at(row, t, pixel);
    if (found && !found.bin) { this.view.select({run: this.number, part: found.part, span: found.span}); return; }
    const current = this.view.choosing();
    const near = await json("at", {run: this.number, row, t: Math.round(t), reach: Math.ceil(3 * pixel)});
    if (current()) this.view.select(near ? {run: this.number, part: near.part, span: near.span} : null);
  }
}
