// A curve over steps as SVG, with a readout of the step under the pointer.
const NS = "http://www.w3.org/2000/svg";
const PAD = { left: 46, right: 8, top: 8, bottom: 20 };

export const short = (value) =>
  value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1000) ? value.toFixed(4) : value.toExponential(2);

export class Curve {
  // `points` are [step, raw, smooth], `checks` are [step, value], both in the order of their steps.
  constructor(place, readout, checkLabel) {
    Object.assign(this, { place, readout, checkLabel, points: [], checks: [], at: null });
    new ResizeObserver(() => this.draw()).observe(place);
    place.addEventListener("pointermove", (event) => this.point(event));
    place.addEventListener("pointerdown", (event) => this.point(event));
    place.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
  }

  show(points, checks) {
    Object.assign(this, { points, checks });
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  point(event) {
    this.at = event.clientX - this.place.getBoundingClientRect().left;
    this.draw();
  }

  draw() {
    const { width, height } = this.place.getBoundingClientRect();
    if (!width) return;
    if (this.points.length + this.checks.length < 2) {
      this.place.innerHTML = '<p class="none">The curve begins with the second step.</p>';
      this.readout.textContent = "";
      return;
    }
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    const steps = [...this.points, ...this.checks].map((p) => p[0]);
    const [first, last] = [Math.min(...steps), Math.max(...steps)];
    const [low, high] = this.range();
    const x = (step) => PAD.left + ((step - first) / (last - first || 1)) * (width - PAD.left - PAD.right);
    const y = (value) => {
      const share = (Math.min(Math.max(value, low), high) - low) / (high - low || 1);
      return height - PAD.bottom - share * (height - PAD.top - PAD.bottom);
    };
    const gap = roundUp((high - low) / 4);
    for (let value = Math.ceil(low / gap) * gap; value <= high; value += gap) {
      svg.append(element("path", { class: "grid", d: `M${PAD.left} ${y(value)}H${width - PAD.right}` }));
      svg.append(element("text", { x: PAD.left - 6, y: y(value) + 4, "text-anchor": "end" }, Number(value.toPrecision(3))));
    }
    svg.append(element("text", { x: PAD.left, y: height - 4 }, first.toLocaleString("en")));
    svg.append(element("text", { x: width - PAD.right, y: height - 4, "text-anchor": "end" }, last.toLocaleString("en")));
    const line = (kind, points) => svg.append(element("path", { class: kind, d: path(points, x, y) }));
    line("raw", this.points.map(([step, raw]) => [step, raw]));
    line("smooth", this.points.map(([step, , smooth]) => [step, smooth]));
    line("check", this.checks);
    for (const [step, value] of this.checks) svg.append(element("circle", { cx: x(step), cy: y(value), r: 2.5 }));
    this.read(svg, x, height);
    this.place.replaceChildren(svg);
  }

  range() {
    // Single peaks, as of the first steps, do not flatten the rest.
    const raw = this.points.map((p) => p[1]).filter((v) => v !== null).sort((a, b) => a - b);
    const end = raw.slice(Math.floor(raw.length * 0.01), Math.ceil(raw.length * 0.98));
    const values = [...end, ...this.points.map((p) => p[2]), ...this.checks.map((c) => c[1])].filter((v) => v !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = (high - low || Math.abs(high) || 1) * 0.05;
    return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
  }

  read(svg, x, height) {
    const near = (points) => points.reduce((best, p) =>
      best === null || Math.abs(x(p[0]) - this.at) < Math.abs(x(best[0]) - this.at) ? p : best, null);
    const pick = (points) => (this.at === null ? points.at(-1) ?? null : near(points));
    const point = pick(this.points), check = pick(this.checks);
    if (this.at !== null && (point ?? check)) {
      const place = x((point ?? check)[0]);
      svg.append(element("path", { class: "at", d: `M${place} ${PAD.top}V${height - PAD.bottom}` }));
    }
    this.readout.replaceChildren();
    const value = point && (point[2] ?? point[1]);
    if (value !== null) this.readout.append(`${this.at === null ? "" : `step ${point[0].toLocaleString("en")}: `}${short(value)}`);
    if (check) {
      const part = document.createElement("i");
      part.textContent = `${value === null ? "" : "  "}${this.checkLabel} ${short(check[1])}`;
      this.readout.append(part);
    }
  }
}

function roundUp(value) {
  // The next of 1, 2, 5, 10, 20, ..., and of their fractions.
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((n) => n * power >= value * 0.999);
}

function path(points, x, y) {
  let text = "", pen = "M";
  for (const [step, value] of points) {
    if (value === null || value === undefined) { pen = "M"; continue; }
    text += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  }
  return text || "M0 0";
}

function element(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
