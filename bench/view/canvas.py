"""`python -m bench.view.canvas`: what a frame of the timeline costs in Chromium, drawn in three ways.

Rectangles as a busy picture has them (60 rows, 18 colours). `2d`: each is filled in each frame. `webgl`: each
is drawn in each frame, as instances of one buffer. `sheet`: they were filled once, a frame places the result.
"""

from __future__ import annotations

import shutil
import sys

from playwright.sync_api import sync_playwright

# ruff: noqa: E501 - a program in another language
SCRIPT = """async ([count, how]) => {
  const W = 1084, H = 1080, rows = 60, colours = 18, frames = 40;
  const canvas = Object.assign(document.createElement('canvas'), {width: W, height: H});
  document.body.replaceChildren(canvas);
  const x = new Float32Array(count), y = new Float32Array(count), w = new Float32Array(count), k = new Uint8Array(count);
  for (let i = 0; i < count; i++) { x[i] = Math.random() * W; y[i] = Math.floor(Math.random() * rows) * 18; w[i] = 1 + Math.random() * 3; }
  for (let i = 0; i < count; i++) k[i] = Math.floor(i / count * colours);  // sorted by colour, as the page does it
  const paint = (c, move) => {
    let last = -1;
    for (let i = 0; i < count; i++) {
      if (k[i] !== last) { last = k[i]; c.fillStyle = `hsl(${last * 20} 70% 50%)`; }
      c.fillRect(x[i] + move, y[i], w[i], 16);
    }
  };
  let draw, finish, setup = 0;
  if (how === 'webgl') {
    const gl = canvas.getContext('webgl2');
    const shader = (type, text) => { const s = gl.createShader(type); gl.shaderSource(s, text); gl.compileShader(s); return s; };
    const program = gl.createProgram();
    gl.attachShader(program, shader(gl.VERTEX_SHADER, `#version 300 es
      in vec4 box; uniform float move; out vec3 tint;
      void main() { vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
        vec2 p = vec2(box.x + move, box.y) + corner * vec2(box.z, 16.0);
        tint = vec3(fract(box.w * .37), fract(box.w * .61), fract(box.w * .83));
        gl_Position = vec4(p / vec2(${W}.0, ${H}.0) * vec2(2, -2) + vec2(-1, 1), 0, 1); }`));
    gl.attachShader(program, shader(gl.FRAGMENT_SHADER, `#version 300 es
      precision mediump float; in vec3 tint; out vec4 c; void main() { c = vec4(tint, 1); }`));
    gl.linkProgram(program); gl.useProgram(program);
    const data = new Float32Array(count * 4);
    for (let i = 0; i < count; i++) data.set([x[i], y[i], w[i], k[i]], 4 * i);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer()); gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    const at = gl.getAttribLocation(program, 'box');
    gl.enableVertexAttribArray(at); gl.vertexAttribPointer(at, 4, gl.FLOAT, false, 0, 0); gl.vertexAttribDivisor(at, 1);
    const move = gl.getUniformLocation(program, 'move'), pixel = new Uint8Array(4);
    draw = (n) => { gl.clear(gl.COLOR_BUFFER_BIT); gl.uniform1f(move, n); gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, count); };
    finish = () => gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
  } else {
    const c = canvas.getContext('2d');
    finish = () => c.getImageData(0, 0, 1, 1);
    if (how === '2d') draw = (n) => { c.clearRect(0, 0, W, H); paint(c, n); };
    else {
      const sheet = Object.assign(document.createElement('canvas'), {width: 2 * W, height: H}), s = sheet.getContext('2d');
      const began = performance.now();
      paint(s, W / 2); s.getImageData(0, 0, 1, 1);
      setup = performance.now() - began;
      draw = (n) => { c.clearRect(0, 0, W, H); c.drawImage(sheet, -W / 2 + n, 0); };
    }
  }
  draw(0); finish();
  const times = [];
  for (let n = 0; n < frames; n++) {
    const began = performance.now();
    draw(n % 20); finish();
    times.push(performance.now() - began);
    await new Promise((done) => setTimeout(done));
  }
  times.sort((a, b) => a - b);
  return [times[frames >> 1], times[frames - 1], setup];
}"""


def main() -> int:
    path = next(b for b in map(shutil.which, ("chromium", "google-chrome")) if b)
    print("| rectangles | drawn as | frame, median ms | worst ms | once, ms |\n|---:|---|---:|---:|---:|")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1100})
        for count in (2_000, 20_000, 100_000):
            for how in ("2d", "webgl", "sheet"):
                median, worst, once = page.evaluate(SCRIPT, [count, how])
                print(f"| {count} | {how} | {median:.1f} | {worst:.1f} | {once:.1f} |", flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
