"use strict";
(() => {
  const { $, el, sec, size, count, sum, label, distinct, times, sizes, inkOn, path, css, hover, canvas, at, axis, table, format, LEFT } = Tools;
  const D = JSON.parse(document.getElementById("data").textContent);
  const S = D.stages, C = D.colours, NONE = S.length - 1;
  const shown = S.map(() => true);
  const draws = [];

  // Head ------------------------------------------------------------------------------------------
  const T = D.trace;
  for (const [k, v] of D.run) {
    const d = el("div");
    d.append(el("dt", "", k), el("dd", "", v));
    $("run").append(d);
  }
  if (D.ended) $("verdict").before(el("p", "ended" + (D.failed ? " bad" : ""), D.ended));
  $("verdict").textContent = D.verdict;
  $("why").textContent = D.head[1];
  $("try").textContent = D.head[2] && "Try: " + D.head[2];
  for (const line of D.notes) $("notes").append(el("p", "note", line));
  const chip = (k, v, bad) => {
    const d = el("div", bad ? "bad" : "");
    d.append(el("dt", "", k), el("dd", "", v));
    $("trust").append(d);
  };
  chip("events", count(T.events));
  chip("processes", count(T.processes));
  chip("ranks", count(T.ranks));
  chip("run", sec(D.run_s));
  chip("step time explained", Math.round(100 * T.coverage) + " %", T.coverage < .5);
  chip("events dropped", count(T.dropped), T.dropped > 0);
  chip("files truncated", count(T.truncated_files), T.truncated_files > 0);
  if (T.processes_without_end.length) chip("without end", count(T.processes_without_end.length), true);
  if (T.recovered_processes.length) chip("died", count(T.recovered_processes.length), true);
  if (T.clock_error_us !== null) chip("clock error", sec(T.clock_error_us / 1e6));
  if (T.writer_cpu_s !== null) chip("tracer CPU", sec(T.writer_cpu_s));
  if (T.overhead_s !== null) chip("recording cost", sec(T.overhead_s));

  // Account ---------------------------------------------------------------------------------------
  const A = D.account;
  if (A) {
    for (const [line, words, seconds, share, guilty] of A.rows) {
      const item = el("span", "key"), dot = el("i");
      dot.style.background = A.colours[line];
      item.append(dot, words + " " + sec(seconds) + " (" + (100 * share).toFixed(1) + " %)" + (guilty ? " ◀" : ""));
      item.dataset.line = line;
      $("account-legend").append(item);
    }
    $("account-about").textContent = A.title[0].toUpperCase() + A.title.slice(1) + ".";
    const whole = Math.max(...Object.values(A.bars).map((b) => sum(Object.values(b))), 1e-9);
    draws.push(() => {
      $("account-bars").replaceChildren();
      const room = $("account-bars").clientWidth - 240;
      for (const [rank, parts] of Object.entries(A.bars)) {
        const row = el("div", "row"), box = el("div", "stack");
        for (const [line, v] of Object.entries(parts)) {
          const p = el("span"), px = room * v / whole, share = Math.round(100 * v / sum(Object.values(parts))) + " %";
          p.style.width = 100 * v / whole + "%";
          p.style.background = A.colours[line];
          p.style.color = inkOn(A.colours[line]);
          p.dataset.line = line;
          if (px >= 34) p.textContent = px >= 7.5 * (A.words[line].length + share.length + 2) ? A.words[line] + " " + share : share;
          hover(p, () => "rank " + rank + "\n" + A.words[line] + ": " + sec(v) + " (" + share + ")");
          box.append(p);
        }
        row.append(el("span", "lab", "rank " + rank), box, el("span", "num", sec(sum(Object.values(parts)))));
        $("account-bars").append(row);
      }
    });
  } else $("s-account").hidden = true;

  // The whole run: what the account leaves out is seen here.
  const pieces = D.phases.filter((p) => p[2] >= .001);
  if (pieces.length > 1) {
    for (const [words, seconds, share, colour, guilty] of pieces) {
      const item = el("span", "key"), dot = el("i");
      dot.style.background = colour;
      item.append(dot, words + " " + sec(seconds) + " (" + (100 * share).toFixed(1) + " %)" + (guilty ? " ◀" : ""));
      $("run-legend").append(item);
    }
    draws.push(() => {
      const row = el("div", "row"), box = el("div", "stack"), room = $("run-bar").clientWidth - 240;
      for (const [words, seconds, share, colour] of pieces) {
        const p = el("span"), px = room * share, percent = Math.round(100 * share) + " %";
        p.style.width = 100 * share + "%";
        p.style.background = colour;
        p.style.color = inkOn(colour);
        if (px >= 34) p.textContent = px >= 7.5 * (words.length + percent.length + 2) ? words + " " + percent : percent;
        hover(p, () => words + ": " + sec(seconds) + " (" + percent + " of the run)");
        box.append(p);
      }
      row.append(el("span", "lab", "whole run"), box, el("span", "num", sec(D.run_s)));
      $("run-bar").replaceChildren(row);
    });
  }

  // Findings --------------------------------------------------------------------------------------
  const cards = D.findings.map((f) => {
    const d = el("details", "finding " + f.severity), s = el("summary");
    s.append(el("span", "sev", f.severity), el("b", "", f.title));
    s.append(el("span", "cost", f.seconds ? sec(f.seconds) + " · " + f.percent.toFixed(1) + " %" : ""));
    d.append(s, el("p", "", f.advice + " (confidence " + f.confidence + ")"));
    for (const symptom of f.symptoms) d.append(el("p", "note", "Shows in: " + symptom.title));
    const t = el("table", "ev");
    for (const [k, v] of f.evidence) {
      const r = el("tr"), h = el("th", "", k);
      h.scope = "row";
      r.append(h, el("td", "", v));
      t.append(r);
    }
    const proof = el("details", "proof");
    proof.append(el("summary", "", "evidence"), t);
    if (f.evidence.length) d.append(proof);
    d.open = true;
    $("findings").append(d);
    return d;
  });
  for (const level of ["all", "high", "medium", "low", "info"]) {
    const n = level === "all" ? D.findings.length : D.findings.filter((f) => f.severity === level).length;
    if (!n) continue;
    const b = el("button", "", level + " " + n);
    b.type = "button";
    b.dataset.level = level;
    b.setAttribute("aria-pressed", level === "all");
    b.onclick = () => {
      for (const o of $("severity").children) o.setAttribute("aria-pressed", o === b);
      cards.forEach((c, i) => { c.hidden = level !== "all" && D.findings[i].severity !== level; });
    };
    $("severity").append(b);
  }
  if (!D.findings.length) $("findings").append(el("p", "note", "Nothing stands out."));

  // Ledger ----------------------------------------------------------------------------------------
  const used = S.map((_, i) => D.ranks.some((r) => r.total_s[i] > 0 || r.outside_s[i] > 0) || D.lanes.some((l) => l.stage.includes(String.fromCharCode(97 + i))));
  S.forEach((s, i) => {
    if (!used[i]) return;
    const b = el("button");
    const dot = el("i");
    dot.style.background = C[i];
    b.type = "button";
    b.dataset.stage = s;
    b.append(dot, label(s) + (s === D.culprit ? " ◀" : ""));
    b.setAttribute("aria-pressed", true);
    b.onclick = () => {
      shown[i] = !shown[i];
      b.setAttribute("aria-pressed", shown[i]);
      draws.forEach((d) => d());
    };
    $("legend").append(b);
  });
  const stack = (values, scale, name, room) => {
    const box = el("div", "stack");
    values.forEach((v, i) => {
      if (!v || !shown[i]) return;
      const p = el("span");
      p.style.width = 100 * v / scale + "%";
      p.style.background = C[i];
      p.style.color = inkOn(C[i]);
      // A number where it fits, with its name where that fits too.
      const px = room * v / scale, share = Math.round(100 * v / scale) + " %";
      if (px >= 34) p.textContent = px >= 7.5 * (label(S[i]).length + share.length + 2) ? label(S[i]) + " " + share : share;
      hover(p, () => name + "\n" + label(S[i]) + ": " + sec(v) + " (" + (100 * v / scale).toFixed(1) + " %)");
      box.append(p);
    });
    return box;
  };
  draws.push(() => {
    $("ledger").replaceChildren();
    const most = Math.max(...D.ranks.map((r) => sum(r.total_s) + r.waiting_s), 1e-9);
    for (const r of D.ranks.slice(0, 32)) {
      const row = el("div", "row");
      row.append(el("span", "lab", "rank " + r.rank + (r.rank === D.slowest && D.ranks.length > 1 ? " (slowest)" : "")));
      const box = stack(r.total_s, most, "rank " + r.rank, $("ledger").clientWidth - 240);
      if (r.waiting_s && A) {
        const p = el("span");
        p.style.width = 100 * r.waiting_s / most + "%";
        p.style.background = A.colours.peers;
        p.dataset.line = "peers";
        hover(p, () => "rank " + r.rank + "\n" + A.words.peers + ": " + sec(r.waiting_s));
        box.append(p);
      }
      row.append(box, el("span", "num", sec(sum(r.total_s) + r.waiting_s)));
      $("ledger").append(row);
    }
    if (D.ranks.length > 32) $("ledger").append(el("p", "note", D.ranks.length + D.ranks_left_out - 32 + " more ranks are in the map below."));
    const wait = D.wait[D.slowest];
    if (wait && Object.keys(wait).length) {
      const words = Object.entries(wait).sort((a, b) => b[1] - a[1]).map(([k, v]) => label(k) + " " + sec(v)).join(", ");
      $("ledger").append(el("p", "note", "While rank " + D.slowest + " waited for its loader, the workers did: " + words + "."));
    }
  });

  // Steps -----------------------------------------------------------------------------------------
  for (const r of D.ranks) $("rank").append(new Option(r.rank, r.rank, r.rank === D.slowest, r.rank === D.slowest));
  const chosen = () => D.ranks.find((r) => String(r.rank) === $("rank").value) || D.ranks[0];
  const drawSteps = () => {
    const r = chosen();
    const [g, w, h] = canvas("steps", 230);
    if (!r || !r.steps) return;
    const relative = $("relative").checked;
    const tops = r.stages_ms.map((row) => relative ? 1 : sum(row.filter((_, i) => shown[i])));
    const ordered = [...tops].sort((a, b) => a - b);
    // One long first step must not flatten all others.
    const most = relative ? 1 : Math.min(ordered[ordered.length - 1], 2.5 * ordered[Math.floor((ordered.length - 1) * .95)]) || 1;
    axis(g, w, h, LEFT, most, (v) => relative ? distinct(v, (x, d) => (100 * x).toFixed(d) + " %") : times(v.map((x) => x / 1e3)));
    const bw = (w - LEFT) / r.stages_ms.length;
    r.stages_ms.forEach((row, k) => {
      let y = h - 18;
      const all = relative ? sum(row) || 1 : 1;
      row.forEach((v, i) => {
        if (!shown[i] || !v) return;
        const px = (h - 28) * (v / all) / most;
        g.fillStyle = C[i];
        g.fillRect(LEFT + k * bw, Math.max(y - px, 4), Math.max(bw - (bw > 4 ? 1 : 0), .6), Math.min(px, y - 4));
        y -= px;
      });
    });
    // A bar that does not fit ends in a gap and an arrow, and says how long it is.
    let clipped = 0, free = 0;
    tops.forEach((top, k) => {
      if (top <= most * 1.0001) return;
      clipped++;
      const x = LEFT + k * bw, middle = x + bw / 2;
      g.fillStyle = css("--card");
      g.fillRect(x, 11, Math.max(bw, 1), 3);
      g.fillStyle = css("--ink");
      g.beginPath(); g.moveTo(middle - 4, 9); g.lineTo(middle + 4, 9); g.lineTo(middle, 2); g.fill();
      const text = sec(top / 1e3), wide = g.measureText(text).width;
      if (middle + 7 < free || middle + 7 + wide > w) return;
      g.fillStyle = css("--card");
      g.fillRect(middle + 5, 0, wide + 4, 11);
      g.fillStyle = css("--ink");
      g.textAlign = "left";
      g.fillText(text, middle + 7, 10);
      free = middle + wide + 14;
    });
    $("clipped").hidden = !clipped;
    $("clipped").textContent = (clipped === 1 ? "1 bar is" : clipped + " bars are") + " longer than the axis: clipped, and marked with ▲ and the time.";
    g.fillStyle = css("--soft");
    g.textAlign = "left";
    let last = null, end = 0;
    r.epoch.forEach((e, k) => {
      if (e !== null && e !== last) {
        last = e;
        const x = LEFT + k * bw;
        if (x >= end) { g.fillText("epoch " + e, x, h - 4); end = x + 60; }
      }
    });
    if (last === null) g.fillText("step 0 to " + (r.steps - 1), LEFT, h - 4);
  };
  draws.push(drawSteps);
  $("rank").onchange = drawSteps;
  $("relative").onchange = drawSteps;
  hover($("steps"), (e) => {
    const r = chosen(), [x] = at("steps", e);
    if (!r || x < LEFT) return "";
    const k = Math.floor((x - LEFT) / ($("steps").clientWidth - LEFT) * r.stages_ms.length);
    const row = r.stages_ms[k];
    if (!row) return "";
    const to = (r.first[k + 1] || r.steps) - 1;
    const lines = row.map((v, i) => [v, i]).filter(([v]) => v > 0).sort((a, b) => b[0] - a[0])
      .map(([v, i]) => label(S[i]) + ": " + sec(v / 1e3));
    return (to > r.first[k] ? "steps " + r.first[k] + " to " + to + " (mean)" : "step " + r.first[k])
      + (r.epoch[k] !== null ? ", epoch " + r.epoch[k] : "") + "\n" + sec(r.mean_ms[k] / 1e3) + ", slowest " + sec(r.max_ms[k] / 1e3) + "\n" + lines.join("\n");
  });

  // Rank x step -----------------------------------------------------------------------------------
  const everything = D.ranks.flatMap((r) => r.mean_ms).sort((a, b) => a - b);
  const middle = everything[Math.floor(everything.length / 2)] || 1;
  const rowH = Math.max(3, Math.min(22, 360 / Math.max(D.ranks.length, 1)));
  // From the background (twice as fast) to the ink (twice as slow): colours mean stages.
  const heat = (x) => {
    const v = Math.max(-1, Math.min(1, Math.log2(Math.max(x, 1e-9)))), dark = css("--bg").startsWith("#1");
    const mid = dark ? [66, 69, 75] : [200, 204, 212], hot = dark ? [245, 246, 248] : [20, 24, 28], cold = dark ? [34, 36, 40] : [242, 243, 246];
    const to = v > 0 ? hot : cold, a = Math.abs(v);
    return "rgb(" + mid.map((m, i) => Math.round(m + (to[i] - m) * a)).join(",") + ")";
  };
  const widest = Math.max(...D.ranks.map((r) => r.mean_ms.length), 1);
  draws.push(() => {
    $("map-key").textContent = css("--bg").startsWith("#1") ? "brighter is slower." : "darker is slower.";
    const [g, w] = canvas("map", rowH * Math.max(D.ranks.length, 1) + 4);
    const bw = (w - LEFT) / widest;
    D.ranks.forEach((r, j) => {
      if (rowH >= 10 || j % Math.ceil(12 / rowH) === 0) {
        g.fillStyle = css("--soft");
        g.textAlign = "right";
        g.fillText("rank " + r.rank, LEFT - 8, j * rowH + Math.max(rowH / 2 + 4, 9));
      }
      r.mean_ms.forEach((v, k) => {
        g.fillStyle = heat(v / middle);
        g.fillRect(LEFT + k * bw, j * rowH, Math.max(bw - (bw > 5 ? 1 : 0), .7), Math.max(rowH - 1, 1));
      });
    });
  });
  hover($("map"), (e) => {
    const [x, y] = at("map", e), r = D.ranks[Math.floor(y / rowH)];
    if (!r || x < LEFT) return "";
    const k = Math.floor((x - LEFT) / ($("map").clientWidth - LEFT) * widest);
    if (k >= r.mean_ms.length) return "";
    return "rank " + r.rank + ", step " + r.first[k] + "\n" + sec(r.mean_ms[k] / 1e3) + " (" + (r.mean_ms[k] / middle).toFixed(2) + " of the median)\nslowest " + sec(r.max_ms[k] / 1e3);
  });

  // Timeline --------------------------------------------------------------------------------------
  let view = [0, T.span_s || 1], drag = null;
  const TH = 18, TL = Math.min(230, Math.max(90, innerWidth / 5));
  // Names keep their end, which tells one thread from another.
  const fitted = (g, text, room) => {
    if (g.measureText(text).width <= room) return text;
    let from = 1;
    while (from < text.length && g.measureText("…" + text.slice(from)).width > room) from++;
    return "…" + text.slice(from);
  };
  const lanes = () => D.lanes.filter((l) => !$("role").value || l.role === $("role").value);
  const drawTime = () => {
    const rows = lanes(), [g, w, h] = canvas("time", rows.length * TH + 26);
    const [from, to] = view, px = (w - TL) / (to - from);
    rows.forEach((l, j) => {
      g.fillStyle = css("--soft");
      g.textAlign = "right";
      g.fillText(fitted(g, l.label, TL - 12), TL - 8, j * TH + 13);
      g.fillStyle = css("--none");
      g.fillRect(TL, j * TH + 2, w - TL, TH - 4);
      const n = l.stage.length, step = (l.last_s - l.first_s) / n;
      const k0 = Math.max(0, Math.floor((from - l.first_s) / step)), k1 = Math.min(n, Math.ceil((to - l.first_s) / step));
      for (let k = k0; k < k1; k++) {
        const s = l.stage.charCodeAt(k) - 97;
        if (s === NONE || !shown[s]) continue;
        const x0 = Math.max(TL, TL + (l.first_s + k * step - from) * px), x1 = Math.min(w, TL + (l.first_s + (k + 1) * step - from) * px);
        const fill = Math.max(.15, l.fill.charCodeAt(k) / 9 - 48 / 9);
        g.fillStyle = C[s];
        g.fillRect(x0, j * TH + 2 + (TH - 4) * (1 - fill), Math.max(x1 - x0, .5), (TH - 4) * fill);
      }
    });
    g.fillStyle = css("--soft");
    g.textAlign = "center";
    const marks = w < 700 ? 2 : 6, labels = times(Array.from({ length: marks + 1 }, (_, i) => from + (to - from) * i / marks));
    labels.forEach((text, i) => {
      g.textAlign = i === 0 ? "left" : i === marks ? "right" : "center";
      g.fillText(text, TL + (w - TL) * i / marks, h - 6);
    });
    if (drag) {
      g.fillStyle = css("--accent") + "33";
      g.fillRect(Math.min(...drag), 0, Math.abs(drag[1] - drag[0]), h - 22);
    }
  };
  draws.push(drawTime);
  $("role").onchange = drawTime;
  const whole = () => { view = [0, T.span_s || 1]; drawTime(); };
  $("zoomout").onclick = whole;
  $("time").ondblclick = whole;
  const when = (x) => view[0] + (x - TL) / ($("time").clientWidth - TL) * (view[1] - view[0]);
  $("time").addEventListener("mousedown", (e) => { const [x] = at("time", e); if (x > TL) drag = [x, x]; });
  addEventListener("mousemove", (e) => { if (drag) { drag[1] = Math.max(TL, at("time", e)[0]); drawTime(); } });
  addEventListener("mouseup", () => {
    if (!drag) return;
    const [a, b] = [when(Math.min(...drag)), when(Math.max(...drag))], wide = Math.abs(drag[1] - drag[0]) > 4;
    drag = null;
    if (wide) view = [a, b];
    drawTime();
  });
  $("time").dataset.ready = "1";
  hover($("time"), (e) => {
    const [x, y] = at("time", e), l = lanes()[Math.floor(y / TH)];
    if (!l || drag) return "";
    if (x < TL) return l.label + "\npid " + l.pid + ", tid " + l.tid + "\n" + count(l.events) + " events";
    const t = when(x), k = Math.floor((t - l.first_s) / ((l.last_s - l.first_s) / l.stage.length));
    const s = k >= 0 && k < l.stage.length ? l.stage.charCodeAt(k) - 97 : NONE;
    return l.label + " at " + sec(t) + "\n" + (s === NONE ? "idle" : label(S[s]) + ", " + Math.round(100 * (l.fill.charCodeAt(k) - 48) / 9) + " % busy");
  });

  // I/O -------------------------------------------------------------------------------------------
  const READ = C[S.indexOf("read")], WRITTEN = D.written_colour, REST = C[S.indexOf("other")];
  if (D.io) {
    for (const [name, colour] of [["read", READ], ["written", WRITTEN]]) {
      const item = el("span", "key"), dot = el("i");
      dot.style.background = colour;
      item.append(dot, name);
      $("io-legend").append(item);
    }
    const P = D.io, n = P.start_s.length, width = P.width_s[0] || 1;
    const span = Math.max(P.start_s[n - 1] + width, width);
    draws.push(() => {
      const [g, w, h] = canvas("io", 180);
      const most = Math.max(...P.read_bytes, ...P.write_bytes, 1) / width;
      axis(g, w, h, LEFT + 14, most, (v) => sizes(v, "/s"));
      const x = (s) => LEFT + 14 + (w - LEFT - 14) * s / span, bw = Math.max(x(width) - x(0), 1);
      for (const [key, colour] of [["read_bytes", READ], ["write_bytes", WRITTEN]]) {
        g.fillStyle = colour;
        P[key].forEach((v, k) => {
          const px = (h - 28) * v / width / most;
          g.fillRect(x(P.start_s[k]), h - 18 - px, bw, key === "read_bytes" ? px : Math.min(px, 3));
        });
      }
      g.fillStyle = css("--soft");
      g.textAlign = "left";
      g.fillText("0", LEFT + 14, h - 4);
      g.textAlign = "right";
      g.fillText(sec(span), w, h - 4);
    });
    hover($("io"), (e) => {
      const [x] = at("io", e), t = (x - LEFT - 14) / ($("io").clientWidth - LEFT - 14) * span;
      const k = P.start_s.findIndex((s) => t >= s && t < s + width);
      return k < 0 ? "" : sec(P.start_s[k]) + "\nread " + size(Math.round(P.read_bytes[k] / width)) + "/s\nwritten " + size(Math.round(P.write_bytes[k] / width)) + "/s\n" + count(P.ops[k]) + " calls";
    });
    // Classes end below twice the size they begin with, and are named in the unit of their beginning.
    const upTo = (n) => {
      const u = ["B", "KiB", "MiB", "GiB", "TiB"], i = Math.min(4, Math.floor(Math.log2(n) / 10));
      return 2 * n / 1024 ** i + " " + u[i];
    };
    if (D.sizes && D.sizes.length) {
      const top = Math.max(...D.sizes.map((s) => s.calls));
      $("sizes").append(el("p", "note", "Transfers by size"));
      for (const s of D.sizes) {
        const row = el("div", "row"), box = el("div", "stack"), p = el("span");
        p.style.width = 100 * s.calls / top + "%";
        p.style.background = s.op === "read" ? READ : WRITTEN;
        box.append(p);
        const range = s.from_bytes ? sizes([s.from_bytes], "")[0].replace(/ (.*)/, "") + " to " + upTo(s.from_bytes) : "0 B";
        row.append(el("span", "lab", s.op + " " + range), box, el("span", "num", count(s.calls)));
        row.firstChild.title = s.op + " " + range;
        hover(row, () => s.op + " of " + range + ": " + count(s.calls) + " calls, " + size(s.bytes) + ", " + sec(s.time_s));
        $("sizes").append(row);
      }
    }
  } else $("s-io").hidden = true;

  // Workers ---------------------------------------------------------------------------------------
  if (D.workers.length) {
    draws.push(() => {
      $("workers").replaceChildren();
      for (const w of D.workers) {
        const row = el("div", "row"), busy = w.busy_share, span = w.life_s;
        const values = S.map((s) => w[s + "_s"] || 0);
        row.append(el("span", "lab", "rank " + w.rank + " loader worker " + w.worker), stack(values, Math.max(span, sum(values)), "pid " + w.pid, $("workers").clientWidth - 240), el("span", "num", Math.round(100 * busy) + " % busy"));
        $("workers").append(row);
      }
    });
  } else $("s-workers").hidden = true;

  // The program's own code ------------------------------------------------------------------------
  function drawFlame(own) {
    const shade = (name) => {
      let h = 0;
      for (const c of name.split(" ").at(-1).split(":")[0]) h = (31 * h + c.charCodeAt(0)) % 997;
      return "hsl(" + (20 + h % 40) + " 85% " + (68 + h % 14) + "%)";
    };
    $("own-about").textContent = sec(own.seconds) + " of rank " + own.rank + " as sampled, outermost call on top; click to zoom, click the top to go back.";
    const draw = (root, above) => {
      $("flame").replaceChildren();
      const levels = [];
      const place = (node, left, depth, parents) => {
        levels[depth] ??= $("flame").appendChild(el("div", "level"));
        const b = el("button", "", node.name);
        b.type = "button";
        b.style.left = 100 * left / root.seconds + "%";
        b.style.width = Math.max(.15, 100 * node.seconds / root.seconds) + "%";
        b.style.background = depth ? shade(node.name) : "var(--none)";
        if (!depth) b.style.color = "var(--ink)";
        b.onclick = () => node === root ? above.length && draw(above.at(-1), above.slice(0, -1)) : draw(node, [...above, root]);
        hover(b, () => node.name + "\n" + sec(node.seconds) + ", " + (100 * node.seconds / own.seconds).toFixed(1) + " %");
        levels[depth].append(b);
        let at = left;
        for (const child of node.children) {
          place(child, at, depth + 1);
          at += child.seconds;
        }
      };
      place(root, 0, 0);
    };
    draw(own.flame, []);
    const shown = { columns: ["function and line", "seconds", "share"], rows: own.places.slice(0, 40).map((p) => [p.where, p.seconds, p.share]) };
    table($("own-places"), shown, "own-filter", [0], own.places.length, (c, v) => c === "seconds" ? sec(v) : c === "share" ? (100 * v).toFixed(1) + " %" : v, "places");
  }

  // Tables ----------------------------------------------------------------------------------------
  table($("names"), D.names, "name-filter", [0, 1], D.names_total, format, "events");
  if (D.files) {
    const col = Object.fromEntries(D.files.columns.map((c, i) => [c, i]));
    const bars = el("div", "files");
    const longest = Math.max(...D.files.rows.map((r) => r[col.time_s]), 1e-9);
    const kinds = [["read_s", READ, "reading"], ["write_s", WRITTEN, "writing"], ["meta_s", REST, "opening, closing and the like"]];
    for (const r of D.files.rows.slice(0, 20)) {
      const row = el("div", "row"), box = el("div", "stack");
      for (const [key, colour] of kinds) {
        const p = el("span");
        p.style.width = 100 * r[col[key]] / longest + "%";
        p.style.background = colour;
        box.append(p);
      }
      const lab = path(r[col.path], 32);
      row.append(lab, box, el("span", "num", sec(r[col.time_s]) + ", " + size(r[col.read_bytes] + r[col.write_bytes])));
      hover(row, () => r[col.path] + "\n" + count(r[col.ops]) + " calls, " + count(r[col.opens]) + " opens\nread " + size(r[col.read_bytes]) + ", written " + size(r[col.write_bytes]));
      bars.append(row);
    }
    $("s-files").insertBefore(bars, $("s-files").querySelector(".controls"));
    const fileKey = el("div", "legend");
    for (const [, colour, words] of kinds) {
      const item = el("span", "key"), dot = el("i");
      dot.style.background = colour;
      item.append(dot, words);
      fileKey.append(item);
    }
    $("s-files").insertBefore(fileKey, bars);
    const keep = ["path", "ops", "opens", "reads", "writes", "read_bytes", "write_bytes", "time_s", "read_s", "meta_s", "read_mb_s", "ranks"].map((c) => col[c]);
    table($("files"), { columns: keep.map((i) => D.files.columns[i]), rows: D.files.rows.map((r) => keep.map((i) => r[i])) }, "file-filter", [0], D.files_total, format, "files");
  } else $("s-files").hidden = true;
  if (D.own_code) drawFlame(D.own_code); else $("s-own").hidden = true;
  if (D.machine) drawMachine(D.machine, draws); else $("s-machine").hidden = true;
  if (D.device) drawDevice(D.device, D.ranks, draws); else $("s-device").hidden = true;
  if (!D.ranks.length) for (const id of ["s-ledger", "s-steps", "s-map"]) $(id).hidden = true;
  if (!D.lanes.length) $("s-time").hidden = true;

  for (const s of document.querySelectorAll("main section")) {
    if (s.hidden) continue;
    const a = el("a", "", s.querySelector("h2").textContent);
    a.href = "#" + s.id;
    $("nav").append(a);
  }
  const redraw = () => draws.forEach((d) => d());
  $("theme").onclick = () => {
    const dark = css("--bg").startsWith("#1");
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);
  redraw();
  document.documentElement.dataset.ready = "1";
})();
