// The strip of steps: how long each took, where the view is, and a way to each.
import {json, latest} from "view/api.js";
import {showSteps} from "view/drawer.js";
import {css} from "view/palette.js";
import {plural, time} from "view/words.js";

const PAGE = 60;

export class Navigator {
  constructor(view, hooks) {
    this.view = view; this.hooks = hooks;
    this.lines = []; this.line = null; this.offset = 0; this.current = null; this.answer = null; this.answered = null;
    this.turns = latest();
    this.canvas = document.getElementById("step-strip");
    this.about = document.getElementById("step-about");
    document.getElementById("step-back").addEventListener("click", () => this.go(-1));
    document.getElementById("step-next").addEventListener("click", () => this.go(1));
    this.canvas.addEventListener("click", (e) => {
      if (this.answer?.total) this.goTo(Math.floor(e.offsetX / this.canvas.clientWidth * this.answer.total));
    });
    this.canvas.addEventListener("keydown", (e) => {
      const by = {ArrowLeft: -1, ArrowRight: 1, PageUp: -PAGE, PageDown: PAGE}[e.key];
      if (by) { e.preventDefault(); e.stopPropagation(); this.go(by); }
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  async load(runs) {
    this.lines = runs.flatMap((about, run) => (about.steps?.ranks ?? []).filter((r) => r.steps)
      .map(({rank}) => ({run, rank, name: `${runs.length > 1 ? `${"AB"[run]}, ` : ""}rank ${rank}`})));
    if (!this.lines.length) {
      const known = runs.every((about) => about.steps);
      this.answer = known ? null : {pending: true, rows: [], total: 0};
      this.about.textContent = known ? "no steps in this trace" : "finding steps …";
      this.list();
      return;
    }
    this.line = this.lines.find((l) => l.name === this.line?.name) ?? this.lines[0];
    await this.turn(this.offset);
  }

  // Returns whether the rows are there: nothing else was asked for meanwhile.
  async turn(offset) {
    const line = this.line, current = this.turns();
    this.offset = Math.max(0, offset);
    const answer = await json("steps", {run: line.run, rank: line.rank, offset: this.offset, limit: PAGE});
    if (!current()) return false;
    this.answer = answer; this.answered = line;
    this.offset = answer.rows[0]?.index ?? 0;
    this.list();
    this.draw();
    return true;
  }

  list() {
    showSteps(this.answer, this.line?.name, this.lines.map((l) => l.name), {
      line: (i) => { this.line = this.lines[i]; this.current = null; this.turn(this.offset); },
      page: (by) => this.turn(this.offset + by * PAGE),
      go: (row) => this.show(row),
    });
  }

  async go(by) {
    if (!this.answer?.total) return;
    if (this.current === null) {
      const middle = (this.view.t0 + this.view.t1) / 2;
      const near = this.answer.rows.findIndex((r) => r.end > middle);
      this.current = near >= 0 ? this.answer.rows[near].index - (by > 0 ? 1 : 0) : -1;
    }
    await this.goTo(this.current + by);
  }

  async goTo(index) {
    index = Math.max(0, Math.min(this.answer.total - 1, index));
    if (!this.answer.rows.some((r) => r.index === index) && !await this.turn(Math.max(0, index - PAGE / 4))) return;
    this.show(this.answer.rows.find((r) => r.index === index));
  }

  show(row) {
    if (!row) return;
    this.current = row.index;
    const room = (row.end - row.start) * 0.08;
    this.view.look(row.start - room, row.end + room);
    this.hooks.say(`step ${row.step ?? row.index}, ${time(row.wall_us * 1000)}`);
    this.draw();
  }

  draw() {
    const {canvas} = this, ratio = window.devicePixelRatio || 1, shape = this.answer?.shape;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * ratio; canvas.height = height * ratio;
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = css("--lane"); c.fillRect(0, 0, width, height);
    if (!shape) return;
    // Twice the median reaches the top; what is longer is cut, and marked by its colour.
    const n = shape.max_us.length, top = Math.max(2 * shape.median_us, 1);
    shape.max_us.forEach((us, i) => {
      const h = Math.max(2, Math.min(1, us / top) * (height - 2));
      c.fillStyle = us > top ? css("--warn") : css("--soft");
      c.fillRect(i / n * width, height - h, Math.max(1, width / n - (width / n > 3 ? 1 : 0)), h);
    });
    const row = this.answer.rows.find((r) => r.index === this.current);
    if (this.current !== null) {
      const x = this.current / this.answer.total * width;
      c.fillStyle = css("--accent"); c.fillRect(x, 0, Math.max(3, width / this.answer.total), height);
    }
    canvas.setAttribute("aria-valuemax", String(this.answer.total - 1));
    canvas.setAttribute("aria-valuenow", String(this.current ?? 0));
    const median = `median ${time(shape.median_us * 1000)}`;
    this.about.textContent = row ? `step ${row.step ?? row.index}: ${time(row.wall_us * 1000)}, ${median}` : `${plural(this.answer.total, "step")} of ${this.answered.name}, ${median}`;
  }
}
