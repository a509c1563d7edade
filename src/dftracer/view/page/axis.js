// The time axis: ticks at round times, and the range that is selected.
import {css} from "view/palette.js";
import {moment} from "view/words.js";

export class Axis {
  constructor(canvas, view, done) {
    this.canvas = canvas; this.view = view;
    this.context = canvas.getContext("2d");
    let from = null, moved = false;
    const t = (e) => view.t0 + e.offsetX / canvas.clientWidth * view.span;
    canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); from = t(e); moved = false; });
    canvas.addEventListener("pointermove", (e) => { if (from !== null) { moved = true; view.setRange([from, t(e)]); } });
    canvas.addEventListener("pointerup", () => { if (from !== null) { if (moved) done(); else view.setRange(null); } from = null; });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  get step() {
    const wanted = this.view.span / Math.max(2, this.canvas.clientWidth / 110);
    const power = 10 ** Math.floor(Math.log10(wanted));
    return power * [1, 2, 5, 10].find((k) => k * power >= wanted);
  }

  ticks() {
    const step = this.step, out = [];
    for (let t = Math.ceil(this.view.t0 / step) * step; t <= this.view.t1; t += step) out.push(t);
    return out;
  }

  draw() {
    const {canvas, context: c, view} = this, ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * ratio; canvas.height = height * ratio;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    const step = this.step;
    for (const t of this.ticks()) {
      const x = (t - view.t0) / view.span * width;
      c.fillStyle = css("--line"); c.fillRect(Math.round(x), 0, 1, height);
      c.fillStyle = css("--soft"); c.fillText(moment(t, step), x + 5, height / 2);
    }
    if (view.range) {
      const [a, b] = view.range.map((t) => (t - view.t0) / view.span * width);
      c.globalAlpha = 0.25; c.fillStyle = css("--accent"); c.fillRect(a, 0, b - a, height); c.globalAlpha = 1;
    }
  }
}
