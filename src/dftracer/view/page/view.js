// What is looked at, shared by all panes; it lives in the address, so a link is a view.
export class View extends EventTarget {
  constructor() {
    super();
    this.t0 = 0; this.t1 = 1; this.length = 1;
    this.selected = null;  // {run, part, span}
    this.choice = 0;
    this.range = null;     // [from, to]
    this.hidden = new Set();
    this.ranks = null;     // null: all
    this.step = null;
    this.tab = "event";
    this.query = "";
    this.flows = true;
    this.theme = null;
    this.timer = 0;
  }

  get span() { return this.t1 - this.t0; }

  changed(what) {
    this.dispatchEvent(new CustomEvent(what));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), 150);
  }

  look(t0, t1) {
    const least = 200;
    let span = Math.min(Math.max(t1 - t0, least), this.length * 1.2);
    const middle = (t0 + t1) / 2;
    t0 = middle - span / 2;
    const slack = span * 0.5;
    t0 = Math.min(Math.max(t0, -slack), this.length + slack - span);
    [this.t0, this.t1] = [t0, t0 + span];
    this.changed("look");
  }

  whole() { this.look(-this.length * 0.01, this.length * 1.01); }

  zoom(factor, at = (this.t0 + this.t1) / 2) {
    this.look(at - (at - this.t0) * factor, at + (this.t1 - at) * factor);
  }

  pan(part) { this.look(this.t0 + this.span * part, this.t1 + this.span * part); }

  select(event) { this.choice++; this.selected = event; this.changed("select"); }

  // For a selection that has to be asked for: tells whether no other was made since.
  choosing() { const mine = ++this.choice; return () => mine === this.choice; }

  setRange(range) {
    this.range = range && range.map(Math.round).sort((a, b) => a - b);
    this.changed("range");
  }

  write() {
    const p = new URLSearchParams();
    p.set("t", `${Math.round(this.t0)},${Math.round(this.t1)}`);
    if (this.selected) p.set("e", `${this.selected.run}.${this.selected.part}.${this.selected.span}`);
    if (this.range) p.set("range", this.range.map(Math.round).join(","));
    if (this.hidden.size) p.set("hide", [...this.hidden].join(","));
    if (this.ranks) p.set("ranks", [...this.ranks].join(","));
    if (this.step !== null) p.set("step", this.step);
    if (this.tab !== "event") p.set("tab", this.tab);
    if (this.query) p.set("q", this.query);
    if (!this.flows) p.set("flows", "0");
    if (this.theme) p.set("theme", this.theme);
    history.replaceState(null, "", `${location.pathname}${location.search}#${p}`);
  }

  // Returns whether the address holds a time.
  read() {
    const p = new URLSearchParams(location.hash.slice(1));
    const numbers = (key) => (p.get(key) ?? "").split(",").filter((n) => n !== "").map(Number).filter(Number.isFinite);
    const t = numbers("t"), range = numbers("range");
    const e = (p.get("e") ?? "").split(".").map(Number);
    this.choice++;
    this.selected = e.length === 3 && e.every(Number.isInteger) ? {run: e[0], part: e[1], span: e[2]} : null;
    this.range = range.length === 2 ? range : null;
    this.hidden = new Set((p.get("hide") ?? "").split(",").filter(Boolean));
    this.ranks = p.get("ranks") ? new Set(numbers("ranks")) : null;
    this.step = p.get("step") ? Number(p.get("step")) : null;
    this.tab = p.get("tab") ?? "event";
    this.query = p.get("q") ?? "";
    this.flows = p.get("flows") !== "0";
    this.theme = p.get("theme");
    if (t.length === 2 && t[0] < t[1]) { [this.t0, this.t1] = t; return true; }
    return false;
  }

  // What of it the server must know to draw.
  get filter() { return {hide: [...this.hidden], step: this.step, ranks: this.ranks ? [...this.ranks].join(",") : null}; }
}
