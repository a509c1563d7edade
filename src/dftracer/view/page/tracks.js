// What the machine did, below the lanes and on their time: one track for each counter.
import {json, latest} from "view/api.js";
import {css} from "view/palette.js";
import {element, time} from "view/words.js";

const COLOURS = ["#3e63dd", "#e5484d", "#30a46c"], TRACK = 34;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function size(n) {
  let i = 0;
  while (n >= 1024 && i < UNITS.length - 1) { n /= 1024; i++; }
  return `${i ? n.toFixed(1) : Math.round(n)} ${UNITS[i]}`;
}

const TEXT_OF = {share: (v) => `${Math.round(100 * v)} %`, bytes: size, "bytes/s": (v) => `${size(v)}/s`, W: (v) => `${Math.round(v)} W`};

export class Tracks {
  constructor(box, view, hooks) {
    this.box = box; this.view = view; this.hooks = hooks;
    this.asked = latest(); this.tracks = [];
    this.list = element("div", {class: "tracks", tabindex: 0, role: "region", "aria-label": "Counters of the machine"});
    box.append(this.list);
    box.addEventListener("toggle", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.list);
  }

  async load(run) {
    const current = this.asked(), plots = await json("machine", {run});
    if (!current()) return;
    this.box.hidden = !plots.length;
    this.tracks = plots.map((plot) => {
      const most = plot.most ?? Math.max(...plot.lines.flatMap((l) => l.v), 1);
      const canvas = element("canvas", {role: "img", "aria-label": `${plot.title} over time`});
      const label = element("span", {class: "track-name", text: plot.title,
        title: `${plot.title}: ${plot.lines.map((l) => l.label).join(", ")}; up to ${TEXT_OF[plot.unit](most)}`});
      const track = {plot, most, canvas};
      canvas.addEventListener("pointermove", (e) => this.tell(track, e));
      canvas.addEventListener("pointerleave", () => this.hooks.tip(""));
      return Object.assign(track, {row: element("div", {class: "track"}, label, canvas)});
    });
    this.list.replaceChildren(...this.tracks.map((t) => t.row));
    this.draw();
  }

  tell(track, e) {
    const t = (this.view.t0 + this.view.span * e.offsetX / Math.max(track.canvas.clientWidth, 1)) / 1e9;
    const near = (line) => line.v[line.t.reduce((best, v, k) => Math.abs(v - t) < Math.abs(line.t[best] - t) ? k : best, 0)];
    const values = track.plot.lines.map((l) => `${l.label} ${TEXT_OF[track.plot.unit](near(l))}`);
    this.hooks.tip(`${track.plot.title} at ${time(t * 1e9)}\n${values.join("\n")}`, e.clientX, e.clientY);
  }

  draw() {
    if (this.box.hidden || !this.box.open) return;
    const ratio = window.devicePixelRatio || 1, {t0, span} = this.view;
    for (const {plot, most, canvas} of this.tracks) {
      const width = canvas.clientWidth;
      canvas.width = width * ratio; canvas.height = TRACK * ratio;
      const c = canvas.getContext("2d");
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.fillStyle = css("--lane"); c.fillRect(0, 0, width, TRACK);
      plot.lines.forEach((line, i) => {
        c.strokeStyle = COLOURS[i]; c.lineWidth = 1.5;
        c.beginPath();
        line.t.forEach((t, k) => {
          const x = (t * 1e9 - t0) / span * width, y = TRACK - 2 - (TRACK - 4) * Math.min(line.v[k] / most, 1);
          if (k) c.lineTo(x, y); else c.moveTo(x, y);
        });
        c.stroke();
      });
    }
  }
}
