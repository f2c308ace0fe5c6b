// "What does it cost?": the longest completions for each number of generations, on up to three cards.
import { ask } from "./ask.js";
import { at, element, make, showFaults, widthOf } from "./dom.js";
import { showCommand } from "./share.js";
import { bytesOfFiles, state, words } from "./state.js";

const KEYS = "num_generations,max_completion_length";
const MOST_CARDS = 3;
const FIRST_CARDS = ["h100-80gb"]; // until others are chosen
const COLOURS = ["#0072B2", "#D55E00", "#009E73"];
const DASHES = ["", "6 3", "2 3"];
const [HEIGHT, LEFT, BOTTOM] = [320, 70, 46];

export function makeCost(catalogue, changed) {
  at("cost-cards").append(...catalogue.cards.map((card) => make("option", { value: card.name }, card.name)));
  at("cost-cards").addEventListener("change", () => {
    state.cards = [...at("cost-cards").selectedOptions].map((option) => option.value).slice(0, MOST_CARDS);
    showCards();
    changed();
  });
  at("draw").addEventListener("click", () => showCost());
}

export function showCards() {
  for (const option of at("cost-cards").options) option.selected = chosen().includes(option.value);
}

const chosen = () => (state.cards.length ? state.cards : FIRST_CARDS);

export async function showCost() {
  const job = words().filter((word) => !/^(num_generations|max_completion_length|gpu)=/.test(word));
  const command = ["solve", KEYS, ...job, `gpu=${chosen().join(",")}`, "confirm=false"];
  showCommand(command);
  const found = await ask("cost", [...command, "format=json"], bytesOfFiles());
  if (found === null) return;
  showFaults("cost-faults", found.err.trim());
  const lines = found.code === 0 && found.out.startsWith("{") ? JSON.parse(found.out).lines : [];
  at("cost-chart").replaceChildren(...(lines.length ? [drawn(lines)] : []));
  showTable(lines);
}

function points(line) {
  return line.points.map((point) => [point[line.keys[0]], point.largest]);
}

function drawn(lines) {
  const width = widthOf(at("cost-chart"));
  const all = lines.flatMap(points).filter(([, largest]) => largest);
  const most = [Math.max(1, ...all.map(([first]) => first)), Math.max(1, ...all.map(([, largest]) => largest))];
  const least = Math.min(...points(lines[0]).map(([first]) => first));
  const x = (value) => LEFT + 20 + ((width - LEFT - 40) * Math.log2(value / least)) / Math.max(1, Math.log2(most[0] / least));
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - 84) * value) / most[1]; // names of the cards stand above
  const parts = [element("line", { class: "axis", x1: LEFT, y1: y(0), x2: width - 10, y2: y(0) })];
  for (const part of [0.25, 0.5, 0.75, 1]) {
    const value = Math.round(most[1] * part);
    parts.push(element("line", { class: "axis", x1: LEFT, y1: y(value), x2: width - 10, y2: y(value) }));
    parts.push(element("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, value.toLocaleString("en")));
  }
  for (const [first] of points(lines[0])) {
    parts.push(element("text", { x: x(first), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, String(first)));
  }
  parts.push(element("text", { x: (width + LEFT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "num_generations"));
  parts.push(element("text", { x: 4, y: 16 }, "largest max_completion_length that fits, estimated"));
  lines.forEach((line, number) => {
    const own = points(line).filter(([, largest]) => largest);
    const path = own.map(([first, largest], place) => `${place ? "L" : "M"}${x(first)} ${y(largest)}`).join("");
    parts.push(element("path", { d: path || "M0 0", fill: "none", stroke: COLOURS[number], "stroke-width": 2, "stroke-dasharray": DASHES[number] }));
    own.forEach(([first, largest]) => parts.push(element("circle", { cx: x(first), cy: y(largest), r: 3, fill: COLOURS[number] })));
    const name = 36 + 18 * number; // in the colour of text, next to a piece of the line
    parts.push(element("text", { x: width - 56, y: name, "text-anchor": "end" }, line.gpu));
    parts.push(element("line", { x1: width - 50, x2: width - 20, y1: name - 4, y2: name - 4, stroke: COLOURS[number], "stroke-width": 2, "stroke-dasharray": DASHES[number] }));
  });
  const svg = element("svg", { width, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": "The longest completions that fit, for each number of generations; the table below has the numbers" });
  svg.append(...parts);
  return svg;
}

function showTable(lines) {
  const table = at("cost-table");
  table.hidden = !lines.length;
  if (!lines.length) return;
  const cell = (text) => make("td", { class: "number" }, text);
  table.querySelector("thead").replaceChildren(
    make("tr", {}, make("th", { scope: "col" }, "num_generations"), ...lines.map((line) => make("th", { scope: "col", class: "number" }, line.gpu))),
  );
  const rows = points(lines[0]).map(([first], place) =>
    make("tr", {}, make("th", { scope: "row" }, String(first)), ...lines.map((line) => cell(points(line)[place]?.[1]?.toLocaleString("en") ?? "none"))),
  );
  table.querySelector("tbody").replaceChildren(...rows);
}
