"use strict";
// Small plots of what the machine did: one per counter, all over the time of the run.
const drawMachine = (M, draws) => {
  const { $, el, sec, size, css, hover, canvas, at, axis, times, sizes, distinct, LEFT } = Tools;
  const COLOURS = ["#3e63dd", "#e5484d", "#30a46c"], HEIGHT = 120;
  const share = (v) => Math.round(100 * v) + " %";
  const texts = { share, bytes: size, "bytes/s": (v) => size(v) + "/s", W: (v) => Math.round(v) + " W" };
  const marks = {
    share: (values) => values.map(share),
    bytes: (values) => sizes(values, ""),
    "bytes/s": (values) => sizes(values, "/s"),
    W: (values) => distinct(values, (v, d) => v.toFixed(d) + " W"),
  };

  const facts = el("table", "ev");
  for (const [what, words] of M.rows) {
    const row = el("tr"), head = el("th", "", what);
    head.scope = "row";
    row.append(head, el("td", "", words));
    facts.append(row);
  }
  $("machine-facts").append(facts);

  const first = Math.min(...M.plots.flatMap((p) => p.lines.map((l) => l.t[0])));
  const last = Math.max(...M.plots.flatMap((p) => p.lines.map((l) => l.t[l.t.length - 1])), first + 1e-3);
  M.plots.forEach((plot, number) => {
    const box = el("figure", "plot"), caption = el("figcaption", "", plot.title), picture = el("canvas");
    picture.id = "machine-" + number;
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", plot.title + " over time");
    plot.lines.forEach((line, i) => {
      const key = el("span", "key"), dot = el("i");
      dot.style.background = COLOURS[i];
      key.append(dot, line.label);
      if (plot.lines.length > 1) caption.append(key);
    });
    box.append(caption, picture);
    $("machine-plots").append(box);
    const most = plot.most || Math.max(...plot.lines.flatMap((l) => l.v), 1);
    const x = (t, w) => LEFT + (w - LEFT - 2) * (t - first) / (last - first);
    draws.push(() => {
      const [g, w, h] = canvas(picture.id, HEIGHT);
      axis(g, w, h, LEFT, most, marks[plot.unit]);
      g.textAlign = "left";
      times([first, last]).forEach((text, i) => { g.textAlign = i ? "right" : "left"; g.fillText(text, i ? w : LEFT, h - 4); });
      plot.lines.forEach((line, i) => {
        g.strokeStyle = COLOURS[i];
        g.lineWidth = 1.5;
        g.beginPath();
        line.t.forEach((t, k) => {
          const y = h - 18 - (h - 28) * Math.min(line.v[k] / most, 1);
          if (k) g.lineTo(x(t, w), y); else g.moveTo(x(t, w), y);
        });
        g.stroke();
        g.lineWidth = 1;
      });
    });
    hover(picture, (e) => {
      const w = picture.clientWidth, t = first + (last - first) * (at(picture.id, e)[0] - LEFT) / Math.max(w - LEFT - 2, 1);
      if (t < first) return "";
      const near = (line) => line.v[line.t.reduce((best, v, k) => Math.abs(v - t) < Math.abs(line.t[best] - t) ? k : best, 0)];
      return plot.title + " at " + sec(t) + "\n" + plot.lines.map((l) => l.label + " " + texts[plot.unit](near(l))).join("\n");
    });
  });
};
