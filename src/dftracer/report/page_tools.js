"use strict";
// What the parts of the page are made with: text for numbers, elements, canvases, tables.
const Tools = (() => {
  const $ = (id) => document.getElementById(id);
  const LEFT = 62;  // room for the labels of an axis

  const el = (tag, cls, text) => {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const sec = (s) => s >= 120 ? Math.floor(s / 60) + " min " + Math.round(s % 60) + " s" : s >= 1 ? s.toFixed(2) + " s"
    : s >= 1e-3 ? +(s * 1e3).toPrecision(3) + " ms" : s > 0 ? +(s * 1e6).toPrecision(3) + " µs" : "0";
  const size = (n) => {
    const u = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (n >= 1024 && i < 4) { n /= 1024; i++; }
    return (i ? n.toFixed(1) : n) + " " + u[i];
  };
  const count = (n) => n.toLocaleString("en-US").replaceAll(",", "\u202f");
  const sum = (a) => a.reduce((x, y) => x + y, 0);
  const label = (s) => s.replaceAll("_", " ");
  // Labels of one axis: one unit, and as many digits as make them differ and say where they stand.
  const distinct = (values, text) => {
    const exact = values.map((v) => parseFloat(text(v, 7))), marks = [...new Set(exact)].sort((a, b) => a - b);
    const near = Math.min(...marks.slice(1).map((m, i) => m - marks[i])) / 20;
    for (let digits = 0; digits < 7; digits++) {
      const out = values.map((v) => text(v, digits));
      if (new Set(out).size === new Set(values).size && out.every((t, i) => Math.abs(parseFloat(t) - exact[i]) <= near)) return out;
    }
    return values.map((v) => text(v, 7));
  };
  const times = (values) => {
    const most = Math.max(...values.map(Math.abs)), [unit, scale] = most >= 1 ? ["s", 1] : most >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
    return distinct(values, (v, d) => (v * scale).toFixed(d) + " " + unit);
  };
  const sizes = (values, after) => {
    const u = ["B", "KiB", "MiB", "GiB", "TiB"], most = Math.max(...values);
    let i = 0;
    while (most >= 1024 ** (i + 1) && i < 4) i++;
    return distinct(values, (v, d) => (v / 1024 ** i).toFixed(d) + " " + u[i] + after);
  };
  // Black or white, whichever can be read on a colour.
  const inkOn = (hex) => {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return .299 * r + .587 * g + .114 * b > 140 ? "#1c2024" : "#ffffff";
  };
  // A path keeps its end: the beginning is what most paths share.
  const path = (text, room) => {
    const box = el("span", "path"), last = Math.max(text.length - room, 0), slash = text.indexOf("/", last);
    const cut = last === 0 ? 0 : slash >= 0 && slash < text.length - 1 ? slash : last;
    box.title = text;
    box.append(el("span", "head", text.slice(0, cut)), el("span", "tail", text.slice(cut)));
    return box;
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const tip = $("tip");
  const hover = (target, text) => {
    target.addEventListener("mousemove", (e) => {
      const t = text(e);
      if (!t) { tip.hidden = true; return; }
      tip.textContent = t;
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      tip.style.left = Math.min(e.clientX + 14, innerWidth - box.width - 8) + "px";
      tip.style.top = Math.min(e.clientY + 14, innerHeight - box.height - 8) + "px";
    });
    target.addEventListener("mouseleave", () => { tip.hidden = true; });
  };
  const canvas = (id, height) => {
    const c = $(id), w = c.clientWidth, r = devicePixelRatio || 1;
    c.style.height = height + "px";
    c.width = Math.round(w * r);
    c.height = Math.round(height * r);
    const g = c.getContext("2d");
    g.scale(r, r);
    g.clearRect(0, 0, w, height);
    g.font = "11px system-ui, sans-serif";
    return [g, w, height];
  };
  const at = (id, e) => {
    const b = $(id).getBoundingClientRect();
    return [e.clientX - b.left, e.clientY - b.top];
  };
  const axis = (g, w, h, left, most, texts) => {
    g.fillStyle = css("--soft");
    g.strokeStyle = css("--line");
    g.textAlign = "right";
    const labels = texts([0, 1, 2, 3].map((i) => most * i / 3));
    for (let i = 0; i <= 3; i++) {
      const y = h - 18 - (h - 28) * i / 3;
      g.beginPath(); g.moveTo(left, y + .5); g.lineTo(w, y + .5); g.stroke();
      g.fillText(labels[i], left - 6, y + 4);
    }
  };

  // Tables ----------------------------------------------------------------------------------------
  const table = (host, data, filterId, texts, total, format, name) => {
    let key = null, down = true;
    const box = el("div", "scroll"), t = el("table"), head = el("tr"), thead = el("thead"), body = el("tbody");
    // A region that can be reached and scrolled by keyboard.
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", name);
    const draw = () => {
      const want = $(filterId).value.toLowerCase();
      let rows = data.rows.filter((r) => texts.some((i) => String(r[i]).toLowerCase().includes(want)));
      if (key !== null) rows = [...rows].sort((a, b) => (a[key] > b[key] ? 1 : a[key] < b[key] ? -1 : 0) * (down ? -1 : 1));
      [...head.children].forEach((h, i) => {
        if (i === key) h.setAttribute("aria-sort", down ? "descending" : "ascending");
        else h.removeAttribute("aria-sort");
      });
      body.replaceChildren(...rows.map((r) => {
        const tr = el("tr");
        r.forEach((v, i) => {
          const isPath = data.columns[i] === "path";
          const td = el("td", texts.includes(i) ? "l" : "", isPath ? undefined : format(data.columns[i], v));
          if (isPath) td.append(path(v, 32));
          else if (texts.includes(i)) td.title = v;
          tr.append(td);
        });
        return tr;
      }));
    };
    data.columns.forEach((c, i) => {
      const h = el("th", texts.includes(i) ? "l" : ""), b = el("button", "", label(c.replace(/(?<!mb)_(s|us)$/, "")).replace(" mb s", " MB/s"));
      h.scope = "col";
      b.type = "button";
      b.title = "sort by " + b.textContent;
      b.onclick = () => { down = key === i ? !down : true; key = i; draw(); };
      h.append(b);
      head.append(h);
    });
    thead.append(head);
    t.append(thead, body);
    box.append(t);
    host.replaceChildren(box);
    if (total > data.rows.length) host.append(el("p", "note", "The first " + data.rows.length + " of " + count(total) + "."));
    $(filterId).oninput = draw;
    draw();
  };
  const format = (column, v) => v === null ? "" : typeof v === "string" ? v : column.endsWith("_s") && !column.includes("mb") ? sec(v)
    : column.endsWith("_us") ? sec(v / 1e6) : column.endsWith("bytes") ? size(v) : column.includes("mb_s") ? v.toFixed(1) : count(v);

  return { $, el, sec, size, count, sum, label, distinct, times, sizes, inkOn, path, css, hover, canvas, at, axis, table, format, LEFT };
})();
