// One colour, one meaning: by kind of event; stages have the colours of the report.
const LIGHT = {
  "fetch wait": "#e5484d", "step body": "#cfd3da", read: "#f76b15", write: "#a3482f", "file metadata": "#f0a078",
  preprocess: "#ffb224", collate: "#d9c32e", transfer: "#8e4ec6", forward: "#3e63dd", backward: "#0091ff",
  optimizer: "#30a46c", communication: "#e93d82", checkpoint: "#ad7f58", sync: "#5ec4b6", "own code": "#7d66d9", operator: "#7aa7c7", launch: "#a9a6ee",
  kernel: "#12a594", compile: "#b39bc8", other: "#9a9ca6",
};
const DARK = {...LIGHT, "step body": "#3b3f46", other: "#6f717a", operator: "#557f9e", launch: "#7774c2", compile: "#8a74a0",
  "file metadata": "#b9714c"};

export const STAGE_KINDS = {fetch_wait: "fetch wait", comm: "communication", own_code: "own code", unexplained: null};

export function dark() { return document.documentElement.dataset.theme === "dark"; }
export function colour(kind) { return (dark() ? DARK : LIGHT)[kind] ?? (dark() ? DARK : LIGHT).other; }

export function stageColour(stage) {
  if (stage === "unexplained") return dark() ? "#4a4d55" : "#c9cbd3";
  return colour(STAGE_KINDS[stage] ?? stage);
}

export function inkOn(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return r * 0.299 + g * 0.587 + b * 0.114 > 150 ? "#16181b" : "#ffffff";
}

export function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
