// Arrows between events: a launch and its kernel, an item and its batch, a batch and the step that waited for it.
import {css} from "view/palette.js";

const ROW = 18;
const COLOURS = {launch: "--ink", item: "--warn", batch: "--accent"};

export function drawArrows(c, pane, top, arrows, strength) {
  c.lineWidth = strength === 1 ? 1.8 : 1.1;
  for (const arrow of arrows) {
    const from = pane.rowY.get(arrow.from.row), to = pane.rowY.get(arrow.to.row);
    if (!from || !to) continue;
    const x0 = pane.x(arrow.kind === "launch" ? arrow.from.start : arrow.from.end);
    const x1 = pane.x(arrow.kind === "batch" ? arrow.to.end : arrow.to.start);
    if (Math.max(x0, x1) < -50 || Math.min(x0, x1) > pane.width + 50) continue;
    // On one row an arrow goes over the spans; else it leaves on the side of its target.
    const same = to.y === from.y, down = to.y > from.y || same;
    const y0 = from.y + top + (down && !same ? ROW - 2 : 0), y1 = to.y + top + (down ? 0 : ROW - 2);
    c.strokeStyle = c.fillStyle = css(COLOURS[arrow.kind]);
    c.globalAlpha = strength;
    const bend = Math.max(14, Math.min(60, Math.abs(y1 - y0) * 0.4)) * (down ? 1 : -1);
    c.beginPath();
    c.moveTo(x0, y0);
    c.bezierCurveTo(x0, y0 + (same ? -bend : bend), x1, y1 - bend, x1, y1 - (down ? 4 : -4));
    c.stroke();
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x1 - 3.5, y1 - (down ? 6 : -6));
    c.lineTo(x1 + 3.5, y1 - (down ? 6 : -6));
    c.fill();
  }
  c.globalAlpha = 1;
}
