"use strict";
// Draws every <figure data-panel>: lines with bands over one clock, named at their ends.
const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const charts = [];
const NS = "http://www.w3.org/2000/svg";
const COLOURS = 8, FEW = 5, END = 0.97;  // share of an axis: lines that end before it get a dot
const LETTER = 7.2, LINE = 13.5;  // width of a letter and height of a line of a name, in pixels

function element(parent, name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}

const colour = (label) => `var(--c${data.labels.indexOf(label) % COLOURS})`;
const pattern = (label) => Math.floor(data.labels.indexOf(label) / COLOURS) % 3;
const dashes = (label) => ["", "7 4", "2 3"][pattern(label)];

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

// Ticks of one axis have equally many decimals.
function tickTexts(values) {
  if (values.some((v) => Math.abs(v) >= 1000)) return values.map(short);
  const whole = (v, digits) => Math.abs(v * 10 ** digits - Math.round(v * 10 ** digits)) < 1e-6;
  let digits = 0;
  while (digits < 6 && !values.every((v) => whole(v, digits))) digits++;
  return values.map((v) => v.toFixed(digits).replace("-", "\u2212"));
}

function wrap(text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const line = lines[lines.length - 1];
    if (line && line.length + word.length + 1 > width) lines.push(word); else lines[lines.length - 1] = line ? `${line} ${word}` : word;
  }
  return lines;
}

// Middles of names, from the top down, moved apart until none covers another.
function spread(places, tall, top, bottom) {
  const moved = [...places];
  for (let round = 0; round < 200; round++) {
    for (let i = 0; i + 1 < moved.length; i++) {
      const need = (tall[i] + tall[i + 1]) / 2 - (moved[i + 1] - moved[i]);
      if (need > 0) { moved[i] -= need / 2; moved[i + 1] += need / 2; }
    }
    moved.forEach((v, i) => { moved[i] = Math.min(Math.max(v, top + tall[i] / 2), bottom - tall[i] / 2); });
  }
  return moved;
}

// The name of a group, with `2 of 4` where seeds are lost, or with n where groups have not equally many.
function endName(group) {
  const n = Math.max(...group.n);
  if (n < group.planned) return `${group.label} (${n}\u00a0of\u00a0${group.planned})`;
  return n === data.seeds ? group.label : `${group.label} (n=${n})`;
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.panel = data.panels[+figure.dataset.panel];
    this.full = [this.panel.grid[0], this.panel.grid[this.panel.grid.length - 1]];
    this.range = this.full;
    this.svg = figure.appendChild(document.createElementNS(NS, "svg"));
    this.svg.setAttribute("class", "chart");
    this.svg.setAttribute("tabindex", "0");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", `${this.panel.title} over ${this.panel.axis}; arrow keys read values, plus and minus zoom`);
    this.tip = figure.appendChild(document.createElement("div"));
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.draw();
  }

  shown() { return this.panel.groups.filter((group) => !hidden.has(group.label)); }

  visible(x) { return x >= this.range[0] && x <= this.range[1]; }

  extent() {
    let low = Infinity, high = -Infinity;
    const take = (v) => { if (v !== null && v !== undefined) { low = Math.min(low, v); high = Math.max(high, v); } };
    for (const group of this.shown())
      for (const series of [group.mean, group.low, group.high, ...(group.runs || [])])
        series.forEach((v, i) => { if (this.visible(this.panel.grid[i])) take(v); });
    for (const line of this.panel.reference || [])
      line.x.forEach((x, i) => { if (this.visible(x)) { take(line.mean[i] - line.std[i]); take(line.mean[i] + line.std[i]); } });
    if (low > high) return [0, 1];
    if (["timesteps", "fps", "memory", "cpu", "profile"].includes(this.panel.key)) low = Math.min(0, low);
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    return [low === 0 ? 0 : low - pad, high + pad];
  }

  // Where the lines end within what is shown, and what is written beside the chart.
  ends() {
    const grid = this.panel.grid;
    return this.shown().flatMap((group) => {
      const last = group.mean.findLastIndex((v, i) => v !== null && this.visible(grid[i]));
      return last < 0 ? [] : [{ label: group.label, name: endName(group), c: colour(group.label), at: grid[last], value: group.mean[last] }];
    });
  }

  draw(width) {
    const svg = this.svg;
    while (svg.firstChild) svg.firstChild.remove();
    const w = width || Math.max(260, this.svg.clientWidth || this.figure.clientWidth - 26), wide = w > 400 && data.labels.length <= COLOURS;
    const h = Math.round(Math.min(330, Math.max(230, w * 0.6))), ends = this.ends();
    svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    svg.style.height = width ? "auto" : `${h}px`;
    const longest = Math.max(4, ...ends.flatMap((end) => wrap(end.name, 12).map((line) => line.length)));
    const box = { left: 50, right: w - (wide ? Math.min(0.4 * w, 16 + longest * LETTER) : 14), top: 12, bottom: h - 40 };
    const [low, high] = this.extent(), [from, to] = this.range;
    this.x = (v) => box.left + ((v - from) / (to - from)) * (box.right - box.left);
    this.y = (v) => box.bottom - ((v - low) / (high - low)) * (box.bottom - box.top);
    Object.assign(this, { box, w });
    this.axes(low, high, h);
    const id = `clip${charts.indexOf(this) < 0 ? charts.length : charts.indexOf(this)}`;
    const clip = element(svg, "clipPath", { id });
    element(clip, "rect", { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 8 });
    const plot = element(svg, "g", { "clip-path": `url(#${id})` });
    for (const line of this.panel.reference || []) this.drawReference(plot, line);
    for (const group of this.shown()) this.drawGroup(plot, group);
    if (wide) this.nameLines(ends);
    if (!ends.length) element(svg, "text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" }, "nothing to show here");
  }

  axes(low, high, h) {
    const { svg, box } = this, [from, to] = this.range;
    const heights = ticks(low, high, 7), places = ticks(from, to, Math.max(2, Math.floor((box.right - box.left) / 75)));
    tickTexts(heights).forEach((text, i) => {
      element(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: this.y(heights[i]), y2: this.y(heights[i]) });
      element(svg, "text", { x: box.left - 7, y: this.y(heights[i]) + 4, "text-anchor": "end" }, text);
    });
    tickTexts(places).forEach((text, i) => {
      element(svg, "line", { class: "axis", x1: this.x(places[i]), x2: this.x(places[i]), y1: box.bottom, y2: box.bottom + 5 });
      element(svg, "text", { x: this.x(places[i]), y: box.bottom + 18, "text-anchor": "middle" }, text);
    });
    element(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
    element(svg, "text", { x: (box.left + box.right) / 2, y: h - 5, "text-anchor": "middle" }, this.panel.axis);
  }

  path(values) {
    let text = "", pen = false;
    const steps = this.panel.key === "profile";
    values.forEach((v, i) => {
      if (v === null) { pen = false; return; }
      const x = this.x(this.panel.grid[i]).toFixed(1), y = this.y(v).toFixed(1);
      text += pen && steps ? `H${x}V${y}` : `${pen ? "L" : "M"}${x},${y}`;
      pen = true;
    });
    return text;
  }

  drawGroup(plot, group) {
    const c = colour(group.label), most = Math.max(...group.n), grid = this.panel.grid, bands = [];
    const g = element(plot, "g", { class: "group", "data-label": group.label });
    group.low.forEach((v, i) => {
      if (v === null) return;
      if (bands.length && bands[bands.length - 1].at(-1) === i - 1) bands[bands.length - 1].push(i); else bands.push([i]);
    });
    for (const band of bands) {
      const up = band.map((i) => `${this.x(grid[i]).toFixed(1)},${this.y(group.high[i]).toFixed(1)}`);
      const down = band.map((i) => `${this.x(grid[i]).toFixed(1)},${this.y(group.low[i]).toFixed(1)}`).reverse();
      element(g, "polygon", { points: [...up, ...down].join(" "), style: `fill:${c};opacity:${most < FEW ? 0.1 : 0.16}` });
    }
    if ((group.runs || []).length > 1) for (const run of group.runs) element(g, "path", { d: this.path(run), style: `fill:none;stroke:${c};stroke-width:.7;opacity:.4` });
    element(g, "path", { d: this.path(group.mean), style: `fill:none;stroke:${c};stroke-width:2.3;stroke-linejoin:round;stroke-dasharray:${dashes(group.label)}` });
    if (group.mean.filter((v) => v !== null).length === 1)
      group.mean.forEach((v, i) => { if (v !== null) element(g, "circle", { cx: this.x(grid[i]), cy: this.y(v), r: 3.5, style: `fill:${c}` }); });
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

  // Names beside the plot, where they cover no line; what leads to them is grey and outside of it.
  nameLines(ends) {
    const { box } = this, ordered = [...ends].sort((a, b) => b.value - a.value);
    const lines = ordered.map((end) => wrap(end.name, 12)), tall = lines.map((each) => each.length * LINE + 3);
    const places = spread(ordered.map((end) => this.y(end.value)), tall, box.top - 8, box.bottom + 8);
    ordered.forEach((end, i) => {
      if (end.at < this.range[0] + END * (this.range[1] - this.range[0])) element(this.svg, "circle", { cx: this.x(end.at), cy: this.y(end.value), r: 3.5, style: `fill:${end.c}` });
      element(this.svg, "line", { class: "leader", x1: box.right + 2, y1: this.y(end.value), x2: box.right + 9, y2: places[i] });
      lines[i].forEach((text, row) => element(this.svg, "text", { class: "end", "data-label": end.label, x: box.right + 12, y: places[i] + 4 + (row - (lines[i].length - 1) / 2) * LINE, style: `fill:${end.c}` }, text));
    });
  }
}
