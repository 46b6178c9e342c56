"use strict";
// Draws every <figure data-panel>: lines with bands over one clock, with zoom, reading and hiding of groups.
const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const charts = [];
const NS = "http://www.w3.org/2000/svg";

function element(parent, name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}

const colour = (label) => `var(--c${data.labels.indexOf(label) % 8})`;
const dashes = (label) => ["", "7 4", "2 3"][Math.floor(data.labels.indexOf(label) / 8) % 3];

function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit) return `${+(value / unit).toPrecision(4)}${letter}`;
  return `${+value.toPrecision(4)}`;
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.panel = data.panels[+figure.dataset.panel];
    this.full = [0, this.panel.grid[this.panel.grid.length - 1]];
    this.range = this.full;
    this.svg = figure.appendChild(document.createElementNS(NS, "svg"));
    this.svg.setAttribute("class", "chart");
    this.svg.setAttribute("tabindex", "0");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", `${this.panel.title} over ${this.panel.clock_unit}; arrow keys read values, plus and minus zoom`);
    this.tip = figure.appendChild(document.createElement("div"));
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.listen();
    this.draw();
  }

  shown() { return this.panel.groups.filter((group) => !hidden.has(group.label)); }

  extent() {
    const inside = (i) => this.panel.grid[i] >= this.range[0] && this.panel.grid[i] <= this.range[1];
    let low = Infinity, high = -Infinity;
    const take = (v) => { if (v !== null && v !== undefined) { low = Math.min(low, v); high = Math.max(high, v); } };
    for (const group of this.shown())
      for (const series of [group.mean, group.low, group.high, ...(group.runs || [])])
        series.forEach((v, i) => { if (inside(i)) take(v); });
    for (const line of this.panel.reference || [])
      line.x.forEach((x, i) => { if (x >= this.range[0] && x <= this.range[1]) { take(line.mean[i] - line.std[i]); take(line.mean[i] + line.std[i]); } });
    if (low > high) return [0, 1];
    if (["timesteps", "fps", "memory", "cpu"].includes(this.panel.key)) low = Math.min(0, low);
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    return [low === 0 ? 0 : low - pad, high + pad];
  }

  draw(width) {
    const svg = this.svg;
    while (svg.firstChild) svg.firstChild.remove();
    const w = width || Math.max(260, this.svg.clientWidth || this.figure.clientWidth - 26), wide = w > 400 && data.labels.length <= 8;
    const h = Math.round(Math.min(330, Math.max(230, w * 0.6)));
    svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    svg.style.height = width ? "auto" : `${h}px`;
    const box = { left: 50, right: w - (wide ? 120 : 12), top: 12, bottom: h - 40 };
    const [low, high] = this.extent(), [from, to] = this.range;
    const x = (v) => box.left + ((v - from) / (to - from)) * (box.right - box.left);
    const y = (v) => box.bottom - ((v - low) / (high - low)) * (box.bottom - box.top);
    Object.assign(this, { box, x, y, w });
    for (const v of ticks(low, high, 7)) {
      element(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(v), y2: y(v) });
      element(svg, "text", { x: box.left - 7, y: y(v) + 4, "text-anchor": "end" }, short(v));
    }
    for (const v of ticks(from, to, Math.max(2, Math.floor((box.right - box.left) / 75)))) {
      element(svg, "line", { class: "axis", x1: x(v), x2: x(v), y1: box.bottom, y2: box.bottom + 5 });
      element(svg, "text", { x: x(v), y: box.bottom + 18, "text-anchor": "middle" }, short(v));
    }
    element(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
    element(svg, "text", { x: (box.left + box.right) / 2, y: h - 5, "text-anchor": "middle" }, this.panel.clock === "timesteps" ? "timesteps" : `${this.panel.clock_unit} of wall clock`);
    const id = `clip${charts.indexOf(this) < 0 ? charts.length : charts.indexOf(this)}`;
    const clip = element(svg, "clipPath", { id });
    element(clip, "rect", { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 8 });
    const plot = element(svg, "g", { "clip-path": `url(#${id})` });
    for (const line of this.panel.reference || []) this.drawReference(plot, line);
    const ends = [];
    for (const group of this.shown()) this.drawGroup(plot, group, ends);
    if (wide) this.labels(ends);
    if (!ends.length) element(svg, "text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" }, "nothing to show here");
  }

  path(values, keep) {
    let text = "", pen = false;
    values.forEach((v, i) => {
      if (v === null || (keep && !keep(i))) { pen = false; return; }
      text += `${pen ? "L" : "M"}${this.x(this.panel.grid[i]).toFixed(1)},${this.y(v).toFixed(1)}`;
      pen = true;
    });
    return text;
  }

  drawGroup(plot, group, ends) {
    const c = colour(group.label), most = Math.max(...group.n), grid = this.panel.grid;
    const bands = [];
    group.low.forEach((v, i) => {
      if (v === null) return;
      if (bands.length && bands[bands.length - 1].at(-1) === i - 1) bands[bands.length - 1].push(i); else bands.push([i]);
    });
    for (const band of bands) {
      const up = band.map((i) => `${this.x(grid[i]).toFixed(1)},${this.y(group.high[i]).toFixed(1)}`);
      const down = band.map((i) => `${this.x(grid[i]).toFixed(1)},${this.y(group.low[i]).toFixed(1)}`).reverse();
      element(plot, "polygon", { points: [...up, ...down].join(" "), style: `fill:${c};opacity:.16` });
    }
    if (most > 1) for (const run of group.runs || []) element(plot, "path", { d: this.path(run), style: `fill:none;stroke:${c};stroke-width:.7;opacity:.4` });
    element(plot, "path", { d: this.path(group.mean), style: `fill:none;stroke:${c};stroke-width:1.2;stroke-dasharray:2 2` });
    const whole = this.path(group.mean, (i) => group.n[i] === most);
    element(plot, "path", { d: whole, style: `fill:none;stroke:${c};stroke-width:2.3;stroke-linejoin:round;stroke-dasharray:${dashes(group.label)}` });
    group.n.forEach((n, i) => {
      if (i && n && n < group.n[i - 1] && group.mean[i] !== null) {
        element(plot, "circle", { cx: this.x(grid[i - 1]), cy: this.y(group.mean[i - 1]), r: 3, style: `fill:${c}` });
        element(plot, "text", { x: this.x(grid[i - 1]) + 5, y: this.y(group.mean[i - 1]) - 6, style: `fill:${c}` }, `n=${n}`);
      }
    });
    let last = -1;
    group.mean.forEach((v, i) => { if (v !== null && grid[i] >= this.range[0] && grid[i] <= this.range[1]) last = i; });
    if (last < 0) return;
    const at = { label: group.label, n: most, x: this.x(grid[last]), y: this.y(group.mean[last]), c };
    if (group.mean.filter((v) => v !== null).length === 1) element(plot, "circle", { cx: at.x, cy: at.y, r: 3.5, style: `fill:${c}` });
    ends.push(at);
  }

  drawReference(plot, line) {
    const points = line.x.map((v, i) => `${this.x(v).toFixed(1)},${this.y(line.mean[i]).toFixed(1)}`);
    element(plot, "polyline", { points: points.join(" "), style: "fill:none;stroke:var(--soft);stroke-width:1.2;stroke-dasharray:1 3" });
    line.x.forEach((v, i) => {
      const at = { x1: this.x(v), x2: this.x(v), y1: this.y(line.mean[i] - line.std[i]), y2: this.y(line.mean[i] + line.std[i]), style: "stroke:var(--soft)" };
      element(plot, "line", at);
      const mark = element(plot, line.name.includes("training") ? "circle" : "rect", line.name.includes("training")
        ? { cx: at.x1, cy: this.y(line.mean[i]), r: 3.5, style: "fill:var(--soft)" }
        : { x: at.x1 - 3, y: this.y(line.mean[i]) - 3, width: 6, height: 6, style: "fill:var(--card);stroke:var(--soft)" });
      element(mark, "title", {}, `${line.name} at ${short(v)}: ${line.mean[i]} ± ${line.std[i]} (n=3)`);
    });
  }

  labels(ends) {
    ends.sort((a, b) => a.y - b.y);
    const lines = ends.map((end) => wrap(`${end.label} (n=${end.n})`, 14));
    const tall = lines.map((each) => each.length * 13.5 + 2), place = ends.map((end) => end.y);
    const keep = (i) => Math.min(Math.max(place[i], this.box.top + tall[i] / 2 - 8), this.box.bottom - tall[i] / 2 + 8);
    for (let round = 0; round < 80; round++) {
      for (let i = 0; i + 1 < ends.length; i++) {
        const need = (tall[i] + tall[i + 1]) / 2 - (place[i + 1] - place[i]);
        if (need > 0) { place[i] -= need / 2; place[i + 1] += need / 2; }
      }
      place.forEach((_, i) => { place[i] = keep(i); });
    }
    ends.forEach((end, i) => {
      element(this.svg, "line", { x1: end.x + 1, y1: end.y, x2: this.box.right + 6, y2: place[i], style: `stroke:${end.c};opacity:.6;stroke-width:.8` });
      lines[i].forEach((text, row) => element(this.svg, "text", { class: "end", x: this.box.right + 9, y: place[i] + 4 + (row - (lines[i].length - 1) / 2) * 13.5, style: `fill:${end.c}` }, text));
    });
  }

  zoom(from, to) {
    from = Math.max(this.full[0], from); to = Math.min(this.full[1], to);
    if (to - from < (this.full[1] - this.full[0]) / 200) return;
    this.range = [from, to];
    this.figure.dataset.zoomed = String(from > this.full[0] || to < this.full[1]);
    this.tip.hidden = true;
    this.draw();
  }

  scale(factor, around) {
    const [from, to] = this.range, middle = around === undefined ? (from + to) / 2 : around;
    this.zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  reset() { this.zoom(...this.full); }

  value(event) {
    const frame = this.svg.getBoundingClientRect(), px = ((event.clientX - frame.left) / frame.width) * this.w;
    const share = (px - this.box.left) / (this.box.right - this.box.left);
    return this.range[0] + Math.min(1, Math.max(0, share)) * (this.range[1] - this.range[0]);
  }

  read(value) {
    const grid = this.panel.grid;
    let at = 0;
    grid.forEach((v, i) => { if (Math.abs(v - value) < Math.abs(grid[at] - value)) at = i; });
    this.at = at;
    this.svg.querySelectorAll(".cross").forEach((node) => node.remove());
    element(this.svg, "line", { class: "cross", x1: this.x(grid[at]), x2: this.x(grid[at]), y1: this.box.top, y2: this.box.bottom });
    this.tip.replaceChildren();
    const head = this.tip.appendChild(document.createElement("b"));
    head.textContent = this.panel.clock === "timesteps" ? `${short(grid[at])} timesteps` : `${short(grid[at])} ${this.panel.clock_unit}`;
    const rows = this.shown().filter((group) => group.mean[at] !== null).sort((a, b) => b.mean[at] - a.mean[at]);
    for (const group of rows) {
      const row = this.tip.appendChild(document.createElement("div"));
      const mark = row.appendChild(document.createElement("span"));
      mark.className = "swatch";
      mark.style.setProperty("--c", colour(group.label));
      const band = group.low[at] === null ? "" : ` [${short(group.low[at])}, ${short(group.high[at])}]`;
      row.append(`${group.label}: ${short(group.mean[at])}${band}, n=${group.n[at]}`);
    }
    if (!rows.length) this.tip.append(" no run here");
    this.tip.hidden = false;
    const frame = this.svg.getBoundingClientRect(), home = this.figure.getBoundingClientRect();
    const px = (this.x(grid[at]) / this.w) * frame.width + frame.left - home.left, left = px > home.width / 2;
    this.tip.style.left = left ? "" : `${px + 12}px`;
    this.tip.style.right = left ? `${home.width - px + 12}px` : "";
    this.tip.style.top = `${frame.top - home.top + 14}px`;
  }

  leave() { this.tip.hidden = true; this.svg.querySelectorAll(".cross").forEach((node) => node.remove()); }

  listen() {
    const svg = this.svg;
    let start = null;
    svg.addEventListener("pointerdown", (event) => { start = this.value(event); if (event.pointerType === "mouse") svg.setPointerCapture(event.pointerId); this.read(start); });
    svg.addEventListener("pointermove", (event) => {
      const now = this.value(event);
      this.read(now);
      svg.querySelectorAll(".zoom").forEach((node) => node.remove());
      if (start !== null && event.buttons) {
        const [a, b] = [this.x(start), this.x(now)].sort((p, q) => p - q);
        element(svg, "rect", { class: "zoom", x: a, y: this.box.top, width: b - a, height: this.box.bottom - this.box.top });
      }
    });
    svg.addEventListener("pointerup", (event) => {
      svg.querySelectorAll(".zoom").forEach((node) => node.remove());
      const end = this.value(event);
      if (start !== null && Math.abs(this.x(end) - this.x(start)) > 12) this.zoom(Math.min(start, end), Math.max(start, end));
      start = null;
    });
    svg.addEventListener("pointercancel", () => { start = null; this.leave(); });
    svg.addEventListener("pointerleave", () => { if (start === null) this.leave(); });
    svg.addEventListener("dblclick", () => this.reset());
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;  // plain scrolling stays the page's
      event.preventDefault();
      this.scale((event.deltaY || event.deltaX) > 0 ? 1.3 : 1 / 1.3, this.value(event));
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const grid = this.panel.grid, last = grid.length - 1, at = this.at === undefined ? last : this.at;
      const does = {
        ArrowLeft: () => this.read(grid[Math.max(0, at - 1)]), ArrowRight: () => this.read(grid[Math.min(last, at + 1)]),
        "+": () => this.scale(0.6, grid[at]), "-": () => this.scale(1.7, grid[at]), "0": () => this.reset(), Escape: () => this.leave(),
      }[event.key];
      if (does) { event.preventDefault(); does(); }
    });
    this.figure.querySelectorAll("button[data-zoom]").forEach((button) => button.addEventListener("click", () =>
      ({ in: () => this.scale(0.6), out: () => this.scale(1.7), all: () => this.reset() })[button.dataset.zoom]()));
  }
}

function wrap(text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const line = lines[lines.length - 1];
    if (line && line.length + word.length + 1 > width) lines.push(word); else lines[lines.length - 1] = line ? `${line} ${word}` : word;
  }
  return lines;
}

document.querySelectorAll("figure[data-panel]").forEach((figure) => charts.push(new Chart(figure)));
document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
  const label = button.dataset.label;
  if (hidden.has(label)) hidden.delete(label); else hidden.add(label);
  document.querySelectorAll(".legend button").forEach((each) => each.setAttribute("aria-pressed", String(!hidden.has(each.dataset.label))));
  charts.forEach((chart) => chart.draw());
}));
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; charts.forEach((chart) => chart.draw()); } });
window.addEventListener("beforeprint", () => { document.querySelectorAll("details").forEach((each) => { each.open = true; }); charts.forEach((chart) => chart.draw(440)); });
window.addEventListener("afterprint", () => charts.forEach((chart) => chart.draw()));
document.documentElement.dataset.ready = String(charts.length);
