"use strict";
// The part of the page about the device.
const drawDevice = (V, ranks, draws) => {
  const { $, el, sec, size, count, sum, inkOn, css, hover, canvas, at, axis, table, format, LEFT } = Tools;
  const parts = Object.keys(V.colours);
  $("device-about").textContent = "Rank " + V.rank + ": " + V.about + ".";
  const shares = (bar, name) => {
    const box = el("div", "stack device");
    for (const k of parts) {
      const v = bar.parts[k];
      if (!v) continue;
      const p = el("span");
      p.style.width = 100 * v / bar.whole + "%";
      p.style.background = V.colours[k];
      p.style.color = inkOn(V.colours[k]);
      if (($("ledger").clientWidth - 240) * v / bar.whole >= 34) p.textContent = Math.round(100 * v / bar.whole) + " %";
      hover(p, () => name + "\n" + V.words[k] + ": " + sec(v) + " (" + (100 * v / bar.whole).toFixed(1) + " %)");
      box.append(p);
    }
    return box;
  };
  // Under each rank's bar, what its device did.
  draws.push(() => {
    const rows = [...$("ledger").querySelectorAll(".row")];
    ranks.slice(0, 32).forEach((r, i) => {
      const bar = V.bars[r.rank];
      if (!bar || !rows[i]) return;
      const row = el("div", "row device"), idle = bar.whole - (bar.parts.busy || 0) - (bar.parts.paced || 0) - (bar.parts.copies || 0);
      row.append(el("span", "lab", "device"), shares(bar, "device of rank " + r.rank), el("span", "num", Math.round(100 * idle / bar.whole) + " % idle"));
      rows[i].after(row);
    });
  });
  const seen = parts.filter((k) => Object.values(V.bars).some((b) => b.parts[k]));
  for (const k of seen) {
    const item = el("span", "key"), dot = el("i");
    dot.style.background = V.colours[k];
    item.append(dot, V.words[k] + (k === V.culprit ? " ◀" : ""));
    $("device-legend").append(item);
  }
  if (V.over_time.length) {
    const slots = V.over_time.map((w) => w.shares.busy.length), all = sum(slots);
    draws.push(() => {
      const [g, w, h] = canvas("device-time", 150);
      axis(g, w, h, LEFT, 1, (v) => v.map((x) => Math.round(100 * x) + " %"));
      const bw = (w - LEFT) / all;
      let x = LEFT;
      V.over_time.forEach((part, i) => {
        for (let k = 0; k < slots[i]; k++) {
          let y = h - 18;
          for (const name of parts) {
            const v = (part.shares[name] || [])[k];
            if (!v) continue;
            g.fillStyle = V.colours[name];
            g.fillRect(x, y - (h - 28) * v, Math.max(bw - .3, .6), (h - 28) * v);
            y -= (h - 28) * v;
          }
          x += bw;
        }
        g.fillStyle = css("--soft");
        g.textAlign = "left";
        g.fillText(sec(part.first_s), x - slots[i] * bw, h - 4);
        if (i) { g.fillStyle = css("--ink"); g.fillRect(x - slots[i] * bw, 4, 1, h - 22); }
      });
    });
    hover($("device-time"), (e) => {
      let k = Math.floor((at("device-time", e)[0] - LEFT) / ($("device-time").clientWidth - LEFT) * all);
      if (k < 0 || k >= all) return "";
      let i = 0;
      while (k >= slots[i]) k -= slots[i++];
      const p = V.over_time[i], t = p.first_s + (p.last_s - p.first_s) * k / slots[i];
      return sec(t) + "\n" + parts.filter((n) => (p.shares[n] || [])[k]).map((n) => V.words[n] + ": " + Math.round(100 * p.shares[n][k]) + " %").join("\n");
    });
  } else $("device-time").hidden = true;
  const kinds = Object.entries(V.kinds), most = Math.max(...kinds.map((k) => k[1]), 1e-9);
  for (const [kind, v] of kinds) {
    const row = el("div", "row"), box = el("div", "stack"), p = el("span");
    p.style.width = 100 * v / most + "%";
    p.style.background = V.colours.busy;
    box.append(p);
    row.append(el("span", "lab", kind), box, el("span", "num", sec(v)));
    $("device-kinds").append(row);
  }
  for (const p of V.phases) {
    const row = el("div", "row");
    row.append(el("span", "lab", p.phase), el("span", "", "device " + sec(p.median_us / 1e6) + ", lag " + sec(p.lag_us / 1e6) + " at its beginning, " + sec(p.end_lag_us / 1e6) + " at its end (medians)" + (p.memory_bytes ? ", memory " + size(p.memory_bytes) : "")), el("span", "num", count(p.count)));
    $("device-kinds").append(row);
  }
  if (V.kernels.rows.length) table($("kernels"), V.kernels, "kernel-filter", [0, 1, 6, 7, 8], V.kernels.rows.length, format, "kernels");
  else $("kernel-filter").parentElement.hidden = true;
};
