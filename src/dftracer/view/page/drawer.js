// The lower part: details of an event, facts of a range, steps, what a search found, the events in view as a table.
import {colour, stageColour} from "view/palette.js";
import {bytes, count, element, percent, plural, time} from "view/words.js";

const SHOWN_ARGS = 400;

export const at = (id) => document.getElementById(id);

export function chip(kind) {
  return element("span", {class: "swatch", colour: colour(kind), "aria-hidden": "true"});
}

function link(event, go, text = event.name) {
  return element("button", {class: "link", type: "button", text, title: text, on: {click: () => go(event)}});
}

function eventList(events, go, total = events.length) {
  const items = events.map((e) => element("li", {}, chip(e.kind), link(e, go), element("span", {class: "num", text: time(e.length)}),
    element("span", {class: "num", text: e.lane})));
  if (total > events.length) items.push(element("li", {class: "soft", text: `the longest ${count(events.length)} of ${count(total)}`}));
  return element("ul", {class: "list"}, ...items);
}

function facts(rows) {
  const out = element("dl", {class: "facts"});
  for (const [name, value] of rows) {
    if (value === null || value === undefined || value === "") continue;
    out.append(element("dt", {text: name}), value instanceof Node ? element("dd", {}, value) : element("dd", {text: String(value)}));
  }
  return out;
}

function table(head, rows, options = {}) {
  const cells = (row, tag) => row.map((cell, i) => {
    const [label, kind] = head[i];
    const e = element(tag, {class: kind ?? "", scope: tag === "th" ? "col" : undefined, title: kind === "path l" || kind === "long l" ? String(row[i]?.textContent ?? row[i]) : undefined});
    e.append(tag === "th" ? label : cell);
    return e;
  });
  return element("table", {"aria-label": options.label},
    element("thead", {}, element("tr", {}, ...cells(head.map(([l]) => l), "th"))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row, "td")))));
}

export function showEvent(d, go) {
  const host = at("event");
  if (!d) {
    host.replaceChildren(element("p", {class: "soft", text: "Click an event, or move to one with the arrow keys. Press ? for all keys."}));
    return;
  }
  const args = Object.entries(d.args).map(([k, v]) => [k, String(typeof v === "object" ? JSON.stringify(v) : v).slice(0, SHOWN_ARGS)]);
  const first = element("div", {}, element("h2", {}, chip(d.kind), " ", d.name), facts([
    ["category", d.cat === "ledger" ? "stage of the training thread" : d.cat], ["begins at", time(d.start)], ["takes", time(d.length)],
    ["self time", d.children_total ? time(d.self) : null],
    ["lane", d.lane], ["process", `pid ${d.pid}, tid ${d.tid}${d.host ? `, ${d.host}` : ""}`],
    ["file", d.path], ["bytes", d.bytes === null ? null : `${bytes(d.bytes)} (${count(d.bytes)})`],
  ]));
  const columns = [first];
  if (args.length) columns.push(element("div", {}, element("h3", {text: "Arguments"}), facts(args)));
  const second = element("div", {});
  if (d.parents.length) second.append(element("h3", {text: "Inside"}), eventList(d.parents, go));
  if (d.children.length) second.append(element("h3", {text: `Contains ${plural(d.children_total, "event")}`}), eventList(d.children, go, d.children_total));
  const third = element("div", {});
  if (d.operator) third.append(element("h3", {text: "Operator"}), eventList([d.operator], go));
  if (d.kernels.length) third.append(element("h3", {text: `On the device: ${plural(d.kernels.length, "operation")}`}), eventList(d.kernels, go));
  if (d.batch) {
    const b = d.batch, mark = (e) => ({...e, length: e.end - e.start, kind: "collate", lane: ""});
    third.append(element("h3", {text: `Batch ${b.number}`}), facts([
      ["made by", `${b.maker}, from ${plural(b.items, "item")}`],
      ["collated", link(mark(b.made), go, `${b.made.name} at ${time(b.made.start)}`)],
      ["waited for by", b.waits.length ? link(mark(b.waits[0]), go, `${b.waits[0].name} at ${time(b.waits[0].start)}`) : "no step"]]));
  }
  const arrows = d.flows.filter((f) => f.kind === "launch" || f.kind === "batch");
  if (arrows.length && !d.batch && !d.kernels.length) {
    third.append(element("h3", {text: "Arrows"}), element("ul", {class: "list"}, ...arrows.slice(0, 20).map((f) =>
      element("li", {}, link({...f.from, length: 0}, go, f.from.name), "→", link({...f.to, length: 0}, go, f.to.name)))));
  }
  columns.push(...[second, third].filter((c) => c.childElementCount));
  host.replaceChildren(element("div", {class: "columns"}, ...columns));
}

function stageBar(stages, ns, whole) {
  const bar = element("div", {class: "bar", role: "img", "aria-label": stages.map((s, i) => ns[i] > 0 ? `${s.replace("_", " ")} ${percent(ns[i] / whole)}` : "").filter(Boolean).join(", ")});
  stages.forEach((stage, i) => {
    if (ns[i] <= 0) return;
    const piece = element("span", {colour: stageColour(stage), title: `${stage.replace("_", " ")}: ${time(ns[i])}, ${percent(ns[i] / whole)}`});
    piece.style.width = `${100 * ns[i] / whole}%`;
    bar.append(piece);
  });
  return bar;
}

export function showRange(f, run, several) {
  const host = at("range");
  if (!f) {
    host.replaceChildren(element("p", {class: "soft", text: "Drag on the time axis (or with Shift on the timeline) to select a range; R selects what is in view."}));
    return;
  }
  const whole = Math.max(1, f.end - f.start);
  const first = element("div", {}, element("h2", {text: `${several ? `${"AB"[run]}: ` : ""}${time(whole)} from ${time(f.start)}, ${plural(f.events, "event")}`}));
  for (const row of f.ledger) {
    const longest = f.stages.map((s, i) => [s, row.ns[i]]).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1]);
    first.append(element("h3", {text: `Where the time of ${row.label} went`}), stageBar(f.stages, row.ns, whole),
      facts(longest.map(([s, v]) => [s.replace("_", " "), `${time(v)}, ${percent(v / whole)}`])));
  }
  const second = element("div", {}, element("h3", {text: f.names_total > f.names.length ? `Events (${count(f.names.length)} of ${count(f.names_total)} names)` : "Events"}),
    table([["name", "long l"], ["category", "l"], ["count"], ["time"], ["median"], ["p99"], ["longest"]],
      f.names.map((n) => [element("span", {}, chip(n.kind), " ", n.name), n.cat, count(n.count), time(n.total), time(n.p50), time(n.p99), time(n.max)]), {label: "Events of the range"}));
  if (f.files.length) {
    second.append(element("h3", {text: f.files_total > f.files.length ? `Files (${count(f.files.length)} of ${count(f.files_total)})` : "Files"}),
      table([["path", "path l"], ["calls"], ["time"], ["read"], ["written"]],
        f.files.map((x) => [element("bdi", {text: x.path}), count(x.calls), time(x.total), bytes(x.read), bytes(x.written)]), {label: "Files of the range"}));
  }
  host.append(element("div", {class: "columns two"}, first, second));
}

export function showFound(result, go) {
  const host = at("found");
  if (!result) {
    host.replaceChildren(element("p", {class: "soft", text: "Press / and type a name, a path, or key=value of an argument."}));
    return;
  }
  const note = result.total > result.hits.length ? `; the first ${count(result.hits.length)} are listed` : "";
  const more = result.args === "running" ? "; looking through the arguments …" : "";
  host.replaceChildren(element("p", {text: `${plural(result.total, "event")} for “${result.text}”${note}${more}`}),
    table([["name", "long l"], ["category", "l"], ["lane", "l"], ["begins at"], ["takes"]],
      result.hits.map((h) => [link(h, go), h.cat, h.lane, time(h.start), time(h.length)]), {label: "Events found"}));
}

export function showTable(events, total, go) {
  at("table").replaceChildren(
    element("p", {class: "soft", text: total > events.length ? `The longest ${count(events.length)} of ${plural(total, "event")} in view, in order of time` : `${plural(total, "event")} in view`}),
    table([["begins at"], ["takes"], ["name", "long l"], ["category", "l"], ["kind", "l"], ["lane", "l"]],
      events.map((e) => [time(e.start), time(e.length), link(e, go), e.cat, e.kind, e.lane]), {label: "Events in view"}));
}

// The outermost call on top. A click shows what is below a frame over the whole width, a click on the top goes back.
export function showFlame(trees, several) {
  const host = at("code"), all = trees.reduce((n, t) => n + t.seconds, 0);
  if (!all) {
    host.replaceChildren(element("p", {class: "soft", text: "No samples of the program's own code in view: they are taken in automatically traced steps, while no stage is running."}));
    return;
  }
  const draw = (tree, graph, root, above) => {
    const levels = [];
    const place = (node, left, depth) => {
      levels[depth] ??= element("div", {class: "level"});
      const part = node.seconds / root.seconds, title = `${node.name}\n${time(node.seconds * 1e9)}, ${percent(node.seconds / tree.seconds)}`;
      const go = () => node !== root ? draw(tree, graph, node, [...above, root]) : above.length && draw(tree, graph, above.at(-1), above.slice(0, -1));
      const frame = element("button", {type: "button", text: depth || above.length ? node.name : "in view", title, colour: depth ? shade(node.name) : undefined, on: {click: go}});
      frame.style.left = `${100 * left / root.seconds}%`;
      frame.style.width = `${Math.max(0.15, 100 * part)}%`;
      levels[depth].append(frame);
      let from = left;
      for (const child of node.children) { place(child, from, depth + 1); from += child.seconds; }
    };
    place(root, 0, 0);
    graph.replaceChildren(...levels);
  };
  host.replaceChildren(element("p", {class: "soft", text: `${time(all * 1e9)} of the program's own code in view, as sampled; the outermost call is on top. Click to zoom, click the top to go back.`}),
    ...trees.map((tree, i) => {
      const graph = element("div", {class: "flame", role: "group", "aria-label": `Flame graph${several ? ` of ${"AB"[i]}` : ""}`});
      if (tree.seconds) draw(tree, graph, tree, []);
      return graph;
    }));
}

function shade(name) {
  let h = 0;
  for (const c of name) h = (h * 31 + c.codePointAt(0)) >>> 0;
  return `hsl(${20 + h % 40} 80% ${62 + h % 18}%)`;
}

export function showSteps(answer, name, names, hooks) {
  const host = at("steps");
  if (!answer || answer.pending) { host.replaceChildren(element("p", {class: "soft", text: answer ? "Looking for steps …" : "No steps."})); return; }
  const choose = element("select", {"aria-label": "Rank", on: {change: (e) => hooks.line(Number(e.target.value))}},
    ...names.map((n, i) => { const o = element("option", {value: i, text: n}); o.selected = n === name; return o; }));
  const page = (by, text) => element("button", {type: "button", text, on: {click: () => hooks.page(by)}});
  const rows = answer.rows.map((r) => {
    const whole = Math.max(1, r.stages_us.reduce((a, b) => a + b, 0));
    const worst = r.stages_us.indexOf(Math.max(...r.stages_us));
    return [element("button", {class: "link", type: "button", text: String(r.step ?? r.index), on: {click: () => hooks.go(r)}}), r.epoch ?? "–", time(r.start), time(r.wall_us * 1000),
      stageBar(answer.stages, r.stages_us, whole), `${answer.stages[worst].replace("_", " ")} ${percent(r.stages_us[worst] / whole)}`];
  });
  host.replaceChildren(element("p", {}, choose, " ", page(-1, "earlier"), " ", page(1, "later"), " ",
    element("span", {class: "soft", text: `${plural(answer.total, "step")}${answer.rows.length ? `; ${count(answer.rows[0].index + 1)} to ${count(answer.rows.at(-1).index + 1)} are listed` : ""}`})),
    table([["step"], ["epoch"], ["begins at"], ["takes"], ["stages", "l"], ["most", "l"]], rows, {label: `Steps of ${name}`}));
}
