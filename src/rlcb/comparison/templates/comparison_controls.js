// What a reader can do with the charts: zoom, read values, hide and stress groups, print.
Object.assign(Chart.prototype, {
  zoom(from, to) {
    from = Math.max(this.full[0], from); to = Math.min(this.full[1], to);
    if (to - from < (this.full[1] - this.full[0]) / 200) return;
    this.range = [from, to];
    this.figure.dataset.zoomed = String(from > this.full[0] || to < this.full[1]);
    this.tip.hidden = true;
    this.draw();
  },

  scale(factor, around) {
    const [from, to] = this.range, middle = around === undefined ? (from + to) / 2 : around;
    this.zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
  },

  reset() { this.zoom(...this.full); },

  value(event) {
    const frame = this.svg.getBoundingClientRect(), px = ((event.clientX - frame.left) / frame.width) * this.w;
    const share = (px - this.box.left) / (this.box.right - this.box.left);
    return this.range[0] + Math.min(1, Math.max(0, share)) * (this.range[1] - this.range[0]);
  },

  read(value) {
    const grid = this.panel.grid;
    let at = 0;
    grid.forEach((v, i) => { if (Math.abs(v - value) < Math.abs(grid[at] - value)) at = i; });
    this.at = at;
    this.svg.querySelectorAll(".cross").forEach((node) => node.remove());
    element(this.svg, "line", { class: "cross", x1: this.x(grid[at]), x2: this.x(grid[at]), y1: this.box.top, y2: this.box.bottom });
    this.tip.replaceChildren();
    const head = this.tip.appendChild(document.createElement("b"));
    head.textContent = `${short(grid[at])} ${this.panel.clock_unit}`;
    const rows = this.shown().filter((group) => group.mean[at] !== null).sort((a, b) => b.mean[at] - a.mean[at]);
    for (const group of rows) {
      const row = this.tip.appendChild(document.createElement("div"));
      const mark = row.appendChild(document.createElement("span"));
      mark.className = `swatch d${pattern(group.label)}`;
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
  },

  leave() { this.tip.hidden = true; this.svg.querySelectorAll(".cross").forEach((node) => node.remove()); },

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
  },
});

// Draws all groups but one faintly; all as usual without a label.
function stress(label) {
  document.querySelectorAll("g.group, text.end").forEach((node) => {
    node.style.opacity = label && node.dataset.label !== label ? "0.15" : "";
  });
}

document.querySelectorAll("figure[data-panel]").forEach((figure) => charts.push(new Chart(figure)));
charts.forEach((chart) => chart.listen());
document.querySelectorAll(".legend button").forEach((button) => {
  const label = button.dataset.label;
  button.addEventListener("click", () => {
    if (hidden.has(label)) hidden.delete(label); else hidden.add(label);
    document.querySelectorAll(".legend button").forEach((each) => each.setAttribute("aria-pressed", String(!hidden.has(each.dataset.label))));
    charts.forEach((chart) => chart.draw());
  });
  button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse" && !hidden.has(label)) stress(label); });
  button.addEventListener("pointerleave", () => stress(null));
});
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; charts.forEach((chart) => chart.draw()); } });
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  charts.forEach((chart) => chart.draw(chart.figure.closest(".three") ? 300 : 440));
});
window.addEventListener("afterprint", () => charts.forEach((chart) => chart.draw()));
document.documentElement.dataset.ready = String(charts.length);
