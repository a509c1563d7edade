// A picture painted once, so that moving and zooming only places it anew: a frame costs the same for any picture.
import {colour, inkOn} from "view/palette.js";

const ROW = 18, LETTER = 6.1, LEAST_LABEL = 26;

// Kinds with very many names: neighbours get different shades of the one colour.
const SHADED = new Set(["operator", "launch", "kernel", "other", "compile"]), SHADES = 4;

function shadeOf(name) {
  let sum = 0;
  for (let i = 0; i < name.length; i++) sum = (sum * 31 + name.charCodeAt(i)) | 0;
  return Math.abs(sum) % SHADES;
}

function shaded(hex, shade) {
  if (!shade) return hex;
  const by = [1, 0.88, 1.12, 0.78][shade];
  return "#" + [1, 3, 5].map((i) => Math.min(255, Math.round(parseInt(hex.slice(i, i + 2), 16) * by)).toString(16).padStart(2, "0")).join("");
}

// A colour as the four bytes of a pixel.
function asPixel(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return new Uint32Array(new Uint8Array([r, g, b, 255]).buffer)[0];
}

export class Sheet {
  constructor(drawn, about, pane) {
    Object.assign(this, {drawn, about, pane});
    this.ys = about.rows.map((row) => pane.rowY.get(row)?.y ?? 0);
    this.low = Math.min(...this.ys, Infinity);
    this.high = Math.max(...this.ys, -Infinity) + ROW;
    this.wide = [];
    if (this.high > this.low) this.render();
  }

  get scale() { return this.about.w / (this.about.to - this.about.from); }

  render() {
    const {drawn, about, pane} = this, ratio = pane.ratio;
    this.canvas = document.createElement("canvas");
    this.canvas.width = about.w;
    this.canvas.height = Math.max(1, Math.round((this.high - this.low) * ratio));
    const c = this.canvas.getContext("2d");
    const colours = pane.classKind.map(colour);
    const tall = Math.round((ROW - 2) * ratio);
    const y = this.ys.map((v) => Math.round((v - this.low) * ratio));
    if (drawn.bin_x.length) this.renderBins(c, colours, y, tall);
    // A change of colour costs, so go by colour.
    const by = new Map();
    const shades = drawn.names.map(shadeOf);
    for (let i = 0; i < drawn.start.length; i++) {
      const key = drawn.cls[i] * SHADES + (SHADED.has(pane.classKind[drawn.cls[i]]) ? shades[drawn.name[i]] : 0);
      if (!by.has(key)) by.set(key, []);
      by.get(key).push(i);
    }
    const least = LEAST_LABEL * ratio;
    for (const [key, list] of by) {
      c.fillStyle = shaded(colours[Math.floor(key / SHADES)], key % SHADES);
      for (const i of list) {
        const x = (drawn.start[i] - about.from) * this.scale, w = drawn.length[i] * this.scale;
        c.fillRect(x, y[drawn.row[i]], Math.max(w > 4 ? w - 1 : w, 1), tall);
        if (w > least / 3) this.wide.push(i);
      }
    }
  }

  // Bins by the pixel: there may be tens of thousands. Those that are not full are lower, like the bars of a chart.
  renderBins(c, colours, y, tall) {
    const {drawn} = this, {width, height} = this.canvas;
    const image = c.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    const tints = colours.map(asPixel);
    for (let i = 0; i < drawn.bin_x.length; i++) {
      const tint = tints[drawn.bin_cls[i]], bottom = y[drawn.bin_row[i]] + tall;
      const first = bottom - Math.max(2, Math.round(tall * drawn.bin_fill[i] / drawn.full));
      for (let line = first; line < bottom; line++) {
        const at = line * width + drawn.bin_x[i];
        pixels.fill(tint, at, at + drawn.bin_width[i]);
      }
    }
    c.putImageData(image, 0, 0);
  }

  paint(c, top) {
    const {about, drawn, pane} = this;
    if (!this.canvas) return;
    const x0 = pane.x(about.from), x1 = pane.x(about.to);
    c.imageSmoothingEnabled = Math.abs((x1 - x0) * pane.ratio - about.w) > 1;
    c.drawImage(this.canvas, x0, this.low + top, x1 - x0, this.high - this.low);
    // Text is written where it is now, so that it stays sharp while the picture is being stretched.
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    for (const i of this.wide) {
      const from = Math.max(pane.x(drawn.start[i]), 0), to = Math.min(pane.x(drawn.start[i] + drawn.length[i]), pane.width);
      const fits = Math.floor((to - from - 8) / LETTER);
      if (to - from < LEAST_LABEL || fits < 2) continue;
      const name = drawn.names[drawn.name[i]];
      c.fillStyle = inkOn(colour(pane.classKind[drawn.cls[i]]));
      c.fillText(name.length <= fits ? name : name.slice(0, fits - 1) + "…", from + 4, this.ys[drawn.row[i]] + top + (ROW - 2) / 2 + 0.5);
    }
  }

  // What is drawn at a moment of a row: a span, a bin, or nothing.
  at(row, t, pixel) {
    const {drawn, about, pane} = this, n = about.rows.indexOf(row);
    if (n < 0) return null;
    let best = null, off = Infinity;
    for (let i = 0; i < drawn.start.length; i++) {
      if (drawn.row[i] !== n) continue;
      const away = Math.max(drawn.start[i] - t, t - drawn.start[i] - drawn.length[i], 0);
      if (away < off && away <= 2 * pixel) { best = i; off = away; }
    }
    if (best !== null) {
      return {name: drawn.names[drawn.name[best]], start: drawn.start[best], length: drawn.length[best], part: drawn.part[best], span: drawn.span[best]};
    }
    const x = (t - about.from) * this.scale;
    for (let i = 0; i < drawn.bin_x.length; i++) {
      if (drawn.bin_row[i] === n && x >= drawn.bin_x[i] && x < drawn.bin_x[i] + drawn.bin_width[i]) {
        return {bin: true, kind: pane.classKind[drawn.bin_cls[i]], fill: drawn.bin_fill[i] / drawn.full, width: 1 / this.scale};
      }
    }
    return null;
  }
}
