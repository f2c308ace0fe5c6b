// What a snapshot says, drawn: allocated and reserved memory over the entries, and the lines of code that hold most.
import { GIB, element, gib, make, widthOf } from "./dom.js";

const [HEIGHT, LEFT, TOP, BOTTOM] = [260, 60, 34, 40];
const FAR = 3; // a limit this many times above the highest level is named only: it would press the curve flat

// Curves on one scale, in a place that is shown already: its width is theirs, so that labels keep their size.
export function drawnCurves(place, curves) {
  const highest = Math.max(1, ...curves.flatMap(({ course }) => course.curve.reserved_bytes));
  const limits = curves.map(({ course }) => course.capacity_bytes ?? 0).filter((limit) => limit < FAR * highest);
  const top = Math.max(highest, ...limits);
  return curves.map(({ course, title }) => drawnCurve(course, title, top, widthOf(place)));
}

function drawnCurve(course, title, top, width) {
  const { entries, allocated_bytes: allocated, reserved_bytes: reserved } = course.curve;
  const limit = course.capacity_bytes ?? null;
  const last = Math.max(1, entries.at(-1));
  const x = (entry) => LEFT + ((width - LEFT - 10) * entry) / last;
  const y = (bytes) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * bytes) / top;
  const steps = (levels) => levels.map((level, place) => `${place ? `H${x(entries[place])}` : `M${x(0)} ${y(0)}`}V${y(level)}`).join("") + `V${y(0)}Z`;
  const parts = [element("text", { x: 4, y: 16 }, title)];
  parts.push(element("path", { class: "reserved", d: steps(reserved) }), element("path", { class: "allocated", d: steps(allocated) }));
  for (const part of [0, 0.5, 1]) {
    parts.push(element("line", { class: "axis", x1: LEFT, x2: width - 10, y1: y(top * part), y2: y(top * part) }));
    parts.push(element("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, gib(top * part)));
  }
  for (const part of [0, 0.5, 1]) {
    const anchor = part === 1 ? "end" : part ? "middle" : "start";
    parts.push(element("text", { x: x(last * part), y: HEIGHT - BOTTOM + 16, "text-anchor": anchor }, Math.round((last - 1) * part).toLocaleString("en")));
  }
  if (limit !== null && limit <= top) parts.push(element("line", { class: "limit", x1: LEFT, x2: width - 10, y1: y(limit), y2: y(limit) }));
  parts.push(element("text", { x: (width + LEFT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "entry of the history"));
  const label = `${title}: memory over the entries; at most ${(Math.max(...reserved) / GIB).toFixed(2)} GiB reserved. The table below has the numbers`;
  const svg = element("svg", { width, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  svg.append(...parts);
  return svg;
}

export function tableOfLines(held) {
  const cell = (text) => make("td", { class: "number" }, text);
  const rows = held.lines.slice(0, held.largest).map((line) =>
    make("tr", {}, make("th", { scope: "row", class: "code", title: line.file ?? "" }, line.text), cell(gib(line.size_bytes)),
      cell(`${((100 * line.size_bytes) / held.allocated_bytes).toFixed(1)} %`), cell(line.blocks.toLocaleString("en"))),
  );
  const head = ["Requested by", "GiB", "Share", "Blocks"].map((title, place) => make("th", { scope: "col", class: place ? "number" : "" }, title));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}
