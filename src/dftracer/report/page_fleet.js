"use strict";
(async () => {
  const fleet = JSON.parse(document.getElementById("fleet-data").textContent);
  const packed = Uint8Array.from(atob(fleet.cells), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const cells = new Uint8Array(await new Response(stream).arrayBuffer());
  const { rows, columns, zero } = fleet;
  const map = document.getElementById("heat"), line = document.getElementById("trend"), tip = document.getElementById("tip");
  let view = { r0: 0, r1: rows, c0: 0, c1: columns };
  const LEFT = 62, BOTTOM = 20;

  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const mix = (a, b, t) => a.map((v, i) => v + (b[i] - v) * t);
  // Below the ink of the page's own neutral: faster is blue, slower orange to red.
  const palette = () => {
    const none = rgb(ink("--none")), card = rgb(ink("--card")), slow = [244, 146, 50], worst = [190, 24, 40], fast = [58, 124, 196];
    const out = [];
    for (let q = 0; q < 256; q++) {
      if (q === 0) { out.push(card); continue; }
      const share = (q - zero) / 100;
      if (share < 0) out.push(mix(none, fast, Math.min(1, -share / 0.3)));
      else if (share < 0.15) out.push(mix(none, slow, share / 0.15));
      else out.push(mix(slow, worst, Math.min(1, (share - 0.15) / 0.6)));
    }
    return out;
  };
  const fit = (canvas, height) => {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { pen, width, height, ratio };
  };
  const number = (n) => n.toLocaleString("en");
  const range = (from, to, what) => (from === to ? `${what} ${number(from)}` : `${what}s ${number(from)}-${number(to)}`);
  const ranksOf = (row) => [fleet.ranks[row * fleet.rank_block], fleet.ranks[Math.min((row + 1) * fleet.rank_block, fleet.ranks.length) - 1]];
  const stepsOf = (column) => [fleet.steps[column * fleet.step_block], fleet.steps[Math.min((column + 1) * fleet.step_block, fleet.steps.length) - 1]];

  const draw = () => {
    const height = Math.max(220, Math.min(520, window.innerHeight * 0.6));
    const { pen, width, ratio } = fit(map, height);
    const w = width - LEFT, h = height - BOTTOM, colours = palette();
    const pw = Math.max(1, Math.round(w * ratio)), ph = Math.max(1, Math.round(h * ratio));
    const image = pen.createImageData(pw, ph);
    const nr = view.r1 - view.r0, nc = view.c1 - view.c0;
    const shown = new Uint8Array(pw * ph), counts = new Uint32Array(256);
    for (let y = 0; y < ph; y++) {
      const a = view.r0 + Math.floor((y * nr) / ph), b = Math.max(a + 1, view.r0 + Math.floor(((y + 1) * nr) / ph));
      for (let x = 0; x < pw; x++) {
        const c = view.c0 + Math.floor((x * nc) / pw), d = Math.max(c + 1, view.c0 + Math.floor(((x + 1) * nc) / pw));
        let worst = 0;
        for (let r = a; r < b; r++) for (let k = c; k < d; k++) worst = Math.max(worst, cells[r * columns + k]);
        shown[y * pw + x] = worst;
        counts[worst]++;
      }
    }
    // The worst of many is slow by chance: against that, what is slow always shows.
    let usual = 1;
    for (let n = 0, half = (shown.length - counts[0]) / 2; usual < 255 && (n += counts[usual]) < half; usual++);
    const shift = Math.max(0, usual - zero);
    for (let i = 0; i < shown.length; i++) {
      const [red, green, blue] = colours[shown[i] ? Math.max(1, shown[i] - shift) : 0];
      image.data[4 * i] = red; image.data[4 * i + 1] = green; image.data[4 * i + 2] = blue; image.data[4 * i + 3] = 255;
    }
    pen.putImageData(image, Math.round(LEFT * ratio), 0);
    pen.fillStyle = ink("--soft");
    pen.font = "11.5px system-ui,sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const marks = Math.max(2, Math.floor(h / 60));
    for (let i = 0; i < marks; i++) {
      const row = Math.min(view.r1 - 1, view.r0 + Math.floor((i * nr) / marks));
      pen.fillText(number(ranksOf(row)[0]), LEFT - 8, ((row - view.r0 + 0.5) * h) / nr + (i ? 0 : 5));
    }
    pen.textBaseline = "top";
    const across = Math.max(2, Math.floor(w / 110));
    for (let i = 0; i < across; i++) {
      const column = Math.min(view.c1 - 1, view.c0 + Math.floor((i * nc) / across));
      pen.textAlign = i ? "center" : "left";
      pen.fillText(number(stepsOf(column)[0]), LEFT + ((column - view.c0) * w) / nc, h + 5);
    }
    drawLine();
  };

  const drawLine = () => {
    const { pen, width, height } = fit(line, 90);
    const w = width - LEFT, h = height - 8;
    const from = view.c0 * fleet.step_block, to = Math.min(view.c1 * fleet.step_block, fleet.step_s.length);
    const bins = Math.max(1, Math.min(Math.floor(w), to - from)), tops = [];
    for (let i = 0; i < bins; i++) {
      const a = from + Math.floor((i * (to - from)) / bins), b = Math.max(a + 1, from + Math.floor(((i + 1) * (to - from)) / bins));
      let top = 0;
      for (let k = a; k < b; k++) top = Math.max(top, fleet.step_s[k]);
      tops.push(top);
    }
    const most = tops.reduce((m, v) => Math.max(m, v), 1e-9) * 1.05;
    pen.strokeStyle = ink("--ink");
    pen.lineWidth = 1.2;
    pen.beginPath();
    tops.forEach((v, i) => pen[i ? "lineTo" : "moveTo"](LEFT + ((i + 0.5) * w) / bins, 4 + h - (v * h) / most));
    pen.stroke();
    pen.fillStyle = ink("--soft");
    pen.font = "11.5px system-ui,sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "top";
    pen.fillText(most >= 1 ? most.toFixed(1) + " s" : (most * 1000).toFixed(0) + " ms", LEFT - 8, 2);
    pen.textBaseline = "bottom";
    pen.fillText("0", LEFT - 8, height - 4);
  };

  const clamp = (low, high, size, least) => {
    const n = Math.max(Math.min(least, size), Math.min(size, Math.round(high - low)));
    const a = Math.max(0, Math.min(size - n, Math.round(low)));
    return [a, a + n];
  };
  const show = (next) => {
    const [r0, r1] = clamp(next.r0, next.r1, rows, 8), [c0, c1] = clamp(next.c0, next.c1, columns, 8);
    view = { r0, r1, c0, c1 };
    requestAnimationFrame(draw);
  };
  const zoom = (by, fx = 0.5, fy = 0.5) => {
    const nr = view.r1 - view.r0, nc = view.c1 - view.c0, r = view.r0 + fy * nr, c = view.c0 + fx * nc;
    show({ r0: r - fy * nr * by, r1: r + (1 - fy) * nr * by, c0: c - fx * nc * by, c1: c + (1 - fx) * nc * by });
  };
  const pan = (dr, dc) => show({ r0: view.r0 + dr, r1: view.r1 + dr, c0: view.c0 + dc, c1: view.c1 + dc });
  const place = (event) => {
    const box = map.getBoundingClientRect();
    return [(event.clientX - box.left - LEFT) / (box.width - LEFT), (event.clientY - box.top) / (box.height - BOTTOM)];
  };
  map.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, ...place(event));
  }, { passive: false });
  let held = null;
  map.addEventListener("pointerdown", (event) => {
    held = { at: [event.clientX, event.clientY], view };
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointerup", () => { held = null; });
  map.addEventListener("pointerleave", () => { tip.hidden = true; });
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect(), nr = view.r1 - view.r0, nc = view.c1 - view.c0;
    if (held) {
      const dr = ((held.at[1] - event.clientY) * nr) / (box.height - BOTTOM), dc = ((held.at[0] - event.clientX) * nc) / (box.width - LEFT);
      show({ r0: held.view.r0 + dr, r1: held.view.r1 + dr, c0: held.view.c0 + dc, c1: held.view.c1 + dc });
      return;
    }
    const [x, y] = place(event);
    tip.hidden = x < 0 || x >= 1 || y < 0 || y >= 1;
    if (tip.hidden) return;
    const row = view.r0 + Math.floor(y * nr), column = view.c0 + Math.floor(x * nc), q = cells[row * columns + column];
    const share = q - zero, text = q ? `${share >= 0 ? "+" : ""}${share} % of a step, beyond the median rank` : "no such step";
    tip.textContent = `${range(...ranksOf(row), "rank")}\n${range(...stepsOf(column), "step")}\n${text}`;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 4)) + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
  map.addEventListener("dblclick", () => show({ r0: 0, r1: rows, c0: 0, c1: columns }));
  map.addEventListener("keydown", (event) => {
    const nr = (view.r1 - view.r0) / 8, nc = (view.c1 - view.c0) / 8;
    const act = { "+": () => zoom(0.8), "-": () => zoom(1.25), ArrowUp: () => pan(-nr, 0), ArrowDown: () => pan(nr, 0), ArrowLeft: () => pan(0, -nc), ArrowRight: () => pan(0, nc) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  document.getElementById("in").addEventListener("click", () => zoom(0.6));
  document.getElementById("out").addEventListener("click", () => zoom(1.6));
  document.getElementById("all").addEventListener("click", () => show({ r0: 0, r1: rows, c0: 0, c1: columns }));
  // A slow rank or step in the table: look there.
  document.querySelectorAll("[data-rank],[data-step]").forEach((button) => button.addEventListener("click", () => {
    const next = { r0: 0, r1: rows, c0: 0, c1: columns };
    if (button.dataset.rank) {
      const row = Math.floor(fleet.ranks.indexOf(+button.dataset.rank) / fleet.rank_block), span = Math.max(8, Math.ceil(+(button.dataset.many || 1) / fleet.rank_block) * 2);
      next.r0 = row - span / 2; next.r1 = row + span;
    }
    if (button.dataset.step) {
      const column = Math.floor(fleet.steps.indexOf(+button.dataset.step) / fleet.step_block);
      next.c0 = column - 20; next.c1 = column + 20;
    }
    show(next);
    map.scrollIntoView({ block: "center" });
  }));
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(map.parentElement);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
